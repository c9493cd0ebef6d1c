import itertools

import pytest
import torch

from asr.models.heads.ctc import CtcHead


def collapsed(path: tuple[int, ...]) -> list[int]:
    return [label for label, _ in itertools.groupby(path) if label != 0]


@pytest.mark.parametrize("tokens", [[1], [1, 2], [2, 2], [], [1, 2, 1]])
def test_loss_equals_the_sum_over_all_paths(tokens):
    torch.manual_seed(0)
    head = CtcHead(d_model=5, vocab_size=3).double()
    encodings = torch.randn(1, 4, 5, dtype=torch.float64)
    log_probs = head(encodings)[0]
    paths = itertools.product(range(3), repeat=4)
    scores = [sum(log_probs[t, label] for t, label in enumerate(path)) for path in paths if collapsed(path) == tokens]
    expected = -torch.logsumexp(torch.stack(scores), 0)
    padded = torch.tensor([[*tokens, 0]])
    loss = head.loss(encodings, torch.tensor([4]), padded, torch.tensor([len(tokens)]))
    torch.testing.assert_close(loss[0].float(), expected.float())


def test_an_impossible_transcript_costs_nothing_and_has_no_gradient():
    head = CtcHead(d_model=5, vocab_size=3)
    encodings = torch.randn(2, 3, 5, requires_grad=True)
    tokens = torch.tensor([[1, 1, 1], [1, 2, 0]])
    loss = head.loss(encodings, torch.tensor([3, 3]), tokens, torch.tensor([3, 2]))
    assert loss[0] == 0
    assert loss[1] > 0
    loss.sum().backward()
    assert not encodings.grad[0].any()
    assert encodings.grad.isfinite().all()


def test_losses_do_not_depend_on_padding():
    torch.manual_seed(0)
    head = CtcHead(d_model=5, vocab_size=4)
    encodings = torch.randn(2, 9, 5)
    tokens = torch.tensor([[1, 2, 3], [3, 0, 0]])
    together = head.loss(encodings, torch.tensor([9, 6]), tokens, torch.tensor([3, 1]))
    alone = head.loss(encodings[1:, :6], torch.tensor([6]), tokens[1:, :1], torch.tensor([1]))
    torch.testing.assert_close(together[1], alone[0])
