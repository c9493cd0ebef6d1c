import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from asr.models import devices
from asr.models.kernels import depthwise_conv1d


@pytest.mark.parametrize("on_accelerator", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 4])
def test_a_depthwise_convolution_is_a_convolution_in_as_many_groups(monkeypatch, padding, on_accelerator):
    monkeypatch.setattr(devices, "on_accelerator", lambda x: on_accelerator)
    torch.manual_seed(0)
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 9, 3), (3, 1, 5), (3,))]
    x, weight, bias = inputs
    expected = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, groups=3).transpose(1, 2)
    torch.testing.assert_close(depthwise_conv1d(x, weight, bias, padding), expected)
    assert gradcheck(lambda *args: depthwise_conv1d(*args, padding), inputs)
