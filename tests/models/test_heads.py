"""Contracts of all heads, with every encoder."""

from itertools import product

import pytest
import torch

from asr.decoding.beam import AttentionRescoring, CtcBeam, TransducerBeam
from asr.decoding.greedy import CtcGreedy, TransducerGreedy
from asr.features.log_mel import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.recognizer import HasInnerLayers, Recognizer, initialize
from tests.models import encoders
from tests.models.heads import CASES

PAIRS = [
    pytest.param(encoder, head, id=f"{encoder.name}-{head.name}")
    for encoder, head in product(encoders.CASES, CASES)
    if not head.needs_layers or isinstance(encoder.make(), HasInnerLayers)
]
DECODERS = (CtcGreedy(), CtcBeam(), AttentionRescoring(), TransducerGreedy(), TransducerBeam())
NUM_FRAMES, TOKENS, NUM_TOKENS = torch.tensor([60, 44]), torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2])


def make(encoder, head) -> Recognizer:
    torch.manual_seed(0)
    built = encoder.make()
    norm = GlobalNorm([0.0] * encoders.NUM_FEATURES, [1.0] * encoders.NUM_FEATURES)
    recognizer = Recognizer(built, head.make(built.d_model), norm, SpecAugment(max_feature_bins=3))
    initialize(recognizer)
    return recognizer


def features() -> torch.Tensor:
    return torch.randn(2, 60, encoders.NUM_FEATURES, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("encoder", "head"), PAIRS)
def test_every_head_learns_two_utterances_with_every_encoder(encoder, head):
    recognizer = make(encoder, head)
    optimizer = torch.optim.Adam(recognizer.parameters(), lr=0.01)
    seen = []
    for _ in range(12):
        losses = recognizer.losses(features(), NUM_FRAMES, TOKENS, NUM_TOKENS, torch.Generator().manual_seed(1))
        optimizer.zero_grad()
        losses.total.sum().backward()
        optimizer.step()
        seen.append(losses.total.sum().item())
    assert losses.feasible.all()
    assert tuple(losses.parts) == recognizer.head.loss_names
    assert losses.total.dtype == torch.float32
    assert min(seen[6:]) < 0.7 * seen[0]


@pytest.mark.parametrize("head", CASES, ids=lambda head: head.name)
def test_every_parameter_of_a_head_gets_a_gradient(head):
    recognizer = make(encoders.CASES[0], head)
    recognizer.losses(features(), NUM_FRAMES, TOKENS, NUM_TOKENS).total.sum().backward()
    assert [name for name, value in recognizer.head.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("head", CASES, ids=lambda head: head.name)
def test_losses_do_not_depend_on_padding_or_on_the_rest_of_the_batch(head):
    recognizer = make(encoders.CASES[0], head).eval()
    together = recognizer.losses(features(), NUM_FRAMES, TOKENS, NUM_TOKENS)
    alone = recognizer.losses(features()[1:, :44], NUM_FRAMES[1:], TOKENS[1:, :2], NUM_TOKENS[1:])
    torch.testing.assert_close(together.total[1:], alone.total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", CASES, ids=lambda head: head.name)
def test_an_impossible_transcript_costs_nothing_and_has_no_gradient(head):
    recognizer, given = make(encoders.CASES[0], head), features().requires_grad_()
    # fewer than 7 frames of features have no encoding
    losses = recognizer.losses(given, torch.tensor([60, 6]), TOKENS, NUM_TOKENS)
    assert losses.feasible.tolist() == [True, False]
    for values in (losses.total, *losses.parts.values()):
        assert (values != 0).tolist() == [True, False]
    losses.total.sum().backward()
    assert given.grad[0].any()
    assert not given.grad[1].any()
    assert all(value.grad.isfinite().all() for value in recognizer.parameters())


@pytest.mark.parametrize("head", CASES, ids=lambda head: head.name)
def test_in_mixed_precision_losses_are_nearly_the_same(head):
    recognizer = make(encoders.CASES[0], head).eval()
    found = recognizer.losses(features(), NUM_FRAMES, TOKENS, NUM_TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = recognizer.losses(features(), NUM_FRAMES, TOKENS, NUM_TOKENS)
    torch.testing.assert_close(mixed.total, found.total, rtol=0.03, atol=0.05)


@pytest.mark.parametrize("head", CASES, ids=lambda head: head.name)
def test_every_head_has_a_decoder_whose_tokens_are_in_order(head):
    recognizer = make(encoders.CASES[0], head).eval()
    fitting = [decoder for decoder in DECODERS if isinstance(recognizer.head, decoder.needs)]
    assert fitting
    with torch.inference_mode():
        encodings, lengths = recognizer(features(), NUM_FRAMES)
        for decoder in fitting:
            for length, (best, *_) in zip(lengths.tolist(), decoder(recognizer.head, encodings, lengths), strict=True):
                assert best.frames == sorted(best.frames)
                assert all(0 <= frame < length for frame in best.frames)
                assert len(best.tokens) == len(best.frames) == len(best.log_probs)
