"""Contracts of all encoders, and what only one of them does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch.autograd import gradcheck

from asr.features.log_mel import GlobalNorm
from asr.models import devices
from asr.models.encoders.conformer import ConformerEncoder, ConformerLayer, ConvolutionModule
from asr.models.encoders.transformer import RotaryPositions, SelfAttention, TransformerEncoder, TransformerLayer, rotate
from asr.models.heads.ctc import CtcHead
from asr.models.kernels import depthwise_conv1d
from asr.models.recognizer import HasInnerLayers, Recognizer
from tests.models.encoders import CASES, NUM_FEATURES, EncoderCase, middle_of_what_is_seen

NO_DECAY = Path(__file__).parents[2] / "configs" / "parameter_rules" / "no_decay.yaml"


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request) -> EncoderCase:
    torch.manual_seed(0)
    return request.param


def batch_of(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    utterances = [torch.randn(length, NUM_FEATURES, generator=generator) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(utterances, batch_first=True), torch.tensor(lengths)


def test_padding_may_hold_anything(case):
    encoder = case.make().eval()
    features, lengths = batch_of(61, 38)
    padded = features.clone()
    padded[1, 38:] = 1e3
    clean, num_frames = encoder(features, lengths)
    dirty, _ = encoder(padded, lengths)
    for index, frames in enumerate(num_frames):
        torch.testing.assert_close(dirty[index, :frames], clean[index, :frames], rtol=1e-5, atol=1e-5)


def test_an_utterance_alone_and_in_a_batch_is_encoded_alike(case):
    encoder = case.make().eval()
    features, lengths = batch_of(80, 50, 23)
    together, num_frames = encoder(features, lengths)
    for index, length in enumerate(lengths):
        alone, frames = encoder(features[index : index + 1, :length], lengths[index : index + 1])
        assert frames[0] == num_frames[index]
        torch.testing.assert_close(together[index, : frames[0]], alone[0, : frames[0]], rtol=1e-5, atol=1e-5)


def test_output_lengths_are_as_announced(case):
    encoder = case.make().eval()
    for length in range(case.min_frames, case.min_frames + 40):
        features, lengths = batch_of(length)
        encodings, num_frames = encoder(features, lengths)
        assert encodings.shape == (1, int(num_frames[0]), encoder.d_model)
        assert encoder.output_frames(lengths).tolist() == num_frames.tolist()


def test_an_encoding_is_in_the_middle_of_what_its_front_end_sees(case):
    encoder = case.make().eval()
    features, lengths = batch_of(80)

    def front_end(features: torch.Tensor) -> torch.Tensor:
        if hasattr(encoder, "subsampling"):
            return encoder.subsampling(features, lengths)[0]
        image, _ = encoder.encoder_embed._image(features, lengths)  # the ConvNeXt layer sees as much on both sides
        return image.flatten(2)[:, :20].unflatten(1, (-1, 2)).sum(dim=2)

    middle = middle_of_what_is_seen(front_end, features, number=5)
    recognizer = Recognizer(encoder, CtcHead(encoder.d_model, 4), GlobalNorm([0.0] * 2, [1.0] * 2))
    assert middle == recognizer.center_frames + 5 * encoder.subsampling_factor


def test_utterances_too_short_to_subsample_leave_nothing_and_spoil_nothing(case):
    encoder = case.make().eval()
    features, lengths = batch_of(40, 1, case.min_frames - 1)
    encodings, num_frames = encoder(features, lengths)
    assert num_frames[1:].tolist() == [0, 0]
    assert encodings.isfinite().all()
    only_short, num_frames = encoder(*batch_of(1))
    assert num_frames.tolist() == [0]
    assert only_short.isfinite().all()


def test_every_parameter_gets_a_gradient_and_padding_none(case):
    encoder = case.make()
    features, lengths = batch_of(60, 30)
    features.requires_grad_()
    encodings, num_frames = encoder(features, lengths)
    mask = torch.arange(encodings.shape[1]) < num_frames[:, None]
    encodings[mask].square().sum().backward()
    assert [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert features.grad is not None
    assert not features.grad[1, 30:].any()


def test_in_mixed_precision_encodings_and_gradients_are_nearly_the_same(case):
    encoder, gradients = case.make().eval(), []
    features, lengths = batch_of(61, 38)
    encodings, num_frames = encoder(features, lengths)
    weights = torch.randn_like(encodings) * (torch.arange(encodings.shape[1]) < num_frames[:, None]).unsqueeze(2)
    for enabled in (False, True):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            encodings, _ = encoder(features, lengths)
        (encodings.float() * weights).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters()]))
    assert (gradients[1] - gradients[0]).norm() < 0.03 * gradients[0].norm()


def test_weight_decay_spares_all_parameters_of_one_dimension_and_corrections_that_begin_at_zero(case):
    pattern = yaml.safe_load(NO_DECAY.read_text())["rules"][0]["pattern"]
    for name, parameter in case.make().named_parameters():
        assert bool(re.search(pattern, name)) == (parameter.dim() < 2 or not parameter.any()), name


LAYERED = [case for case in CASES if isinstance(case.make(), HasInnerLayers)]


@pytest.mark.parametrize("case", LAYERED, ids=lambda case: case.name)
def test_an_inner_layer_returns_what_an_encoder_without_the_later_layers_returns(case):
    torch.manual_seed(0)
    encoder = case.make().eval()
    features, lengths = batch_of(61, 38)
    (inner, last), num_frames = encoder.encode_layers(features, lengths, [1])
    whole, whole_frames = encoder(features, lengths)
    assert torch.equal(last, whole)
    assert torch.equal(num_frames, whole_frames)
    encoder.layers, encoder.num_layers = encoder.layers[:1], 1
    assert torch.equal(inner, encoder(features, lengths)[0])


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="d_model"):
        TransformerEncoder(16, d_model=25, num_layers=2, num_heads=3, d_feedforward=32)
    with pytest.raises(ValueError, match="kernel_width"):
        ConformerEncoder(16, d_model=24, num_layers=2, num_heads=3, d_feedforward=32, kernel_width=4)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_attention_is_a_softmax_over_valid_frames_in_each_head():
    torch.manual_seed(0)
    module, x, positions = SelfAttention(12, num_heads=3, dropout=0.5).eval(), noise(2, 6, 12), RotaryPositions(4)(6)
    valid = torch.arange(6) < torch.tensor([6, 4])[:, None]
    found = module(x, valid[:, None, None], positions)
    for row, length in enumerate([6, 4]):
        angles = [angle[:length] for angle in positions]
        query, key, value = (
            part.view(length, 3, 4).transpose(0, 1) for part in module.query_key_value(x[row, :length]).chunk(3, dim=1)
        )
        scores = rotate(query, *angles) @ rotate(key, *angles).mT / 4**0.5
        attended = (scores.softmax(dim=2) @ value).transpose(0, 1).flatten(1)
        torch.testing.assert_close(found[row, :length], module.output(attended))


def test_a_layer_adds_what_its_modules_make_of_normed_input():
    torch.manual_seed(0)
    layer = TransformerLayer(8, num_heads=2, d_feedforward=12, dropout=0.1).eval()
    x, positions, mask = noise(1, 7, 8), RotaryPositions(4)(7), torch.ones(1, 1, 1, 7, dtype=torch.bool)
    attended = x + layer.attention(layer.attention_norm(x), mask, positions)
    expected = attended + layer.feedforward(layer.feedforward_norm(attended))
    torch.testing.assert_close(layer(x, mask, positions), expected)
    # all that is added is dropped out
    layer.train().dropout.p = 1.0
    assert torch.equal(layer(x, mask, positions), x)


def test_the_convolution_is_its_definition_and_ends_at_valid_frames():
    torch.manual_seed(0)
    module, x, num_frames = ConvolutionModule(6, kernel_width=5).double(), noise(2, 9, 6).double(), [9, 4]
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
    x, positions, mask = noise(1, 7, 8).double(), RotaryPositions(4)(7), torch.ones(1, 1, 1, 7, dtype=torch.bool)
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


def test_pairs_of_channels_turn_with_the_frame_index_at_rates_of_their_own():
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    found = torch.complex(*rotate(x, *RotaryPositions(8)(5)).chunk(2, dim=-1))
    for frame in range(5):
        for pair in range(4):
            turn = torch.exp(torch.tensor(1j * frame * 10_000 ** (-2 * pair / 8)))
            before = torch.complex(x[:, :, frame, pair], x[:, :, frame, pair + 4])
            torch.testing.assert_close(found[:, :, frame, pair], before * turn)


def test_what_a_frame_is_to_another_depends_on_their_distance_alone():
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 9, 8)
    positions = RotaryPositions(8)(9)
    scores = (rotate(query, *positions) @ rotate(key, *positions).mT)[0, 0]
    torch.testing.assert_close(scores[:-1, :-1], scores[1:, 1:])
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-3


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
