"""Runs whose passes and updates are replayed make the updates of others, bit for bit, whatever changes during a run."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

import optim
from asr.data.loading.loader import Batch
from asr.training.cuda_graphs import CudaGraphs
from asr.training.module import TrainingModule
from optim.transforms.clipping import ClipByGlobalNorm
from optim.transforms.learning_rate import LearningRate
from tests.gpu.cuda_autocast import cuda_autocast
from tests.gpu.recorded_graphs import recorded_graphs
from tests.gpu.trainings import ENCODERS, batch, module_of
from tests.models import heads
from tests.models.encoders import NUM_FEATURES
from tests.optim.test_configs import FILES, build
from tests.training import runs
from tests.training.tiny import adamw as torch_adamw
from tests.training.tiny import tiny_module, trained

TRANSFORMER, CONFORMER, ZIPFORMER, CAUSAL = ENCODERS
CTC, INTER_CTC = heads.CASES[:2]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # more of them would wait for each other at these sizes


def rule(build: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda named: build(list(named), **{"lr": 0.01, **options})


ADAMW, EVE = rule(optim.AdamW, capturable=True), rule(optim.Eve, capturable=True)
SOAP = rule(optim.SOAP)  # cannot be captured
CASES = [
    pytest.param(TRANSFORMER, CTC, ADAMW, 1, "32", id="transformer, AdamW"),
    pytest.param(TRANSFORMER, INTER_CTC, ADAMW, 1, "bf16", id="transformer, inter-CTC, AdamW, bf16"),
    pytest.param(TRANSFORMER, CTC, SOAP, 2, "32", id="transformer, SOAP, two micro-batches"),
    pytest.param(ZIPFORMER, CTC, EVE, 2, "bf16", id="zipformer, Eve, two micro-batches, bf16"),
    pytest.param(CAUSAL, CTC, EVE, 1, "32", id="causal zipformer, Eve"),
    pytest.param(CONFORMER, CTC, ADAMW, 2, "bf16", id="conformer, AdamW, two micro-batches", marks=pytest.mark.slow),
    pytest.param(CAUSAL, CTC, EVE, 1, "bf16", id="causal zipformer, Eve, bf16", marks=pytest.mark.slow),
]


def batches(num: int = 20) -> list[Batch]:
    """Return batches of two shapes that are not padded, one of them with a NaN."""
    shapes = ((64, 52), (64, 44), (48, 44, 40))
    found = [batch(*shapes[seed % 3], seed=seed) for seed in range(num)]
    found[7].features[0, 3, 2] = float("nan")
    return found


def weights(module: TrainingModule, *callbacks: pl.Callback, accumulate: int = 1, **options: Any) -> dict[str, Any]:
    trained(batches(), module, callbacks, accumulate, gradient_clip_val=1.0, **options)
    return module.recognizer.state_dict()


@pytest.mark.parametrize(("encoder", "head", "optimizer", "accumulate", "precision"), CASES)
def test_replayed_updates_are_those_of_a_run_without_graphs(encoder, head, optimizer, accumulate, precision):
    def left(*callbacks: CudaGraphs) -> dict[str, torch.Tensor]:
        module = module_of(encoder, head, optimizer)
        plugins = [MixedPrecision("bf16-mixed", "cpu")] if precision == "bf16" else []
        found = weights(module, *callbacks, accumulate=accumulate, plugins=plugins)
        assert module.guard.counts["skipped_updates"] == 1
        return found

    with cuda_autocast(), recorded_graphs() as graphs:
        plain = left()
        assert graphs.num_replays == 0
        for updates in (False, True):
            captured = left(CudaGraphs(any_encoder=True, updates=updates))
            assert graphs.num_replays > 8
            torch.testing.assert_close(captured, plain, rtol=0, atol=0)


class At(pl.Callback):
    """Does something to a module before an update."""

    def __init__(self, update: int, act: Callable[[TrainingModule], object]) -> None:
        self.update, self.act = update, act

    def on_train_batch_start(self, trainer, pl_module, *_):
        if trainer.global_step == self.update:
            self.act(pl_module)


def freeze(module: TrainingModule) -> None:
    module.frozen = {name: p.clone() for name, p in module.recognizer.encoder.named_parameters()}
    module.recognizer.encoder.requires_grad_(requires_grad=False)


def replace_data(module: TrainingModule) -> None:
    for parameter in module.recognizer.encoder.parameters():
        parameter.data = 0.9 * parameter.data


def assign(module: TrainingModule) -> None:
    """Replace a part of the parameters by others, which the optimizer does not know."""
    norm = module.recognizer.encoder.norm
    norm.load_state_dict({name: 0.9 * x for name, x in norm.state_dict().items()}, assign=True)


def drop_more(module: TrainingModule) -> None:
    for part in module.recognizer.encoder.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.4


def train_less(module: TrainingModule) -> None:
    module.recognizer.encoder.layers[0].eval()


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("change", [freeze, replace_data, assign, drop_more, train_less])
def test_what_changes_during_a_run_changes_replayed_updates_too(change, updates):
    def left(*callbacks: pl.Callback, act: Any = change) -> dict[str, torch.Tensor]:
        module = module_of(TRANSFORMER, CTC, ADAMW)
        for part in module.recognizer.encoder.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.1
        return weights(module, At(11, act), *callbacks)

    with recorded_graphs() as graphs:
        graphs_of_run = CudaGraphs(any_encoder=True, updates=updates)
        torch.testing.assert_close(left(graphs_of_run), left(), rtol=0, atol=0)
        assert graphs.num_replays > 8
        assert not runs.same(left(), left(act=lambda module: None))


@pytest.mark.parametrize("optimizer", [ADAMW, SOAP, torch_adamw], ids=["AdamW", "SOAP", "torch's AdamW"])
def test_frozen_parameters_stand_still(optimizer):
    with recorded_graphs() as graphs:
        for updates in (False, True):
            module = module_of(TRANSFORMER, CTC, optimizer)
            weights(module, At(11, freeze), CudaGraphs(any_encoder=True, updates=updates))
            assert graphs.num_replays > 8
            assert runs.same(module.frozen, dict(module.recognizer.encoder.named_parameters()))


class Alternating(nn.Module):
    """Uses one of two layers, by the length of a batch."""

    subsampling_factor, d_model = 1, 8

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(NUM_FEATURES, 8) for _ in range(2))

    def output_frames(self, num_frames):
        return num_frames

    def forward(self, features, num_frames):
        return self.layers[int(features.shape[1] > 50)](features), num_frames


def test_parameters_that_an_update_does_not_use_stand_still():
    def left(*callbacks: CudaGraphs) -> dict[str, torch.Tensor]:
        module = module_of(TRANSFORMER, CTC, ADAMW)
        torch.manual_seed(0)
        module.recognizer.encoder = Alternating()
        module.recognizer.head = heads.CASES[0].make(8)
        return weights(module, *callbacks)

    with recorded_graphs() as graphs:
        torch.testing.assert_close(left(CudaGraphs(any_encoder=True, updates=True)), left(), rtol=0, atol=0)
        assert graphs.num_replays > 8


CLIPPING = [
    rule(optim.ScaledAdam, clipping_scale=2.0, capturable=True),
    rule(optim.AdamW, gradient_clipping="global_norm", capturable=True),
    optim.chain(ClipByGlobalNorm(), LearningRate(), lr=0.1),
]


@pytest.mark.parametrize("optimizer", CLIPPING, ids=["median norm", "function", "global norm"])
def test_the_graph_of_an_update_reads_nothing_that_nobody_owns(optimizer):
    class Collect(pl.Callback):
        def on_train_batch_end(self, *_):
            gc.collect()

    def left(*callbacks: pl.Callback) -> dict[str, torch.Tensor]:
        return weights(module_of(TRANSFORMER, CTC, lambda named: optimizer([p for _, p in named])), *callbacks)

    with recorded_graphs():
        captured = left(Collect(), CudaGraphs(any_encoder=True, updates=True))
        torch.testing.assert_close(captured, left(), rtol=1e-6, atol=1e-7)


class Interrupted(Exception):
    pass


def interrupt(module: TrainingModule) -> None:
    raise Interrupted


def test_a_run_that_is_interrupted_or_ends_puts_everything_back_and_the_next_one_is_as_ever():
    with recorded_graphs() as graphs:
        plain = weights(module_of(TRANSFORMER, CTC, ADAMW))
        module = module_of(TRANSFORMER, CTC, ADAMW)
        before = {name: x.clone() for name, x in module.recognizer.state_dict().items()}
        graphs_of_run = CudaGraphs(any_encoder=True, updates=True)
        with pytest.raises(Interrupted):
            weights(module, At(9, interrupt), graphs_of_run)
        assert module.graphed_encoder is None
        assert graphs_of_run.optimizers == []
        module.recognizer.load_state_dict(before)
        num_replays = graphs.num_replays
        torch.testing.assert_close(weights(module, graphs_of_run), plain, rtol=0, atol=0)
        assert graphs.num_replays > num_replays
    assert module.graphed_encoder is None
    assert "forward" not in vars(module.recognizer.encoder)


@pytest.mark.parametrize("config", FILES["optimizer"], ids=lambda file: file.stem)
def test_a_captured_run_is_resumed_without_graphs(tmp_path, monkeypatch, config):
    # iterations in bfloat16 make of any rounding another direction
    wide = {"compute_dtype": None} if config.stem == "rubik" else {}
    monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(optim.grouped(partial(build(config), **wide))))

    def left(folder: str, max_steps: int, *callbacks: pl.Callback) -> TrainingModule:
        return runs.run(tmp_path / folder, max_steps, callbacks, validate_every=4)

    begin = torch.nn.utils.parameters_to_vector(runs.tiny_module().recognizer.parameters())
    with recorded_graphs():
        left("parts", 4, CudaGraphs(any_encoder=True))
        modules = left("parts", 8), left("whole", 8)
    resumed, whole = (torch.nn.utils.parameters_to_vector(module.recognizer.parameters()) for module in modules)
    for group in modules[0].trainer.optimizers[0].param_groups:
        assert isinstance(group["lr"], float | None)
    # rates and corrections by the count of steps had 32 bits in the first updates
    assert (resumed - whole).norm() < 1e-3 * (whole - begin).norm()
