"""Parts of the Zipformer: as they are defined, as the authors' package computes them, and as a GPU does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck

from asr.models import devices, kernels
from asr.models.encoders.streaming import Chunks
from asr.models.encoders.zipformer import scaling, schedules
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.encoders.zipformer.modules import SignPenalty, attend, attention_weights
from asr.models.encoders.zipformer.scaling import (
    OFTEN,
    SELDOM,
    SWOOSH_L,
    SWOOSH_R,
    ActivationDropoutAndLinear,
    Balancer,
    BiasNorm,
    Whiten,
    limit_param_value,
)
from asr.models.encoders.zipformer.schedules import BatchCount
from tests.models.encoders import make_zipformer
from tests.models.zipformer.sizes import SMALL, WAVE

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
    monkeypatch.setattr(schedules, "draw", lambda: 0.01)
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


def changed_gradient(module, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    if hasattr(module, "batch_count"):
        module.batch_count.begin_pass(x.device)
    y = module(x)
    assert torch.equal(y, x)
    y.backward(gradient)
    assert x.grad is not None
    return x.grad


def channels(num_frames: int = 50) -> torch.Tensor:
    """Return (2, T, 6): well inside, too large, too small, mean too high, mean too low and large, constant."""
    torch.manual_seed(0)
    x = torch.randn(2, num_frames, 6)
    x[..., 5] = 0.0
    scale, shift = torch.tensor([1.0, 9.0, 0.01, 1.0, 20.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 2.0, -60.0, 3.0])
    return x * scale + shift


def test_a_balancer_is_the_authors(authors, decide):
    decide(0.0)
    limits = {"min_positive": 0.3, "max_positive": 0.7, "min_abs": 0.2, "max_abs": 4.0}
    ours = Balancer(BatchCount(), **limits, probability=1.0)
    theirs = authors.scaling.Balancer(6, channel_dim=-1, **limits, prob=1.0)
    x, gradient = channels(), torch.randn(2, 50, 6)
    expected = changed_gradient(theirs, x, gradient)
    torch.testing.assert_close(changed_gradient(ours, x, gradient), expected, rtol=1e-9, atol=1e-12)


def test_a_balancer_works_as_often_as_it_should_and_never_outside_of_training():
    torch.manual_seed(0)
    balancer = Balancer(BatchCount(), 0.3, 0.7, 0.2, 4.0, probability=0.3)
    x, gradient = channels(5), torch.ones(2, 5, 6)

    def changes() -> bool:
        return not torch.equal(changed_gradient(balancer, x, gradient), gradient)

    assert 60 < sum(changes() for _ in range(300)) < 120
    balancer.eval()
    assert not any(changes() for _ in range(20))


def mixed(num_channels: int = 8) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 40, num_channels) @ torch.randn(num_channels, num_channels) + 5.0


@pytest.mark.parametrize("limit", [1.2, 50.0])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_whitening_is_the_authors(authors, decide, num_groups, limit):
    decide(0.0)
    ours = Whiten(BatchCount(), limit, gradient_scale=0.02, num_groups=num_groups)
    theirs = authors.scaling.Whiten(num_groups, limit, prob=(0.025, 0.25), grad_scale=0.02)
    x, gradient = mixed(), torch.randn(3, 40, 8)
    expected = changed_gradient(theirs, x, gradient)
    torch.testing.assert_close(changed_gradient(ours, x, gradient), expected, rtol=1e-9, atol=1e-12)
    assert ours.probability.item() == theirs.prob


def test_whitening_is_seldom_while_its_limit_holds_and_that_is_saved(monkeypatch):
    monkeypatch.setattr(schedules, "draw", lambda: 0.1)
    whiten, x = Whiten(BatchCount(), 50.0), mixed()
    assert whiten.state_dict() == {"probability": OFTEN}
    changed_gradient(whiten, x, torch.ones_like(x))
    assert whiten.state_dict() == {"probability": SELDOM}
    seldom, gradient = Whiten(BatchCount(), 1.0), torch.ones_like(x)
    seldom.load_state_dict(whiten.state_dict())
    assert torch.equal(changed_gradient(seldom, x, gradient), gradient)
    monkeypatch.setattr(schedules, "draw", lambda: 0.01)
    assert not torch.equal(changed_gradient(seldom, x, gradient), gradient)
    assert seldom.state_dict() == {"probability": OFTEN}


def test_a_gradient_that_leads_further_out_of_the_limits_is_turned_round():
    parameter = torch.tensor([-2.0, -2.0, 0.0, 0.0, 2.0, 2.0], requires_grad=True)
    limit_param_value(parameter, torch.tensor([-1.0, 1.0])).backward(torch.tensor([3.0, -3.0, 3.0, -3.0, 3.0, -3.0]))
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [-3.0, -3.0, 3.0, -3.0, 3.0, 3.0]


def test_scores_beyond_25_are_pulled_back():
    query = torch.zeros(1, 1, 2, 1, requires_grad=True)
    key = torch.tensor([30.0, -30.0, 1.0]).view(1, 1, 3, 1)
    with torch.no_grad():
        query += 1.0
    attn_mask = torch.zeros(1, 1, 1, 3)
    gradients = []
    for limit in (None, SignPenalty()):
        query.grad = None
        weights = attention_weights(query, key, query.detach(), torch.zeros(1, 1, 4), attn_mask, limit)
        attend(weights, torch.zeros(1, 1, 3, 1)).sum().backward()
        assert query.grad is not None
        gradients.append(query.grad.flatten().tolist())
    assert gradients == [[0.0, 0.0], [pytest.approx(60e-4)] * 2]


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that lets CPU tensors take the branches of a GPU from now on."""
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 24)  # till then

    return lambda: monkeypatch.setattr(devices, "on_accelerator", lambda x: True)


@pytest.mark.parametrize("drawn", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("limit", [1.2, 50.0])
@pytest.mark.parametrize("probability", [SELDOM, OFTEN])
def test_whitening_that_does_not_wait_for_the_device_is_whitening_that_does(
    monkeypatch, gpu, probability, limit, drawn
):
    monkeypatch.setattr(schedules, "draw", lambda: drawn)
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
    monkeypatch.setattr(schedules, "draw", lambda: drawn)
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
