import torch
import torch.nn.functional as F

from asr.models.encoders.conformer import ConformerLayer, ConvolutionModule
from asr.models.encoders.transformer import RotaryPositions


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_convolution_is_its_definition_and_ends_at_valid_frames():
    torch.manual_seed(0)
    module, x, num_frames = ConvolutionModule(6, kernel_width=5).double(), noise(2, 9, 6), [9, 4]
    valid = torch.arange(9) < torch.tensor(num_frames)[:, None]
    found = module(x, valid.unsqueeze(2))
    kernel, bias = module.convolution.weight[:, 0], module.convolution.bias
    for row, length in enumerate(num_frames):
        linear, gate = module.gate(x[row]).chunk(2, dim=1)
        gated = linear * torch.sigmoid(gate)
        for frame in range(length):
            near = [(tap, frame + tap - 2) for tap in range(5) if 0 <= frame + tap - 2 < length]
            convolved = bias + sum(kernel[:, tap] * gated[place] for tap, place in near)
            normed = F.layer_norm(convolved, (6,), module.norm.weight, module.norm.bias)
            torch.testing.assert_close(found[row, frame], module.output(normed * torch.sigmoid(normed)))


def test_a_layer_is_the_equations_of_its_paper():
    torch.manual_seed(0)
    layer = ConformerLayer(8, num_heads=2, d_feedforward=12, kernel_width=3, dropout=0.1).double().eval()
    x, positions, mask = noise(1, 7, 8), RotaryPositions(4)(7), torch.ones(1, 1, 1, 7, dtype=torch.bool)
    found = layer(x, mask, positions)
    for feedforward in layer.first_feedforward, layer.second_feedforward:
        assert any(isinstance(module, torch.nn.SiLU) for module in feedforward)
    x = x + layer.first_feedforward(layer.first_norm(x)) / 2
    x = x + layer.attention(layer.attention_norm(x), mask, positions)
    x = x + layer.convolution(layer.convolution_norm(x), mask[:, 0, 0, :, None])
    x = x + layer.second_feedforward(layer.second_norm(x)) / 2
    torch.testing.assert_close(found, layer.norm(x))
    # all that is added is dropped out
    layer.train().dropout.p = 1.0
    torch.testing.assert_close(layer(x, mask, positions), layer.norm(x))
