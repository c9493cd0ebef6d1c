"""Parts of the Zipformer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck

from asr.models.encoders.zipformer import scaling
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.encoders.zipformer.modules import Chunks, attend, attention_weights
from asr.models.encoders.zipformer.scaling import SWOOSH_L, SWOOSH_R, ActivationDropoutAndLinear, BiasNorm
from tests.models.encoders import make_zipformer
from tests.models.zipformer.sizes import SMALL

pytestmark = pytest.mark.usefixtures("double")


def test_training_fails_where_nobody_has_said_how_far_it_is():
    encoder = ZipformerEncoder(80, **SMALL)
    with pytest.raises(RuntimeError, match="set_trained_seconds"):
        encoder(torch.randn(1, 50, 80), torch.tensor([50]))
    encoder.set_trained_seconds(audio_s=1200.0)
    assert encoder.batch_count.num_batches == 2.0
    encoder(torch.randn(1, 50, 80), torch.tensor([50]))


@pytest.mark.parametrize("swoosh", [SWOOSH_L, SWOOSH_R])
def test_a_swoosh_is_its_formula_also_far_from_zero(swoosh):
    x = torch.tensor([-1e4, -50.0, -1.0, 0.0, 1.0, 4.0, 50.0, 1e4], requires_grad=True)
    expected = torch.logaddexp(torch.zeros(()), x - swoosh.shift) - 0.08 * x - swoosh.offset
    torch.testing.assert_close(swoosh(x), expected, rtol=1e-12, atol=1e-12)
    assert gradcheck(swoosh, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_value_of_a_swoosh_that_is_computed_again_is_the_value(dtype):
    x = torch.linspace(-60, 300, 1000).to(dtype)
    expected = torch.logaddexp(torch.zeros(()), x.double() - 4.0) - 0.08 * x.double() - 0.035
    tolerance = 4 * torch.finfo(dtype).eps
    for value in (SWOOSH_L.value(x), SWOOSH_L.value_and_slope(x)[0]):
        torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=tolerance)


def test_gradients_written_by_hand_are_those_of_the_functions():
    torch.manual_seed(0)
    linear = ActivationDropoutAndLinear(5, 3, SWOOSH_L, scale=1.0).eval()
    assert gradcheck(lambda x, *_: linear(x), (torch.randn(2, 4, 5, requires_grad=True), *linear.parameters()))
    norm = BiasNorm(5).eval()
    torch.nn.init.normal_(norm.bias)
    assert gradcheck(lambda x, *_: norm(x), (torch.randn(2, 4, 5, requires_grad=True), *norm.parameters()))


def test_attention_is_a_softmax_over_what_may_be_seen_and_used_by_several(monkeypatch):
    monkeypatch.setattr("asr.models.kernels.BLOCK_ELEMENTS", 40)
    torch.manual_seed(0)
    shapes = (3, 2, 4, 5), (3, 2, 6, 5), (3, 2, 4, 2), (2, 2, 9), (3, 2, 6, 3), (3, 1, 6, 2)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    attn_mask = torch.where(torch.arange(6) >= torch.tensor([6, 3, 0])[:, None, None, None], -1000.0, 0.0)

    def attended(query, key, pos_query, pos, values, first_values):
        weights = attention_weights(query, key, pos_query, pos, attn_mask, None)
        return attend(weights, values), attend(weights, first_values), attend(weights, values**2)

    query, key, pos_query, pos, values, first_values = inputs
    scores = query @ key.mT + attn_mask
    # source 2 is at the target 0: targets are the last of the sources
    places = [pos_query[:, :, t, None] @ pos[..., 3 - t : 9 - t] for t in range(4)]
    expected = (scores + torch.cat(places, dim=2)).softmax(dim=-1)
    everything, first, squares = attended(*inputs)
    torch.testing.assert_close(everything, expected @ values)
    torch.testing.assert_close(first, expected[:, :1] @ first_values)
    torch.testing.assert_close(squares, expected @ values**2)
    assert gradcheck(attended, inputs, fast_mode=True)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_backward_pass_that_stopped_short_or_went_another_way_leaves_nothing_behind(first):
    torch.manual_seed(0)
    query, key, *values = (torch.randn(2, 2, 4, 3, requires_grad=True) for _ in range(5))
    weights = attention_weights(query, key, query.detach(), torch.zeros(2, 3, 7), torch.zeros(2, 1, 1, 4), None)
    attended = [attend(weights, each) for each in values]
    expected = [(query @ key.mT).softmax(dim=-1) @ each for each in values]

    def gradients(outputs, chosen):
        return torch.autograd.grad(sum(outputs[i].square().sum() for i in chosen), [query, key], retain_graph=True)

    torch.autograd.grad(attended[first].square().sum(), [values[first]], retain_graph=True)
    for chosen in ((1, 2), (0,), (0, 1, 2)):
        torch.testing.assert_close(gradients(attended, chosen), gradients(expected, chosen))


def test_what_all_values_have_in_common_does_not_drown_the_gradient_of_attention():
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 6, 5), torch.randn(1, 1, 6, 5)
    values = (1e5 + torch.randn(1, 1, 6, 3)).float()
    d_attended, gradients = torch.randn(1, 1, 6, 3), []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (query, key)]
        pos, attn_mask = torch.zeros(1, 5, 11, dtype=dtype), torch.zeros(1, 1, 1, 6, dtype=dtype)
        weights = attention_weights(*inputs, inputs[0].detach(), pos, attn_mask, None)
        attend(weights, values.to(dtype)).backward(d_attended.to(dtype))
        gradients.append(inputs[0].grad.double())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_frames_of_a_chunk_see_no_further_than_its_end_and_its_left_context():
    chunks = Chunks(size=4, left_context=1, smallest=4)
    hidden = chunks.downsampled(2).hidden(6, torch.device("cpu"))
    assert torch.equal(hidden, chunks.hidden(12, torch.device("cpu"))[::2, ::2])
    assert (~hidden).int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]


def test_a_causal_encoder_does_not_see_beyond_the_chunk():
    encoder = make_zipformer(causal=True, chunk_size=8).eval()
    features = torch.randn(1, 103, 16)
    num_frames = torch.tensor([103])
    whole, _ = encoder(features, num_frames)
    # frame 15 at 50 Hz ends the second chunk; the front end sees 3 frames ahead, and 9 features for one of its own
    features[:, 2 * (15 + 3) + 9 :] = 100.0
    changed, _ = encoder(features, num_frames)
    torch.testing.assert_close(changed[:, :8], whole[:, :8])
    assert not torch.allclose(changed[:, 8:], whole[:, 8:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chunk_size": [18]}, "chunk_size"),
        ({"downsampling_factor": [1, 3, 1], "chunk_size": [9]}, "chunk_size"),
        ({"cnn_module_kernel": [15, 8, 15]}, "kernel"),
        ({"encoder_dim": [24, 32]}, "zip"),
    ],
)
def test_stacks_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        ZipformerEncoder(80, **{**SMALL, "causal": True, **options})
    ZipformerEncoder(80, **{**SMALL, "downsampling_factor": [1, 3, 1]}, causal=False)


def test_balancing_and_whitening_can_be_left_out(monkeypatch):

    calls = []
    monkeypatch.setattr(scaling, "draw", lambda: 0.01)
    monkeypatch.setattr(scaling._Balanced, "apply", lambda x, *_: calls.append("balance") or x)
    monkeypatch.setattr(scaling._Whitened, "apply", lambda x, *_: calls.append("whiten") or x)
    for balance, whitens in ((False, False), (True, False), (False, True)):
        encoder = ZipformerEncoder(80, **SMALL, balance=balance, whiten=whitens)
        encoder.set_trained_seconds(0.0)
        encoder(torch.randn(1, 50, 80), torch.tensor([50]))
        assert set(calls) == {name for name, given in (("balance", balance), ("whiten", whitens)) if given}
        calls.clear()


def test_an_encoder_and_each_of_its_parts_can_be_copied():
    encoder = ZipformerEncoder(80, **SMALL)
    for part in encoder.modules():
        assert copy.deepcopy(part).state_dict().keys() == part.state_dict().keys()
