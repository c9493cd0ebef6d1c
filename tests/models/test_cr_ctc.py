import math

import torch

from asr.models.heads.ctc import CrCtcHead, CtcHead, disagreement

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
