"""A run that gets no memory names the utterances, and never continues without them."""

from dataclasses import replace

import pytest
import torch
from lhotse import CutSet

from asr.data.features import LogMel
from asr.data.loading.loader import SpeechDataset, Workers, explaining_lost_workers, load_batches
from asr.run.train import fit
from asr.training.cuda_graphs import CudaGraphs
from tests.data.corpora import Recipe, dropped
from tests.data.corpora import run as prepare_small
from tests.gpu.recorded_graphs import recorded_graphs
from tests.training.tiny import GivenData, Metrics, adamw, batch_of, tiny_module, tiny_trainer
from werdict.errors import OutOfMemory, RunFailed

SMALL = batch_of(60, 40)
# 1.2 s in 120 frames, 0.6 s in 60; padded to twice the longer one
LARGE = replace(batch_of(120, 60, seed=1), ids=("long", "short"), audio_s=1.8)


def fails_at_large(*args) -> None:
    if any(isinstance(arg, torch.Tensor) and arg.shape[:2] == (2, 120) for arg in args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


class FullOptimizer(torch.optim.SGD):
    """Has no memory for its state."""

    def step(self, closure=None):
        torch.enable_grad()(closure)()
        if all(max(p.shape, default=0) <= 2 for group in self.param_groups for p in group["params"]):
            return  # a trial update
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


def in_forward(module):
    module.recognizer.normalize.register_forward_pre_hook(lambda _, args: fails_at_large(*args))


def in_backward(module):
    # not inside the encoder: a hook on the features' own gradient would need one
    plain = module.recognizer.losses

    def losses(features, *args):
        found = plain(features, *args)
        found.total.register_hook(lambda _: fails_at_large(features))
        return found

    module.recognizer.losses = losses


def in_step(module):
    module.optimizer_factory = lambda named: FullOptimizer([p for _, p in named], lr=0.1)


@pytest.mark.parametrize("where", [in_forward, in_backward, in_step])
def test_the_utterances_are_named_and_the_training_ends(where):
    module, metrics = tiny_module(), Metrics()
    where(module)
    data = GivenData([LARGE, SMALL] if where is in_step else [SMALL, LARGE, SMALL])
    with pytest.raises(OutOfMemory) as raised:
        fit(tiny_trainer(9, [metrics]), module, data)
    said = str(raised.value)
    assert "2 utterances, 1.8 s of audio, 2.4 s with padding: long (1.2 s), short (0.6 s)" in said
    for advice in ("data.batch.max_duration_s", "quadratic_duration_s", "find_batch_size=true"):
        assert advice in said
    assert "allocate" in said
    assert len(metrics.seen) == (0 if where is in_step else 1)


def test_graphs_are_named_before_other_advice_if_a_run_has_them():
    module = tiny_module()
    in_forward(module)
    trainer = tiny_trainer(9, [CudaGraphs(any_encoder=True)])
    with (
        recorded_graphs(),
        pytest.raises(OutOfMemory, match=r"trainer\.cuda_graphs=false.*data\.batch\.max_duration_s"),
    ):
        fit(trainer, module, GivenData([SMALL, LARGE]))


def test_memory_may_run_out_before_the_first_micro_batch():
    def full(named):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with pytest.raises(OutOfMemory, match=r"before the first micro-batch: lower data\.workers"):
        fit(tiny_trainer(1), tiny_module(full), GivenData([SMALL]))


def test_a_validation_is_explained_too():
    module = tiny_module(adamw)
    module.dev_names = ["dev"]
    module.recognizer.normalize.register_forward_pre_hook(lambda _, args: fails_at_large(*args))
    with pytest.raises(OutOfMemory, match=r"long \(1\.2 s\)"):
        fit(tiny_trainer(1, val_check_interval=1), module, GivenData([SMALL, SMALL], [SMALL, LARGE]))


def test_other_errors_stay_what_they_are():
    module, error = tiny_module(), RuntimeError("shapes do not match")

    def fails(*args):
        raise error

    module.recognizer.normalize.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError) as raised:
        fit(tiny_trainer(1), module, GivenData([SMALL]))
    assert raised.value is error


class Fails:
    """Features, or an extractor, for which there is no memory."""

    precomputed, on_device, sampling_rate_hz = False, False, 8000

    def __call__(self, *_):
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("a library says something else") from error


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_utterance_that_cannot_be_read_for_lack_of_memory_is_not_skipped(tmp_path, num_workers):
    prepared = prepare_small(tmp_path, Recipe())
    dataset = SpeechDataset(Fails(), prepared.tokenizer)
    cuts = CutSet.from_cuts([prepared.cuts("train")[0]])
    with pytest.raises(RunFailed, match="out of memory while reading train-0"), explaining_lost_workers():
        list(load_batches(dataset, [(1, cuts)], Workers(num_workers)))


def test_a_preparation_that_lacks_memory_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(LogMel, "__call__", Fails.__call__)
    with pytest.raises(OutOfMemory, match=r"out of memory while reading train-\d .*then run the same command again"):
        prepare_small(tmp_path, Recipe())
    assert not list(tmp_path.rglob("prepared.json"))
    monkeypatch.undo()
    assert dropped(prepare_small(tmp_path, Recipe())) == {}
