import itertools

import pytest
import torch

from asr.models.heads.ctc import CtcHead, has_alignment


def collapsed(path: tuple[int, ...]) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != 0]


@pytest.mark.parametrize("tokens", [[1], [1, 2], [2, 2], [], [1, 2, 1]])
def test_loss_equals_the_sum_over_all_paths(tokens):
    torch.manual_seed(0)
    head = CtcHead(d_model=5, vocab_size=3).double()
    encodings = torch.randn(1, 4, 5, dtype=torch.float64)
    log_probs = head.frame_log_probs(encodings)[0]
    paths = itertools.product(range(3), repeat=4)
    scores = [sum(log_probs[t, label] for t, label in enumerate(path)) for path in paths if collapsed(path) == tokens]
    expected = -torch.logsumexp(torch.stack(scores), 0)
    padded = torch.tensor([[*tokens, 0]])
    loss = head.loss(encodings, torch.tensor([4]), padded, torch.tensor([len(tokens)]))
    torch.testing.assert_close(loss.total[0].float(), expected.float())


@pytest.mark.parametrize(
    ("tokens", "num_tokens", "needed"),
    [([1, 2, 3], 3, 3), ([1, 1, 1], 3, 5), ([1, 1, 1], 1, 1), ([1, 1, 2], 2, 3), ([2, 2, 2], 0, 0)],
)
def test_frames_are_enough_for_all_tokens_and_a_blank_between_equal_ones(tokens, num_tokens, needed):
    for num_frames in range(7):
        found = has_alignment(torch.tensor([num_frames]), torch.tensor([tokens]), torch.tensor([num_tokens]))
        assert found.tolist() == [num_frames >= needed]


def test_intermediate_layers_share_the_projection_and_their_mean_is_weighted():
    torch.manual_seed(0)
    head = CtcHead(d_model=5, vocab_size=4, intermediate_layers=[1, 3], intermediate_weight=0.4)
    assert {name for name, _ in head.named_parameters()} == {"project.weight", "project.bias"}
    last, first, third = torch.randn(3, 2, 6, 5)
    rest = torch.tensor([6, 4]), torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])
    inner = (head.loss(first, *rest).total + head.loss(third, *rest).total) / 2
    found = head.loss(last, *rest, [first, third])
    torch.testing.assert_close(found.total, 0.6 * head.loss(last, *rest).total + 0.4 * inner)
    torch.testing.assert_close(found.parts, {"ctc": head.loss(last, *rest).total, "intermediate": inner})
    assert head.loss_names == tuple(found.parts)
