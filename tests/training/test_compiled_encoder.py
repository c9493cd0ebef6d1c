"""trainer.compile=true: the same updates by compiled layers. Quick tests trace without a compiler."""

from __future__ import annotations

import re
import shutil
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.encoders.zipformer import schedules
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.recognizer import Recognizer
from asr.training import cuda_graphs
from asr.training.cuda_graphs import CompiledEncoder, compile_layers
from asr.training.module import TrainingModule
from tests.training.test_module import module_with_zapformer
from tests.training.tiny import NUM_FEATURES, batch_of, batches_loader, sgd, tiny_module, tiny_trainer

BATCHES = [batch_of(80, 60, seed=1), batch_of(120, seed=2), batch_of(50, 45, 40, seed=3), batch_of(90, 90, seed=4)]
ENCODERS = {
    "transformer": lambda: TransformerEncoder(NUM_FEATURES, 12, 1, 2, 16, dropout=0.0, subsampling_channels=2),
    "conformer": lambda: ConformerEncoder(NUM_FEATURES, 12, 1, 2, 16, 5, dropout=0.0, subsampling_channels=2),
    "zipformer": lambda: ZipformerEncoder(NUM_FEATURES, **ZIPFORMER),
    "zapformer": lambda: module_with_zapformer().recognizer.encoder,
}
ZIPFORMER = {
    "encoder_dim": (8, 12),
    "encoder_unmasked_dim": (8, 8),
    "feedforward_dim": (8, 12),
    "num_encoder_layers": (1, 2),
    "num_heads": (2, 2),
    "cnn_module_kernel": (5, 3),
    "downsampling_factor": (1, 2),
    "subsampling_channels": (2, 2, 4),
}


@pytest.fixture
def traced(monkeypatch):
    """Trace and guard as torch.compile does, but leave out its compiler, which takes a minute."""
    monkeypatch.setattr(cuda_graphs, "BACKEND", "eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def num_compiled() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class AtFirstUpdate(pl.Callback):
    """Counts what has been compiled when the first update begins."""

    num: int | None = None

    def on_train_batch_start(self, *_):
        self.num = num_compiled() if self.num is None else self.num


def trained(encoder: nn.Module, *callbacks: pl.Callback) -> TrainingModule:
    module = tiny_module(partial(sgd, lr=0.1))  # Adam would enlarge rounding errors
    torch.manual_seed(0)
    module.recognizer = Recognizer(encoder, module.recognizer.head, module.recognizer.normalize)
    encoder.load_state_dict({name: 0.1 * torch.randn_like(value) for name, value in encoder.state_dict().items()})
    tiny_trainer(len(BATCHES), callbacks).fit(module, batches_loader(BATCHES))
    return module


@pytest.mark.slow
@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
def test_updates_are_those_of_the_plain_layers_and_nothing_is_compiled_after_the_first_begins(traced, make):
    counts = AtFirstUpdate()
    plain, compiled = trained(make()), trained(make(), CompiledEncoder(), counts)
    assert counts.num == num_compiled() > 0
    states = [module.state_dict() for module in (plain, compiled)]
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=1e-4)
    assert not any("forward" in vars(part) for part in compiled.recognizer.modules()), "the layers are put back"
    assert not any("value" in vars(swash) for swash in ZapformerEncoder.activations_to_compile)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_zipformer_has_the_same_gradients_from_code_that_is_compiled_once(monkeypatch, causal):
    """In one graph for each width, at any time of training, for any number of utterances and frames."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # all that is drawn and derived, without the compiler
    monkeypatch.setattr(cuda_graphs, "BACKEND", "aot_eager")
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda layer, **options: whole(layer, fullgraph=True, **options))
    encoder = ZipformerEncoder(80, **ZIPFORMER, causal=causal, chunk_size=[16], left_context_frames=[32]).double()
    cases = [(size, frames, drawn, audio_s) for drawn, audio_s in ((0.9, 1e6), (0.5, 1e7)) for size, frames in SIZES]
    expected = [gradients(monkeypatch, encoder, *case) for case in cases]
    compile_layers(encoder)
    for case, wanted in zip(cases, expected, strict=True):
        found = gradients(monkeypatch, encoder, *case)
        assert (found - wanted).norm() < 1e-10 * wanted.norm(), case
    # chunks may fill the frames or not, which is other code
    assert len(set(ZIPFORMER["encoder_dim"])) <= num_compiled() <= (5 if causal else 2)


SIZES = ((4, 200), (2, 133), (3, 30))  # utterances, frames


def gradients(monkeypatch, encoder: ZipformerEncoder, size: int, frames: int, drawn: float, audio_s: float) -> Tensor:
    """Return the gradients of all parameters in a pass in which works what ``drawn`` lets work."""
    dtype = next(encoder.parameters()).dtype
    monkeypatch.setattr(schedules, "draw", lambda: drawn)
    torch.manual_seed(size)
    encoder.set_trained_seconds(audio_s)
    features, num_frames = torch.randn(size, frames, 80, dtype=dtype), torch.randint(frames // 2, frames + 1, (size,))
    encodings, _ = encoder(features, num_frames)
    return torch.cat([g.flatten() for g in torch.autograd.grad(encodings.square().sum(), list(encoder.parameters()))])


@pytest.fixture
def compiler():
    if shutil.which("g++") is None:
        pytest.skip("torch compiles for a CPU with g++")
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_compiled_layer_of_a_zipformer_is_few_kernels_and_calls_of_libraries(monkeypatch, compiler):
    """On a CPU; in float32 with the same gradients."""
    encoder = ZipformerEncoder(80, **ZIPFORMER)
    expected = gradients(monkeypatch, encoder, 4, 200, 0.9, 1e6)
    compile_layers(encoder)
    found, codes = run_and_get_code(gradients, monkeypatch, encoder, 4, 200, 0.9, 1e6)
    assert (found - expected).norm() < 1e-5 * expected.norm()
    calls = [
        re.findall(r"cpp_fused\w*\(|extern_kernels\.\w+\(|aten\.\S+\(", c.partition("def call(")[2]) for c in codes
    ]
    # forward and backward of each width; nearly four times as many are dispatched without the compiler
    assert 0 < sum(map(len, calls)) <= 130 * len(set(ZIPFORMER["encoder_dim"]))


@pytest.mark.slow
def test_compiled_code_makes_the_same_updates(compiler):
    make = ENCODERS["transformer"]
    plain, compiled, again = (
        trained(make()),
        trained(make(), CompiledEncoder()),
        trained(make(), CompiledEncoder()),
    )
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value, rtol=1e-3, atol=1e-5)
        assert torch.equal(compiled.state_dict()[name], again.state_dict()[name]), name
