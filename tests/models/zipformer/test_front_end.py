"""What the Zipformer's front end computes in blocks and in place, against the same in PyTorch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck

from asr.models.encoders.zipformer.scaling import SWOOSH_L, SWOOSH_R, Balancer, Mlp
from asr.models.encoders.zipformer.schedules import BatchCount
from asr.models.kernels import DepthwiseConv2d

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("asr.models.kernels.BLOCK_ELEMENTS", 24)
    torch.manual_seed(0)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("balances", [False, True])
def test_an_mlp_in_blocks_is_its_parts_one_after_the_other(masks, balances):
    hidden, output = nn.Linear(3, 6), nn.Linear(6, 2)
    mask = torch.tensor([1.0, 0.0] * 5 + [1.0]).unsqueeze(1) if masks else None
    # out of bounds in both ways, and always at work
    batch_count = BatchCount()
    balancer = Balancer(batch_count, 0.7, 0.8, 2.0, 3.0, probability=1.0 if balances else 0.0).train()
    batch_count.begin_pass(torch.device("cpu"))
    x, d_y = torch.randn(11, 3, requires_grad=True), torch.randn(11, 2)
    inputs = x, *hidden.parameters(), *output.parameters()
    expected = output(SWOOSH_L(balancer(hidden(x)))) * (1.0 if mask is None else mask)
    found = Mlp.apply(*inputs, mask, SWOOSH_L, balancer.active_bounds(True))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, d_y), torch.autograd.grad(expected, inputs, d_y))


def test_an_mlp_under_autocast_computes_again_what_it_computed():
    hidden, output = nn.Linear(3, 6).float(), nn.Linear(6, 2).float()
    x, d_y = torch.randn(11, 3).float().requires_grad_(), torch.randn(11, 2).bfloat16()
    inputs = x, *hidden.parameters(), *output.parameters()
    with torch.autocast("cpu", torch.bfloat16):
        found = Mlp.apply(*inputs, None, SWOOSH_L, None)
        expected = output(SWOOSH_L(hidden(x)))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    pairs = zip(torch.autograd.grad(found, inputs, d_y), torch.autograd.grad(expected, inputs, d_y), strict=True)
    for gradient, wanted in pairs:
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("pad_time", [True, False])
def test_a_depthwise_convolution_adds_up_the_gradients_of_itself_and_of_the_residual(pad_time):
    convolution = DepthwiseConv2d(2, 3)
    x = torch.randn(2, 4, 5, 2, requires_grad=True)
    convolved, residual = convolution(x, pad_time)
    padding = (1 if pad_time else 0, 1)
    expected = F.conv2d(x.permute(0, 3, 1, 2), convolution.weight, convolution.bias, padding=padding, groups=2)
    torch.testing.assert_close(convolved, expected.permute(0, 2, 3, 1))
    assert torch.equal(residual, x)
    assert gradcheck(lambda x, *_: convolution(x, pad_time), (x, *convolution.parameters()))


def test_a_swoosh_is_zero_and_has_no_gradient_where_it_is_told():
    x = torch.randn(3, 4, 5, requires_grad=True)
    zero = torch.arange(4)[:, None] >= torch.tensor([4, 2, 0])[:, None, None]
    y = SWOOSH_R(x, zero)
    assert torch.equal(y, SWOOSH_R(x).masked_fill(zero, 0.0))
    assert gradcheck(lambda x: SWOOSH_R(x, zero), x)
