import re
from pathlib import Path

import pytest
import torch
import yaml

from asr.features.log_mel import GlobalNorm
from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer
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
        if isinstance(encoder, TransformerEncoder):
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


LAYERED = [case for case in CASES if isinstance(case.make(), TransformerEncoder)]


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
