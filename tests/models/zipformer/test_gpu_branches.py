"""What is computed otherwise on a GPU, computed so on a CPU: the same outputs and gradients up to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from asr.models import devices, kernels
from asr.models.encoders.zipformer import scaling
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.encoders.zipformer.modules import SignPenalty, attend, attention_weights
from asr.models.encoders.zipformer.scaling import (
    OFTEN,
    SELDOM,
    SWOOSH_L,
    ActivationDropoutAndLinear,
    Balancer,
    BatchCount,
    Mlp,
    Whiten,
)
from tests.models.zipformer.sizes import WAVE

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that lets CPU tensors take the branches of a GPU from now on."""
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 24)  # till then

    return lambda: monkeypatch.setattr(devices, "on_accelerator", lambda x: True)


def swoosh_alone() -> tuple[Tensor, list[Tensor]]:
    x = torch.randn(7, 4, 6, requires_grad=True)
    return SWOOSH_L(x, torch.rand(7, 4, 1) < 0.3), [x]


def swoosh_dropout_linear() -> tuple[Tensor, list[Tensor]]:
    linear = ActivationDropoutAndLinear(6, 3, SWOOSH_L, scale=1.0)
    x = torch.randn(7, 4, 6, requires_grad=True)
    return linear(x, (torch.rand(7, 1, 6) > 0.4) / 0.6), [x, *linear.parameters()]


def balancing() -> tuple[Tensor, list[Tensor]]:
    x = torch.randn(7, 4, 6, requires_grad=True)
    balancer = Balancer(BatchCount(), 0.7, 0.8, 2.0, 3.0, probability=1.0)
    balancer.batch_count.begin_pass(x.device)
    return balancer(x) * 1.0, [x]


def wide_mlp() -> tuple[Tensor, list[Tensor]]:
    hidden, output = nn.Linear(3, 6), nn.Linear(6, 2)
    inputs = [torch.randn(11, 3, requires_grad=True), *hidden.parameters(), *output.parameters()]
    mask, bounds = (torch.rand(11, 1) > 0.3).double(), torch.tensor([0.5, 0.8, 2.0, 3.0])
    return Mlp.apply(*inputs, mask, SWOOSH_L, bounds), inputs


def attention() -> tuple[Tensor, list[Tensor]]:
    shapes = (3, 2, 4, 5), (3, 2, 6, 5), (3, 2, 4, 2), (2, 2, 9), (3, 2, 6, 3)
    query, key, pos_query, pos, values = inputs = [(3 * torch.randn(shape)).requires_grad_() for shape in shapes]
    attn_mask = torch.where(torch.rand(3, 1, 4, 6) < 0.3, -1000.0, 0.0)
    return attend(attention_weights(query, key, pos_query, pos, attn_mask, SignPenalty()), values), inputs


def result(kernel) -> list[Tensor]:
    torch.manual_seed(0)
    y, inputs = kernel()
    return [y.detach(), *torch.autograd.grad(y, inputs, torch.randn_like(y))]


@pytest.mark.parametrize("kernel", [swoosh_alone, swoosh_dropout_linear, balancing, wide_mlp, attention])
def test_a_kernel_in_one_block_is_the_kernel_in_many(gpu, kernel):
    expected = result(kernel)
    gpu()
    for found, wanted in zip(result(kernel), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("drawn", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("limit", [1.2, 50.0])
@pytest.mark.parametrize("probability", [SELDOM, OFTEN])
def test_whitening_that_does_not_wait_for_the_device_is_whitening_that_does(
    monkeypatch, gpu, probability, limit, drawn
):
    monkeypatch.setattr(scaling, "draw", lambda: drawn)
    torch.manual_seed(0)
    x, gradient = torch.randn(3, 40, 8) @ torch.randn(8, 8) + 5.0, torch.randn(3, 40, 8)
    found = []
    for switch in (lambda: None, gpu):
        switch()
        module, leaf = Whiten(BatchCount(), limit, gradient_scale=0.02, num_groups=2), x.clone().requires_grad_()
        module.batch_count.begin_pass(x.device)
        module.probability.fill_(probability)
        module(leaf).backward(gradient)
        found.append((leaf.grad, module.probability))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-12, atol=1e-14)
    assert torch.equal(found[1][1], found[0][1])


def test_passes_with_any_size_of_chunks_are_the_same_code_on_a_gpu_and_read_it_from_one_place(gpu):
    gpu()
    encoder = ZipformerEncoder(80, **WAVE, causal=True, chunk_size=[32, 16], left_context_frames=[64, -1]).train()
    encoder.set_trained_seconds(1e6)
    keys, sizes, places = set(), set(), set()
    for seed in range(40):
        torch.manual_seed(seed)
        keys.add(encoder.begin_pass(torch.device("cpu"))[0])
        sizes.add(int(encoder.chunks.size))
        places.add(encoder.chunks.size.data_ptr())
    assert (len(keys), sizes, len(places)) == (1, {16, 32}, 1)


@pytest.mark.parametrize("drawn", [0.01, 0.5])
@pytest.mark.parametrize("causal", [False, True])
def test_training_an_encoder_on_all_branches_of_a_gpu_is_training_it_on_those_of_a_cpu(monkeypatch, gpu, causal, drawn):
    monkeypatch.setattr(scaling, "draw", lambda: drawn)
    torch.manual_seed(0)
    encoder = ZipformerEncoder(80, **WAVE, causal=causal, chunk_size=[32, 16], left_context_frames=[64, -1]).train()
    encoder.set_trained_seconds(1e6)
    probabilities = {name: value.clone() for name, value in encoder.named_buffers()}
    features, num_frames, found = torch.randn(3, 101, 80), torch.tensor([101, 80, 9]), []
    for switch in (lambda: None, gpu):
        switch()
        encoder.load_state_dict(probabilities, strict=False)
        encoder.zero_grad()
        torch.manual_seed(1)
        encodings, _ = encoder(features, num_frames)
        encodings.square().sum().backward()
        gradients = [parameter.grad.flatten() for parameter in encoder.parameters()]
        left = {name: value.clone() for name, value in encoder.named_buffers()}
        found.append((encodings.detach(), torch.cat(gradients), left))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-10, atol=1e-11)
    assert (found[1][1] - found[0][1]).norm() < 1e-10 * found[0][1].norm()
    assert found[1][2] == found[0][2]
    assert (found[0][2] != probabilities) == (drawn < SELDOM)
