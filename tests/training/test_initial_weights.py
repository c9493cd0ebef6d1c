"""What is taken from another model, and what is not trained."""

import pytest
import torch
from torch import nn

from asr.training.initial_weights import TensorMatch, freeze, match_tensors, summary, take, take_tokens, write_matches


def model(width: int = 3, names: str = "ab") -> nn.ModuleDict:
    torch.manual_seed(width)
    return nn.ModuleDict({name: nn.Linear(2, width) for name in names})


def test_tensors_of_the_same_name_and_shape_are_taken(tmp_path):
    ours, theirs = model(names="abc"), model(names="abd").state_dict()
    theirs["b.weight"] = torch.ones(4, 2)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    decided = match_tensors(before, theirs, of_vocabulary=["b.bias"])
    assert decided == [
        TensorMatch("a.weight", (3, 2), "taken"),
        TensorMatch("a.bias", (3,), "taken"),
        TensorMatch("b.weight", (3, 2), "new", "in the source of shape [4, 2]"),
        TensorMatch("b.bias", (3,), "new", "another vocabulary"),
        TensorMatch("c.weight", (3, 2), "new", "not in the source"),
        TensorMatch("c.bias", (3,), "new", "not in the source"),
        TensorMatch("d.weight", (3, 2), "left", "not in the new model"),
        TensorMatch("d.bias", (3,), "left", "not in the new model"),
    ]
    take(ours, theirs, decided)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, (theirs if name in ("a.weight", "a.bias") else before)[name])
    assert summary(decided) == "2 of 6 tensors taken, 4 new, 2 left"
    write_matches(tmp_path / "init.tsv", decided)
    assert (tmp_path / "init.tsv").read_text().splitlines()[:2] == [
        "tensor\tshape\tfate\treason",
        "a.weight\t[3, 2]\ttaken\t",
    ]


def test_tokens_of_both_vocabularies_are_taken_one_by_one():
    ours, theirs = model(width=4, names="ab"), model(width=3, names="ac").state_dict()
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    axes = {"a.weight": 0, "a.bias": 0, "b.bias": 0}  # the source lacks the last
    assert take_tokens(ours, theirs, axes, ["blank", "x", "y", "z"], ["blank", "z", "v"]) == 2
    after = ours.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"a.weight", "a.bias"}
    for name in ("a.weight", "a.bias"):
        assert torch.equal(after[name][[0, 3]], theirs[name][[0, 1]])
        assert torch.equal(after[name][[1, 2]], before[name][[1, 2]])


def test_what_is_frozen_needs_no_gradient():
    frozen = model()
    freeze(frozen, [r"^a\.", "bias"])
    assert [name for name, parameter in frozen.named_parameters() if parameter.requires_grad] == ["b.weight"]


def test_statistics_of_a_frozen_batch_norm_stand_still():
    norms = nn.ModuleDict({"a": nn.BatchNorm1d(2), "b": nn.BatchNorm1d(2)})
    freeze(norms, ["^a"])
    for norm in norms.values():
        norm(torch.randn(3, 2))
    assert [float(norm.running_mean.abs().sum()) > 0 for norm in norms.values()] == [False, True]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["nothing"], "'nothing' is found in no parameter's name; names are a.weight to b.bias"),
        (["a", "b"], "leave no parameter to train"),
    ],
)
def test_what_cannot_be_frozen_is_said(patterns, said):
    with pytest.raises(ValueError, match=said):
        freeze(model(), patterns)
