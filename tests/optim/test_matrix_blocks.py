"""What modules say about their parameters, what optimizers make of it, and the table that says so."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import optim


class Conv1D(nn.Module):
    """The linear map of GPT-2, which stores the transpose."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))


class Attention(nn.Module):
    def __init__(self, sizes, **layers):
        super().__init__()
        self.__dict__ |= sizes
        for name, layer in layers.items():
            self.add_module(name, layer)


class Said(nn.Module):
    """Knows better than its parts."""

    def __init__(self):
        super().__init__()
        self.inner, self.matrix_blocks = nn.MultiheadAttention(8, 2), {"inner.in_proj_weight": {"blocks": [8, 16]}}


def weight(**spec):
    return {"weight": spec}


LSTM = {f"weight_{x}_l0{back}": {"blocks": 4} for back in ("", "_reverse") for x in ("ih", "hh")}
KNOWN = [
    (nn.MultiheadAttention(8, 2), {"in_proj_weight": {"blocks": 3, "heads": 2}}),
    (nn.MultiheadAttention(8, 4, kdim=6), {f"{x}_proj_weight": {"heads": 4} for x in "qkv"}),
    (nn.Conv2d(4, 6, 3), weight()),
    (nn.Conv1d(4, 6, 3, groups=2), weight(blocks=2)),
    (nn.Conv1d(4, 8, 3, groups=4), weight(blocks=0)),
    (nn.ConvTranspose1d(4, 6, 3), weight(dims=(1,))),
    (nn.ConvTranspose1d(8, 4, 3, groups=2), weight(blocks=2)),
    (nn.ConvTranspose1d(4, 8, 3, groups=4), weight(blocks=0)),
    (nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), {"parametrizations.weight.original1": {}}),
    (nn.LSTM(4, 6, bidirectional=True), LSTM),
    (nn.GRUCell(4, 6), {"weight_ih": {"blocks": 3}, "weight_hh": {"blocks": 3}}),
    (nn.Embedding(9, 4), weight()),
    (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), {}),
    (Said(), {"inner.in_proj_weight": {"blocks": [8, 16]}}),
    (
        Attention({"num_heads": 2}, c_attn=Conv1D(12, 4), c_proj=Conv1D(4, 4)),
        {"c_attn.weight": {"blocks": 3, "heads": 2, "dims": (1,)}, "c_proj.weight": {"dims": (1,)}},
    ),
    (
        Attention({"num_heads": 4, "head_dim": 2}, qkv_proj=nn.Linear(8, 12)),  # two heads of keys, four of queries
        {"qkv_proj.weight": {"heads": 6}},
    ),
    (
        Attention({"head_dim": 2}, q_proj=nn.Linear(8, 8), k_proj=nn.Linear(8, 4), o_proj=nn.Linear(8, 8)),
        {"q_proj.weight": {"heads": 4}, "k_proj.weight": {"heads": 2}},
    ),
]


@pytest.mark.parametrize(("module", "known"), KNOWN, ids=lambda x: type(x).__name__)
def test_modules_say_what_their_parameters_are(module, known):
    defaults = {"blocks": 1, "heads": 1, "dims": (0,)}
    found = optim.matrix_blocks(nn.Sequential(module))
    assert {name: {key: spec[key] for key in defaults} for name, spec in found.items()} == {
        f"0.{name}": {**defaults, **spec} for name, spec in known.items()
    }
    shapes = {name: tuple(param.shape) for name, param in nn.Sequential(module).named_parameters()}
    assert {name: spec["shape"] for name, spec in found.items()} == {name: shapes[name] for name in found}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2)
        self.gate, self.depthwise = nn.Linear(8, 16), nn.Conv1d(8, 8, 3, groups=8)


RULES = [
    {"pattern": "embedding", "optimizer": partial(optim.AdamW, lr=0.01)},
    {"pattern": "gate", "blocks": 2},
    {"pattern": ".*"},
]


def test_the_table_names_matrices_rule_and_reason(capsys):
    model = Model()
    optimizer = optim.grouped(optim.Muon, RULES, blocks="auto")(model)
    assert ["blocks" in group for group in optimizer.param_groups] == [False, True, True]
    optim.explain(optimizer, model)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows)[1:] == [name for group in optimizer.param_groups for name in group["param_names"]]
    for name, *words in (
        ("embedding.weight", "9×8", "AdamW"),
        ("gate.weight", "Muon", "2 × 8×8", "blocks=2", "gate"),
        ("attention.in_proj_weight", "24×8", "6 × 4×8", "blocks=3 heads=2 from nn.MultiheadAttention"),
        ("attention.out_proj.weight", "1 × 8×8"),
        ("attention.in_proj_bias", "none"),
        ("depthwise.weight", "8×1×3", "none", "nn.Conv1d"),
    ):
        assert all(word in rows[name] for word in words), rows[name]
    optim.explain(optim.StepInBackward(optim.Muon(model.parameters())), model)
    assert "as it is; blocks='auto': blocks=3 heads=2 from nn.MultiheadAttention" in capsys.readouterr().out
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    assert optimizer.state[model.attention.in_proj_weight]["momentum_buffer"].shape == (6, 4, 8)


def test_without_auto_all_is_as_before_and_auto_needs_a_model_and_an_optimizer_that_knows_blocks():
    model = Model()
    for rules in ((), RULES[::2]):
        assert not any("blocks" in group for group in optim.grouped(optim.Muon, rules)(model).param_groups)
    (group,) = optim.grouped(optim.SOAP, blocks="auto")(model).param_groups
    assert {*group["blocks"]} == {*optim.matrix_blocks(model)}
    assert "blocks" not in optim.grouped(optim.AdamW, blocks="auto")(model).param_groups[0]
    with pytest.raises(ValueError, match="model"):
        optim.grouped(optim.Muon, blocks="auto")(model.named_parameters())
    with pytest.raises(ValueError, match="blocks"):
        optim.grouped(optim.Muon, blocks="some")
    t5x = partial(optim.T5XAdafactor, lr=0.1, factor_map="matrices")
    for knows_none in (partial(torch.optim.Adam, lr=0.1), optim.torch_muon, t5x):
        with pytest.raises(ValueError, match="gate"):
            optim.grouped(knows_none, [{"pattern": "gate", "heads": 2}, {"pattern": ""}])(model)
    for without_matrices in (optim.ScheduleFreePlus, optim.Prodigy, t5x):
        assert "blocks" not in optim.grouped(without_matrices, blocks="auto")(model).param_groups[0]
    (group,) = optim.step_in_backward(model, optim.grouped(optim.Muon, blocks="auto")).param_groups
    assert group["blocks"]


def test_lazy_modules_are_known_once_they_have_their_shapes():
    model = nn.Sequential(nn.LazyLinear(4, bias=False), nn.MultiheadAttention(4, 2))
    optimizer = optim.grouped(optim.Muon, [{"pattern": "^0", "blocks": 2}, {"pattern": ""}], blocks="auto")(model)
    model[1](*3 * [model[0](torch.ones(2, 6))])[0].sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["momentum_buffer"].shape == (2, 2, 6)


def test_trial_parameters_of_other_shapes_are_whole_and_those_that_replace_them_are_not():
    model = Model()

    class Pairs(list):
        pass

    pairs = Pairs((name, nn.Parameter(torch.ones([2 for _ in p.shape]))) for name, p in model.named_parameters())
    pairs.model = model
    optimizer = optim.grouped(optim.Muon, RULES, blocks="auto")(pairs)
    for _, param in pairs:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.replace_params(dict(model.named_parameters()))
    model.gate.weight.grad = torch.randn(16, 8)
    optimizer.step()
    assert optimizer.state[model.gate.weight]["momentum_buffer"].shape == (2, 8, 8)
