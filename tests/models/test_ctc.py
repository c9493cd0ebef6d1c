"""CTC, consistency regularization of it, and CTC with an attention decoder."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from asr.models.heads.ctc import CrCtcHead, CtcAttentionHead, CtcHead, disagreement, has_alignment


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


NUM_FRAMES, TOKENS, NUM_TOKENS = torch.tensor([7, 5]), torch.tensor([[1, 2, 1], [3, 0, 0]]), torch.tensor([3, 1])


def heads(**options: float) -> tuple[CrCtcHead, CtcHead]:
    torch.manual_seed(0)
    head, plain = CrCtcHead(d_model=5, vocab_size=4, **options), CtcHead(d_model=5, vocab_size=4)
    plain.load_state_dict(head.state_dict())
    return head, plain


def views(seed: int = 1) -> torch.Tensor:
    return torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(seed))


def naive(log_probs: torch.Tensor, num_frames: list[int]) -> list[float]:
    """½ Σ_t KL(b ‖ a) + KL(a ‖ b), term by term."""
    found = []
    for row, length in enumerate(num_frames):
        a, b = log_probs[row].tolist(), log_probs[row + len(num_frames)].tolist()
        total = 0.0
        for frame in range(length):
            for p, q in zip(a[frame], b[frame], strict=True):
                total += 0.5 * math.exp(q) * (q - p) + 0.5 * math.exp(p) * (p - q)
        found.append(total)
    return found


def test_disagreement_is_the_symmetric_divergence_summed_over_valid_frames():
    log_probs = torch.randn(4, 7, 5, dtype=torch.float64).log_softmax(dim=2)
    found = disagreement(log_probs, NUM_FRAMES.repeat(2))
    torch.testing.assert_close(found, torch.tensor(naive(log_probs, [7, 5]), dtype=torch.float64), rtol=1e-12, atol=0)


def test_no_gradient_goes_through_what_a_view_is_compared_with():
    log_probs = torch.randn(4, 7, 5, dtype=torch.float64).log_softmax(dim=2).requires_grad_()
    disagreement(log_probs, NUM_FRAMES.repeat(2)).sum().backward()
    # of ½ Σ b (log b − log a) with b held, the derivative with respect to log a is −½ b
    expected = -0.5 * torch.cat((log_probs[2:], log_probs[:2])).detach().exp()
    expected[1, 5:], expected[3, 5:] = 0, 0
    torch.testing.assert_close(log_probs.grad, expected, rtol=1e-12, atol=0)


def test_the_loss_is_the_mean_over_views_plus_a_share_of_their_disagreement():
    (head, plain), encodings = heads(consistency_weight=0.7), views()
    found, parts, _ = head.loss(encodings, NUM_FRAMES.repeat(2), TOKENS, NUM_TOKENS)
    first, second = (plain.loss(view, NUM_FRAMES, TOKENS, NUM_TOKENS).total for view in encodings.chunk(2))
    apart = torch.tensor(naive(plain.frame_log_probs(encodings), [7, 5]))
    torch.testing.assert_close(found, (first + second) / 2 + 0.7 * apart)
    assert (apart > 0.1).all()
    torch.testing.assert_close(parts, {"ctc": (first + second) / 2, "consistency": apart})


def test_what_is_not_finite_in_one_view_is_seen_in_the_loss_of_its_utterance_alone():
    (head, _), encodings = heads(), views()
    encodings[3, 2, 0] = math.nan
    losses = head.loss(encodings, NUM_FRAMES.repeat(2), TOKENS, NUM_TOKENS).total
    assert losses.isfinite().tolist() == [True, False]


def make(**options) -> CtcAttentionHead:
    torch.manual_seed(0)
    return CtcAttentionHead(8, 5, **{"num_layers": 2, "num_heads": 2, "d_feedforward": 16, "dropout": 0.0, **options})


def encodings() -> torch.Tensor:
    return torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))


def test_a_text_is_scored_token_by_token_from_what_came_before():
    head = make().eval()
    found = head.text_log_probs(encodings(), NUM_FRAMES, TOKENS, NUM_TOKENS)
    for row, text in enumerate(([1, 2, 1], [3])):
        frames, length = encodings()[row : row + 1, : NUM_FRAMES[row]], NUM_FRAMES[row : row + 1]
        expected = torch.zeros(())
        for place, label in enumerate([*text, 0]):
            logits = head.attention(frames, length, torch.tensor([[0, *text[:place]]]))
            expected = expected + logits[0, -1].log_softmax(-1)[label]
        torch.testing.assert_close(found[row], expected)


def test_the_loss_is_that_of_both_parts_with_smoothed_labels():
    head = make(ctc_weight=0.4, label_smoothing=0.2)
    found = head.loss(encodings(), NUM_FRAMES, TOKENS, NUM_TOKENS)
    logits = head.attention(encodings(), NUM_FRAMES, torch.tensor([[0, 1, 2, 1], [0, 3, 0, 0]]))
    first = F.cross_entropy(logits[0], torch.tensor([1, 2, 1, 0]), label_smoothing=0.2, reduction="sum")
    second = F.cross_entropy(logits[1, :2], torch.tensor([3, 0]), label_smoothing=0.2, reduction="sum")
    ctc = head.ctc.loss(encodings(), NUM_FRAMES, TOKENS, NUM_TOKENS).total
    torch.testing.assert_close(found.parts, {"ctc": ctc, "attention": torch.stack((first, second))})
    torch.testing.assert_close(found.total, 0.4 * ctc + 0.6 * found.parts["attention"])
