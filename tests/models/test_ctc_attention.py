"""CTC with an attention decoder."""

import torch
import torch.nn.functional as F

from asr.models.heads.ctc import CtcAttentionHead

NUM_FRAMES, TOKENS, NUM_TOKENS = torch.tensor([7, 5]), torch.tensor([[1, 2, 1], [3, 0, 0]]), torch.tensor([3, 1])


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
