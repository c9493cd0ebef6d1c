"""trainer.compile=true: the same updates by compiled layers. Quick tests trace without a compiler."""

from __future__ import annotations

import shutil

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from asr.config.build import part
from asr.models.encoders.conformer import ConformerEncoder
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.recognizer import Recognizer
from asr.training import compiled_encoder
from asr.training.compiled_encoder import CompiledEncoder, check_compilable
from asr.training.module import TrainingModule
from tests.configs import choice
from tests.training.tiny import NUM_FEATURES, batch_of, batches_loader, tiny_module, tiny_trainer

BATCHES = [batch_of(80, 60, seed=1), batch_of(120, seed=2), batch_of(50, 45, 40, seed=3), batch_of(90, 90, seed=4)]
ENCODERS = {
    "transformer": lambda: TransformerEncoder(NUM_FEATURES, 12, 1, 2, 16, dropout=0.0, subsampling_channels=2),
    "conformer": lambda: ConformerEncoder(NUM_FEATURES, 12, 1, 2, 16, 5, dropout=0.0, subsampling_channels=2),
}


@pytest.fixture
def traced(monkeypatch):
    """Trace and guard as torch.compile does, but leave out its compiler, which takes a minute."""
    monkeypatch.setattr(compiled_encoder, "BACKEND", "eager")
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
    module = tiny_module()
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
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-6)
    assert not any("forward" in vars(part) for part in compiled.recognizer.modules()), "the layers are put back"


def test_an_encoder_that_draws_in_python_is_refused():
    with torch.device("meta"):
        zipformer = part({"encoder": dict(choice("encoder", "zipformer_s"))}, "encoder", num_features=80)
    with pytest.raises(ValueError, match="compiled again for each draw; choose a transformer or a conformer"):
        check_compilable(zipformer)
    check_compilable(ENCODERS["conformer"]())


@pytest.mark.slow
def test_compiled_code_makes_the_same_updates():
    if shutil.which("g++") is None:
        pytest.skip("torch compiles for a CPU with g++")
    torch._dynamo.reset()
    make = ENCODERS["transformer"]
    plain, compiled, again = (
        trained(make()),
        trained(make(), CompiledEncoder()),
        trained(make(), CompiledEncoder()),
    )
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value, rtol=1e-3, atol=1e-5)
        assert torch.equal(compiled.state_dict()[name], again.state_dict()[name]), name
