"""What a Zapformer does in training: limiters on every branch, in 16 bits, with silence and over time; drawn chunks."""

from __future__ import annotations

import pytest
import torch

from asr.models import devices
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from tests.models.encoders import NUM_FEATURES, make_zapformer


def hot(causal: bool) -> ZapformerEncoder:
    """Return an encoder with weights so large that all limiters act."""
    torch.manual_seed(3)
    encoder = make_zapformer(causal, chunk_size=8 if causal else -1)
    encoder.set_trained_seconds(0.0)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4.0)
    encoder.encoder_embed.noise = 0.0
    return encoder.to("cpu").train()


def gradients(encoder: ZapformerEncoder) -> dict[str, torch.Tensor]:
    encoder.zero_grad()
    features = torch.randn(5, 90, NUM_FEATURES, generator=torch.Generator().manual_seed(1))
    encodings, lengths = encoder(features, torch.tensor([90, 71, 50, 33, 12]))
    valid = torch.arange(encodings.shape[1]) < lengths.unsqueeze(1)
    (encodings.float()[valid]).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    flat = [torch.cat([x.flatten() for x in each.values()]) for each in (one, other)]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_on_the_branches_of_a_gpu_are_those_on_a_cpu(monkeypatch, causal):
    encoder = hot(causal)
    on_cpu = gradients(encoder)
    monkeypatch.setattr(devices, "on_accelerator", lambda x: True)
    assert difference(on_cpu, gradients(encoder)) < 1e-5


def test_limiters_count_a_quarter_after_2000_batches():
    encoder = hot(causal=False)
    first = gradients(encoder)
    encoder.set_trained_seconds(2001 * encoder.ref_duration_s)
    later = gradients(encoder)
    assert encoder.limiter_scale.item() == pytest.approx(0.05 / 4)
    encoder.falling.values[:] = [0.0, 0.0]
    without = gradients(encoder)
    assert difference(without, first) == pytest.approx(4 * difference(without, later), rel=0.05)
    assert difference(without, later) > 1e-4


def test_in_mixed_precision_limiters_add_nearly_the_same():
    encoder = hot(causal=False)
    exact = gradients(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = gradients(encoder)
    encoder.falling.values[:] = [0.0, 0.0]
    without = gradients(encoder)
    # large weights amplify 8 bits differently on each processor: 0.06 with AVX-512, 0.11 without
    assert difference(exact, rounded) < 0.25 * difference(exact, without)


@pytest.mark.parametrize("causal", [False, True])
def test_silence_gives_no_nan(causal):
    encoder = make_zapformer(causal)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias") or "ballast" in name:
                parameter.zero_()
    encodings, _ = encoder(torch.zeros(4, 40, NUM_FEATURES), torch.tensor([40, 30, 20, 0]))
    encodings.sum().backward()
    assert encodings.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


def test_training_draws_chunks_from_torchs_generator_and_evaluation_has_the_first():
    encoder = make_zapformer(causal=True)
    encoder.sampler.chunk_size = [8, 4, -1]
    drawn = []
    for seed in range(12):
        torch.manual_seed(seed)
        encoder.begin_pass(torch.device("cpu"))
        drawn.append(encoder.chunks and encoder.chunks.size)
    assert set(drawn) == {8, 4, None}
    assert encoder.sampler.first().size == 8
