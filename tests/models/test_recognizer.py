import itertools

import pytest
import torch
import torch.nn.functional as F

from asr.features.log_mel import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.heads.ctc import CrCtcHead, CtcHead
from asr.models.recognizer import Recognizer, initialize
from tests.models.encoders import CASES, NUM_FEATURES, middle_of_what_is_seen

NORM = GlobalNorm([0.5] * NUM_FEATURES, [2.0] * NUM_FEATURES)


def make(head: type[CtcHead] = CtcHead, **options) -> Recognizer:
    torch.manual_seed(0)
    encoder = CASES[0].make()
    return Recognizer(encoder, head(encoder.d_model, vocab_size=6, **options), NORM, SpecAugment())


def losses(recognizer: Recognizer, seed: int | None) -> torch.Tensor:
    features = torch.randn(2, 60, NUM_FEATURES, generator=torch.Generator().manual_seed(3))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    lengths, tokens = torch.tensor([60, 44]), torch.tensor([[1, 2, 3], [4, 5, 0]])
    return recognizer.losses(features, lengths, tokens, torch.tensor([3, 2]), generator).total


def test_augmentation_depends_on_its_generator_alone():
    recognizer = make().eval()
    assert torch.equal(losses(recognizer, 1), losses(recognizer, 1))
    assert not torch.equal(losses(recognizer, 1), losses(recognizer, 2))
    assert not torch.equal(losses(recognizer, 1), losses(recognizer, None))


def test_the_encoder_sees_normalized_features():
    recognizer = make().eval()
    recognizer.augment = None
    seen = []
    recognizer.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    features = torch.randn(1, 30, NUM_FEATURES)
    encodings, lengths = recognizer(features, torch.tensor([30]))
    recognizer.losses(features, torch.tensor([30]), torch.tensor([[1]]), torch.tensor([1]))
    assert encodings.shape == (1, int(lengths[0]), recognizer.encoder.d_model)
    assert len(seen) == 2
    for normalized in seen:
        torch.testing.assert_close(normalized, (features - 0.5) / 2)


def test_weights_and_biases_that_have_a_start_keep_it():
    recognizer = make()
    with torch.no_grad():
        recognizer.head.project.weight.zero_()
    before = {name: parameter.clone() for name, parameter in recognizer.named_parameters()}
    initialize(recognizer)
    changed = {name for name, p in recognizer.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name, p in before.items() if name.endswith("bias") and not p.any()}
    assert changed < {name for name in before if name.endswith("bias")}
    assert all(0 < p.abs().max() < 0.1 for name, p in recognizer.named_parameters() if name in changed)


def seen_by_the_encoder(recognizer: Recognizer, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    seen = []
    recognizer.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    losses(recognizer, seed)
    return seen[0]


def test_the_loss_of_one_view_is_that_of_the_last_layer_bit_for_bit():
    recognizer = make().eval()
    features, lengths = seen_by_the_encoder(recognizer, 1)
    assert lengths.tolist() == [60, 44]
    encodings, num_frames = recognizer.encoder(features, lengths)
    log_probs = F.log_softmax(recognizer.head.project(encodings), dim=-1).transpose(0, 1)
    tokens, num_tokens = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2])
    assert torch.equal(losses(recognizer, 1), F.ctc_loss(log_probs, tokens, num_frames, num_tokens, reduction="none"))


def test_two_views_are_the_same_utterances_masked_differently():
    recognizer = make(CrCtcHead).eval()
    features, lengths = seen_by_the_encoder(recognizer, 1)
    assert lengths.tolist() == [60, 44, 60, 44]
    first, second = features.chunk(2)
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    plain, _ = seen_by_the_encoder(make(CrCtcHead).eval(), None)
    masked = [(view != plain[:2]) for view in (first, second)]
    assert (masked[0] | masked[1]).float().mean() < 0.95
    for view, is_masked in zip((first, second), masked, strict=True):
        means = [utterance[:length].mean() for utterance, length in zip(plain, (60, 44), strict=False)]
        for utterance, is_hidden, mean in zip(view, is_masked, means, strict=True):
            torch.testing.assert_close(utterance[is_hidden], mean.expand(int(is_hidden.sum())))
    again, _ = seen_by_the_encoder(make(CrCtcHead).eval(), 1)
    assert torch.equal(again, features)


@pytest.mark.parametrize("head", [CtcHead, CrCtcHead])
def test_intermediate_losses_are_those_of_the_encoder_cut_short(head):
    plain = make(head).eval()
    whole = losses(plain, 1)
    plain.encoder.layers, plain.encoder.num_layers = plain.encoder.layers[:1], 1
    short = losses(plain, 1)
    recognizer = make(head, intermediate_layers=[1], intermediate_weight=0.25).eval()
    torch.testing.assert_close(losses(recognizer, 1), 0.75 * whole + 0.25 * short)
    losses(recognizer, 1).sum().backward()
    assert all(p.grad is not None for p in recognizer.parameters())


def test_only_inner_layers_are_intermediate():
    with pytest.raises(ValueError, match=r"intermediate_layers=\[2\]"):
        make(intermediate_layers=[2])
    encoder = next(case for case in CASES if case.name == "zipformer").make()
    head = CtcHead(encoder.d_model, vocab_size=6, intermediate_layers=[1])
    with pytest.raises(ValueError, match=r"intermediate_layers=\[1\].*ZipformerEncoder"):
        Recognizer(encoder, head, NORM)


class Strided(torch.nn.Module):
    """An encoder of a user's own: convolutions of equal kernels, strides and padding."""

    d_model = 4

    def __init__(self, kernel: int, stride: int, padding: int, num_layers: int) -> None:
        super().__init__()
        sizes = [NUM_FEATURES, *[4] * num_layers]
        layers = (torch.nn.Conv1d(a, b, kernel, stride, padding) for a, b in itertools.pairwise(sizes))
        self.layers, self.subsampling_factor = torch.nn.Sequential(*layers), stride**num_layers

    def output_frames(self, num_frames: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            num_frames = (num_frames + 2 * layer.padding[0] - layer.kernel_size[0]) // layer.stride[0] + 1
        return num_frames.clamp(min=0)


@pytest.mark.parametrize("sizes", [(4, 4, 0, 1), (8, 8, 0, 1), (3, 2, 0, 3), (3, 2, 0, 4), (3, 2, 1, 3), (5, 2, 2, 4)])
def test_an_own_encoder_says_where_its_encodings_are_by_its_lengths_or_an_attribute(sizes):
    torch.manual_seed(0)
    encoder = Strided(*sizes)
    recognizer = Recognizer(encoder, CtcHead(4, vocab_size=6), NORM)
    features = torch.randn(1, 12 * encoder.subsampling_factor + 31, NUM_FEATURES)
    middle = middle_of_what_is_seen(lambda x: encoder.layers(x.mT).mT, features, number=6)
    assert recognizer.center_frames + 6 * encoder.subsampling_factor == middle
    encoder.center_frames = 7
    assert recognizer.center_frames == 7
