import torch

from asr.features.normalise import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.heads.ctc import CtcHead
from asr.models.initialise import initialise
from asr.models.recogniser import Recogniser
from tests.models.encoders import CASES, NUM_FEATURES


def make() -> Recogniser:
    torch.manual_seed(0)
    encoder = CASES[0].make()
    head = CtcHead(encoder.d_model, vocab_size=6)
    return Recogniser(encoder, head, GlobalNorm([0.5] * NUM_FEATURES, [2.0] * NUM_FEATURES), SpecAugment())


def losses(recogniser: Recogniser, seed: int | None) -> torch.Tensor:
    features = torch.randn(2, 60, NUM_FEATURES, generator=torch.Generator().manual_seed(3))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    lengths, tokens = torch.tensor([60, 44]), torch.tensor([[1, 2, 3], [4, 5, 0]])
    return recogniser.losses(features, lengths, tokens, torch.tensor([3, 2]), generator)


def test_augmentation_depends_on_its_generator_alone():
    recogniser = make().eval()
    assert torch.equal(losses(recogniser, 1), losses(recogniser, 1))
    assert not torch.equal(losses(recogniser, 1), losses(recogniser, 2))
    assert not torch.equal(losses(recogniser, 1), losses(recogniser, None))


def test_the_statistics_travel_with_the_weights():
    state = make().state_dict()
    assert torch.equal(state["normalise.mean"], torch.full((NUM_FEATURES,), 0.5))
    assert torch.equal(state["normalise.inverse_std"], torch.full((NUM_FEATURES,), 0.5))


def test_no_bias_starts_at_zero():
    recogniser = make()
    initialise(recogniser)
    biases = {name: p for name, p in recogniser.named_parameters() if name.endswith("bias")}
    assert biases
    assert all(0 < p.abs().max() < 1 for p in biases.values())
