"""The same weights and the same input give what the authors' package gives, outputs and gradients."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.icefall_weights import convert_encoder
from tests.models.zipformer.reference import Reference
from tests.models.zipformer.sizes import SMALL, WAVE, S

NEVER, ALWAYS = 0.999999, 0.0
CONTEXT = 64
NOT_CAUSAL, UNCHUNKED, CHUNK = 0, -1, 16
CASES = [
    pytest.param(SMALL, NOT_CAUSAL, id="small"),
    pytest.param(SMALL, CHUNK, id="small-causal"),
    pytest.param(SMALL, UNCHUNKED, id="small-causal-unchunked"),
    pytest.param(WAVE, NOT_CAUSAL, id="wave"),
    pytest.param(WAVE, CHUNK, id="wave-causal"),
    pytest.param(S, NOT_CAUSAL, id="S"),
    pytest.param(S, CHUNK, id="S-causal"),
]


def pair(authors, sizes, chunk: int) -> tuple[Reference, ZipformerEncoder]:
    """Return theirs and ours with the same weights, all of which matter."""
    torch.manual_seed(0)
    causal = chunk != NOT_CAUSAL
    theirs = Reference(authors, sizes, causal, chunk if causal else -1, CONTEXT)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.01 + 0.3 * parameter.abs().mean()))
    ours = ZipformerEncoder(80, **sizes, causal=causal, chunk_size=[chunk or -1], left_context_frames=[CONTEXT])
    ours.load_state_dict(convert_encoder(theirs.state_dict(), ours.state_dict()).weights)
    return theirs, ours


def backward(encoder, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return encodings and the features' gradient of a loss with random weights."""
    features = features.clone().requires_grad_()
    torch.manual_seed(1)
    encodings, _ = encoder(features, num_frames)
    torch.manual_seed(2)
    (encodings * torch.randn(encodings.shape)).sum().backward()
    return encodings.detach(), features.grad


def check_gradients(theirs: Reference, ours: ZipformerEncoder, tolerance: float) -> None:
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}
    expected = convert_encoder(gradients, ours.state_dict()).weights
    for name, parameter in ours.named_parameters():
        error = (parameter.grad - expected[name]).norm()
        assert error <= tolerance * expected[name].norm() + 1e-12, name


@pytest.mark.parametrize(("sizes", "chunk"), CASES)
def test_a_padded_batch_is_encoded_as_the_authors_encode_each_utterance_alone(authors, decide, sizes, chunk):
    decide(NEVER)
    theirs, ours = (encoder.eval() for encoder in pair(authors, sizes, chunk))
    # the authors shorten the chunks of an utterance that is shorter than one
    lengths = torch.tensor([203, 130, 50 if chunk else 9])
    features = torch.randn(3, 203, 80)
    with torch.no_grad():
        encodings, num_frames = ours(features, lengths)
        for i, length in enumerate(lengths):
            expected, expected_length = theirs(features[i : i + 1, :length], lengths[i : i + 1])
            assert num_frames[i] == expected_length
            torch.testing.assert_close(encodings[i, : num_frames[i]], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sizes", "chunk"), CASES)
def test_gradients_are_the_authors(authors, decide, double, sizes, chunk):
    decide(NEVER)
    theirs, ours = (encoder.eval() for encoder in pair(authors, sizes, chunk))
    features, num_frames = torch.randn(2, 101, 80), torch.tensor([101, 101])
    expected, expected_gradient = backward(theirs, features, num_frames)
    encodings, gradient = backward(ours, features, num_frames)
    torch.testing.assert_close(encodings, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9)
    check_gradients(theirs, ours, 1e-7)


@pytest.fixture
def same_masks(monkeypatch):
    """Let a mask depend on its utterance and on whether its channel is even: the authors draw in another order."""
    by_utterance = torch.tensor([[0.2, 0.9], [0.04, 0.5], [0.9, 0.1]])

    def rand(*shape, device=None, **options) -> torch.Tensor:
        sizes = tuple(shape[0]) if isinstance(shape[0], tuple | list | torch.Size) else shape
        place = [1] * len(sizes)
        place[sizes.index(len(by_utterance))] = len(by_utterance)
        parity = torch.arange(sizes[-1]) % 2 if place[-1] == 1 else torch.zeros(1, dtype=torch.int64)
        numbers = by_utterance[:, parity].to(torch.get_default_dtype())
        return numbers.view(*place[:-1], -1).expand(sizes) if place[-1] == 1 else numbers[:, 0].expand(sizes)

    def dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
        kept = torch.randint(100, (x.numel(),), generator=torch.Generator().manual_seed(7)) >= 100 * p
        return x * kept.view(x.shape) / (1 - p) if training else x

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)


@pytest.mark.parametrize("number", [NEVER, ALWAYS], ids=["seldom", "often"])
@pytest.mark.parametrize(("sizes", "chunk"), CASES[:5])
def test_training_is_the_authors_with_all_that_is_random_and_scheduled(
    authors, decide, double, same_masks, sizes, chunk, number
):
    """Dropout, skipped modules and layers, masked channels, balancers, whitening and limits."""
    decide(number)
    theirs, ours = (encoder.train() for encoder in pair(authors, sizes, chunk))
    theirs.set_time(2000.0)
    ours.set_trained_seconds(audio_s=1_200_000.0)
    features, num_frames = torch.randn(3, 131, 80), torch.tensor([131, 131, 131])
    expected, expected_gradient = backward(theirs, features, num_frames)
    encodings, gradient = backward(ours, features, num_frames)
    torch.testing.assert_close(encodings, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-8)
    check_gradients(theirs, ours, 1e-6)
