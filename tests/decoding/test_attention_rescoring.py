"""Rescoring against the scores of both parts."""

import pytest
import torch

from asr.decoding.beam import AttentionRescoring, CtcBeam
from asr.models.heads.ctc import CtcAttentionHead


def make() -> CtcAttentionHead:
    torch.manual_seed(0)
    head = CtcAttentionHead(8, 5, num_layers=1, num_heads=2, d_feedforward=16).eval()
    torch.nn.init.normal_(head.attention.project.weight, std=1.0)
    return head


@pytest.mark.parametrize("ctc_weight", [0.0, 0.4, 1.0])
@torch.inference_mode()
def test_texts_of_the_beam_are_ranked_by_the_weighted_sum_of_both_scores(ctc_weight):
    head, lengths = make(), torch.tensor([9, 4, 6])
    encodings = 2 * torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(2))
    beams = CtcBeam(beam_size=5)(head, encodings, lengths)
    found = AttentionRescoring(beam_size=5, ctc_weight=ctc_weight)(head, encodings, lengths)
    for row, (beam, rescored) in enumerate(zip(beams, found, strict=True)):
        expected = {}
        for one in beam:
            text = torch.tensor([one.tokens], dtype=torch.int64)
            log_prob = head.text_log_probs(
                encodings[row : row + 1], lengths[row : row + 1], text, torch.tensor([len(one.tokens)])
            )
            expected[tuple(one.tokens)] = ctc_weight * one.score + (1 - ctc_weight) * float(log_prob)
        assert {tuple(one.tokens): one.score for one in rescored} == pytest.approx(expected, abs=1e-4)
        assert [one.score for one in rescored] == sorted((one.score for one in rescored), reverse=True)
    if ctc_weight < 1:
        assert any(beam[0].tokens != rescored[0].tokens for beam, rescored in zip(beams, found, strict=True))


@torch.inference_mode()
def test_each_utterance_of_a_batch_is_decoded_as_alone():
    head, lengths = make(), torch.tensor([9, 4, 6])
    encodings = 2 * torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(2))
    decoder = AttentionRescoring(beam_size=5)
    for row, together in enumerate(decoder(head, encodings, lengths)):
        (alone,) = decoder(head, encodings[row : row + 1, : lengths[row]], lengths[row : row + 1])
        assert [one.tokens for one in alone] == [one.tokens for one in together]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together], abs=1e-4)
