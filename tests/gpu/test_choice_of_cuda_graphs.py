"""Which runs are captured, on several ranks too, and what a resumption may change. A CPU stands for the GPU."""

import pytest
from hydra.errors import HydraException
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn

from asr.commands.app import explain_error
from asr.run import trainer as config_trainer
from asr.run.compose import changes
from asr.run.options import SavedRun
from asr.run.trainer import build_trainer, captures_encoder
from asr.runs.files import system_of
from asr.training.cuda_graphs import CudaGraphs, GraphedDDPStrategy
from tests.configs import composed
from werdict.errors import ConfigError


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    monkeypatch.setattr(config_trainer, "CUDAAccelerator", CPUAccelerator)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")


class Own(nn.Module):
    """An encoder that does not say whether it can be captured."""


class Known(Own):
    supports_cuda_graphs = True


class Sharded(DDPStrategy):
    """Another strategy that begins from DDP, as DeepSpeed's does."""


def trainer(cuda_graphs: bool | str | None, **options):
    return build_trainer(composed("trainer=cpu").options.trainer, [], [], cuda_graphs=cuda_graphs, **options)


@pytest.mark.parametrize(
    ("cuda_graphs", "options", "known", "own"),
    [
        (None, {}, True, False),
        (True, {}, True, True),
        (False, {}, False, False),
        (None, {"strategy": "ddp"}, True, False),
        (None, {"strategy": "ddp", "devices": 2}, False, False),
        (True, {"strategy": "ddp", "devices": 2}, True, True),
        (None, {"deterministic": True}, False, False),
        (True, {"deterministic": True}, True, True),
    ],
)
def test_passes_are_captured_of_known_encoders_on_one_gpu_and_of_others_if_asked_for(cuda_graphs, options, known, own):
    built = trainer(cuda_graphs, **options)
    assert (captures_encoder(built, Known()), captures_encoder(built, Own())) == (known, own)
    several = GraphedDDPStrategy if "strategy" in options and cuda_graphs is not False else SingleDeviceStrategy
    assert type(built.strategy) is several


def test_updates_are_captured_if_asked_for():
    for cuda_graphs in (None, True, "updates"):
        (graphs,) = (one for one in trainer(cuda_graphs).callbacks if isinstance(one, CudaGraphs))
        assert graphs.updates == (cuda_graphs == "updates")


@pytest.mark.parametrize("options", [{"strategy": Sharded(), "devices": 2}, {"devices": 2}, {"step_in_backward": True}])
def test_what_cannot_be_captured_is_refused_if_asked_for(options):
    with pytest.raises(ConfigError, match=r"trainer\.cuda_graphs"):
        trainer(True, gradient_clip_val=None, **options)


@pytest.mark.parametrize("sign", ["", "+"])
def test_the_former_name_of_the_option_is_refused_with_the_present_one(sign):
    with pytest.raises((ConfigError, HydraException)) as refused:
        build_trainer(composed("trainer=cpu", f"{sign}trainer.capture=true").options.trainer, [], [])
    assert any("trainer.cuda_graphs" in line for line in explain_error(refused.value, "train")[0])


def test_a_resumed_run_keeps_its_choice_which_is_no_other_system():
    def config(cuda_graphs: bool | None) -> dict:
        base = {"callbacks": {}, "decode": ["best"], "weights": "raw", "seed": 1, "decode_test": True}
        return {**base, "trainer": {"cuda_graphs": cuda_graphs, "max_steps": 1}}

    assert changes(config(True), config(False)) != []
    assert changes(config(True), config(True)) == []
    assert system_of(SavedRun(**config(True))) == system_of(SavedRun(**config(False)))
