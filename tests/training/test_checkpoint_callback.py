"""Which checkpoints a run keeps, also when a signal ends it, and that it is resumed exactly from each of them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest

from asr.processes import TRY_AGAIN
from asr.runs.files import read_metrics
from asr.tracking.metrics_csv import MetricsCsv
from asr.training import checkpoints
from asr.training.callbacks.checkpoints import (
    CheckpointCallback,
    DurableCheckpointIO,
    Preempted,
    Preemption,
    WeightAveraging,
)
from asr.training.checkpoints import duplicate, newest_good_checkpoint, update_file
from tests.training.runs import Validated, names, run, same, state
from werdict.errors import Diverged, RunFailed


@pytest.fixture
def writes(monkeypatch) -> list[str]:
    """The names of all checkpoints that are written."""
    written: list[str] = []
    write = checkpoints.write
    monkeypatch.setattr(checkpoints, "write", lambda s, path: (written.append(path.name), write(s, path)))
    return written


def test_there_is_one_at_each_validation_and_at_the_end_and_the_last_two_are_kept(tmp_path, writes):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-000003.ckpt.tmp").write_text("half, of a process that was killed")
    run(tmp_path, max_steps=8)
    assert writes == ["update-000003.ckpt", "update-000006.ckpt", "update-000008.ckpt"]
    assert names(tmp_path) == ["best.ckpt", "last.ckpt", "update-000006.ckpt", "update-000008.ckpt"]
    assert (tmp_path / "checkpoints" / "last.ckpt").resolve().name == "update-000008.ckpt"
    assert state(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8
    run(tmp_path / "without", 3, validate_every=None)
    assert writes[3:] == ["update-000003.ckpt"]


class Diverges(pl.Callback):
    """Makes a weight infinite after an update."""

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == 5:
            next(pl_module.parameters()).data.fill_(float("inf"))


class SavesBeforeValidation(pl.Callback):
    """Saves as a signal at the start of a validation does."""

    def on_validation_start(self, trainer, pl_module):
        next(one for one in trainer.callbacks if isinstance(one, CheckpointCallback)).save(trainer, True)


@pytest.mark.parametrize("callbacks", [[], [SavesBeforeValidation()]], ids=["by validation", "while saving"])
def test_a_model_that_is_found_to_have_diverged_is_not_saved_over_one_that_has_not(tmp_path, callbacks):
    with pytest.raises(Diverged, match="update 6"):
        run(tmp_path, 9, [Diverges(), *callbacks])
    assert names(tmp_path) == ["best.ckpt", "last.ckpt", "update-000003.ckpt"]
    assert newest_good_checkpoint(tmp_path).update == 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_update_is_written_twice(tmp_path, writes, accumulate):
    callback = CheckpointCallback(tmp_path, keep_last=9, every_n_updates=2)
    run(tmp_path, 7, [callback], accumulate_grad_batches=accumulate)
    assert writes == [f"update-00000{update}.ckpt" for update in (2, 3, 4, 6, 7)]


def test_the_best_is_that_of_the_lowest_wer_and_of_equals_the_later(tmp_path):
    wers = {1: 0.5, 2: 0.25, 3: 0.25, 4: 0.3}
    run(tmp_path, 4, [CheckpointCallback(tmp_path, keep_last=1)], wers=wers.get, validate_every=1)
    assert names(tmp_path) == ["best.ckpt", "last.ckpt", "update-000004.ckpt"]
    assert state(tmp_path / "checkpoints" / "best.ckpt")["global_step"] == 3


def test_the_best_is_remembered_over_a_resumption(tmp_path):
    run(tmp_path, 2, wers=lambda update: 0.1 if update == 2 else 0.5, validate_every=1)
    run(tmp_path, 4, wers=lambda update: 0.2, validate_every=1)
    assert state(tmp_path / "checkpoints" / "best.ckpt")["global_step"] == 2
    run(tmp_path, 5, wers=lambda update: 0.05, validate_every=1)
    assert state(tmp_path / "checkpoints" / "best.ckpt")["global_step"] == 5


def killed_after(update: int, whole: Path) -> Path:
    """Return a folder with one checkpoint of a run, and its metrics."""
    killed = whole.parent / f"{whole.name}-{update}"
    (killed / "checkpoints").mkdir(parents=True)
    duplicate(update_file(whole / "checkpoints", update), update_file(killed / "checkpoints", update))
    if (whole / "metrics.csv").exists():
        shutil.copy(whole / "metrics.csv", killed)
    return killed


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize(("accumulate", "updates"), [(1, (1, 3, 4, 8)), (2, (2, 3, 5, 6))])
def test_a_run_is_resumed_bit_for_bit_from_any_update(tmp_path, accumulate, updates, in_background):
    """Four micro-batches are an epoch, and every third update is validated: in between, at one of them, at both."""
    options, whole = {"accumulate_grad_batches": accumulate}, tmp_path / "whole"
    validated, plugins = Validated(), [DurableCheckpointIO(in_background)]
    saved = CheckpointCallback(whole, keep_last=9, every_n_updates=1)
    run(whole, 9, [validated, WeightAveraging(), saved], **options, plugins=plugins)
    for update in updates:
        killed, seen = killed_after(update, whole), Validated()
        run(killed, 9, [seen, WeightAveraging()], **options)
        assert same(*(state(folder / "checkpoints" / "last.ckpt") for folder in (whole, killed)))
        assert seen.updates == [number for number in validated.updates if number > update]


def logged(folder: Path, done: int, max_steps: int, validate_every: int) -> list[list[int]]:
    """Continue a run after ``done`` updates; return the steps of all rows of the training loss, and of the WER."""
    logger = MetricsCsv(folder)
    logger.resume(done)
    options = {"logger": logger, "log_every_n_steps": 1, "validate_every": validate_every}
    run(folder, max_steps, [CheckpointCallback(folder, keep_last=9, every_n_updates=1)], **options)
    metrics = read_metrics(logger.path, bool)
    return [list(metrics[name][0]) for name in ("train/loss", "val/wer")]


@pytest.mark.parametrize("before", [2, 3])
@pytest.mark.parametrize("now", [2, 3])
def test_every_update_is_logged_once_if_a_run_is_resumed_with_another_interval_or_extended(tmp_path, before, now):
    logged(tmp_path / "run", 0, 7, before)
    for update in (4, 5, 6, 7):  # an epoch ends at 4
        folder, ends = killed_after(update, tmp_path / "run"), (update // 7 * 7, 9)
        validated = [u for u in range(1, 10) if u % (before if u <= update else now) == 0 or u in ends]
        assert logged(folder, update, 9, now) == [list(range(9)), [u - 1 for u in validated]]
    assert logged(folder, 9, 10, now)[0] == list(range(10))


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (1, 4)])
def test_updates_of_another_number_of_micro_batches_are_validated_and_resumed_at_their_ends(tmp_path, before, now):
    run(tmp_path / "short", 7, accumulate_grad_batches=before)
    whole, validated, options = killed_after(7, tmp_path / "short"), Validated(), {"accumulate_grad_batches": now}
    run(whole, 12, [validated], **options)
    assert validated.updates == [9, 12]
    killed = killed_after(9, whole)
    run(killed, 12, **options)
    assert same(*(state(folder / "checkpoints" / "last.ckpt") for folder in (whole, killed)))


class SlowDisk(pl.Callback):
    """Writes the checkpoint of update 3 when update 5 is done, or after a while; an error is raised in its place."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error, self.goes_on, self.update = error, threading.Event(), 0
        self.write = checkpoints.write
        checkpoints.write = self.write_slowly

    def write_slowly(self, content, path):
        if content["global_step"] == 3:
            self.goes_on.wait(1)
            if self.error is not None:
                raise self.error
        self.write(content, path)

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.update = trainer.global_step
        if self.update == 5:
            self.goes_on.set()


@pytest.fixture
def in_background(monkeypatch, tmp_path):
    """Returns what trains in a folder with a slow disk, writing in the background."""
    monkeypatch.setattr(checkpoints, "write", checkpoints.write)

    def train(name: str, *callbacks: pl.Callback, error: OSError | None = None) -> SlowDisk:
        saved = CheckpointCallback(tmp_path / name, keep_last=9)
        disk, plugins = SlowDisk(error), [DurableCheckpointIO(in_background=True)]
        try:
            run(tmp_path / name, 8, [*callbacks, disk, WeightAveraging(), saved, Preemption()], plugins=plugins)
        finally:
            checkpoints.write = disk.write
        return disk

    return train


def test_a_checkpoint_holds_what_was_when_it_began_to_be_written_and_not_more_than_one_is(tmp_path, in_background):
    run(tmp_path / "whole", 8, [WeightAveraging(), CheckpointCallback(tmp_path / "whole", keep_last=9)])
    assert in_background("run").goes_on.is_set()
    for update in (3, 6, 8):
        assert same(*(state(update_file(tmp_path / name / "checkpoints", update)) for name in ("whole", "run")))
    assert names(tmp_path / "run") == names(tmp_path / "whole")


class Fails(pl.Callback):
    """Ends training before the checkpoint of update 3 is written."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 4:
            raise ZeroDivisionError


def test_what_ends_a_run_waits_for_the_checkpoint_that_is_being_written(tmp_path, in_background):
    with pytest.raises(ZeroDivisionError):
        in_background("failed", Fails())
    assert newest_good_checkpoint(tmp_path / "failed").update == 3
    with pytest.raises(Preempted):
        in_background("ended", Signalled("on_train_batch_start", 3))
    assert newest_good_checkpoint(tmp_path / "ended").update == 4


def test_a_full_disk_ends_a_run_that_writes_in_the_background_with_its_next_update(tmp_path, in_background):
    full, seen = OSError(errno.ENOSPC, "No space left on device", "update-3"), Validated()
    with pytest.raises(RunFailed, match=r"update-3 could not be written.*it has no checkpoint yet"):
        in_background("run", seen, error=full)
    assert seen.updates == [3]
    assert names(tmp_path / "run") == []


def train_until_killed(folder: Path) -> None:
    """Train in the background, without an end of the writing of update 6."""
    write_more = checkpoints.sync

    def sync(path):
        if path.name.startswith("update-000006"):
            (folder / "writes").touch()
            signal.pause()
        write_more(path)

    checkpoints.sync = sync
    run(folder, 8, plugins=[DurableCheckpointIO(in_background=True)])


def test_a_kill_while_a_checkpoint_is_written_in_the_background_costs_the_updates_since_the_one_before(tmp_path):
    killed = tmp_path / "killed"
    killed.mkdir()
    process = multiprocessing.get_context("spawn").Process(target=train_until_killed, args=(killed,))
    process.start()
    while not (killed / "writes").exists():
        assert process.is_alive()
        time.sleep(0.05)
    process.kill()
    process.join()
    assert names(killed) == ["best.ckpt", "last.ckpt", "update-000003.ckpt", "update-000006.ckpt.tmp"]
    run(tmp_path / "whole", 8)
    run(killed, 8)
    assert same(*(state(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("whole", "killed")))
    assert names(killed) == names(tmp_path / "whole")


class Signalled(pl.Callback):
    """Sends a signal to this process once, at a moment of training."""

    def __init__(self, hook: str, update: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.update, self.number, self.sent = update, number, False
        setattr(self, hook, self.send)

    def send(self, trainer, *_):
        if trainer.global_step == self.update and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, list[int]]:
    """An undisturbed run, and where it validated: epochs of four updates, a validation at every third."""
    folder, validated = tmp_path_factory.mktemp("whole"), Validated()
    run(folder, 8, [validated])
    return folder, validated.updates


MOMENTS = [
    ("on_train_batch_start", 0, 1),
    ("on_before_optimizer_step", 3, 4),  # the last of an epoch
    ("on_before_optimizer_step", 2, 3),  # one that is validated
    ("on_validation_batch_start", 6, 6),
    ("on_validation_end", 3, 3),
    ("on_before_optimizer_step", 7, 8),  # the last of all
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("hook", "update", "saved"), MOMENTS)
def test_a_run_stops_after_the_current_update_and_is_resumed_bit_for_bit(
    whole, tmp_path, capsys, hook, update, saved, number
):
    before, seen = signal.getsignal(number), Validated()
    with pytest.raises(SystemExit) as left:
        run(tmp_path, 8, [Signalled(hook, update, number), seen, CheckpointCallback(tmp_path), Preemption()])
    assert signal.getsignal(number) is before
    if number == signal.SIGTERM:
        assert isinstance(left.value, Preempted)
        assert left.value.code == TRY_AGAIN == 75
        said = capsys.readouterr().err
        assert f"received SIGTERM: stopped after update {saved} with exit code 75" in said
        assert f"saved as {tmp_path}/checkpoints/update-00000{saved}.ckpt" in said
        assert f"resume={tmp_path}\n" in said
    else:  # Lightning exits
        assert isinstance(left.value.__context__, KeyboardInterrupt)
        assert re.search(rf"update {saved}, saved.* asr-train resume={tmp_path}$", str(left.value.__context__))
    run(tmp_path, 8, [seen])
    for name in ("best", "last"):
        assert same(*(state(folder / "checkpoints" / f"{name}.ckpt") for folder in (whole[0], tmp_path)))
    assert seen.updates == whole[1]


def test_the_numbers_of_the_last_update_are_logged_before(tmp_path):
    class Logger(pl.loggers.logger.DummyLogger):
        steps: list[int] = []  # noqa: RUF012

        def log_metrics(self, metrics, step=None):
            if "train/loss" in metrics:
                self.steps.append(step)

    callbacks = [Signalled("on_train_batch_start", 3), CheckpointCallback(tmp_path), Preemption()]
    with pytest.raises(Preempted):
        run(tmp_path, 6, callbacks, logger=Logger(), log_every_n_steps=1)
    assert Logger.steps == [0, 1, 2, 3]


def test_slurm_is_not_asked_to_requeue_and_handlers_are_put_back(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("lightning.pytorch.trainer.connectors.signal_connector.call", asked.append)
    monkeypatch.setattr("lightning.fabric.plugins.environments.slurm.SLURMEnvironment.detect", lambda: True)
    for name, value in (("JOB_ID", "1"), ("NTASKS", "1"), ("PROCID", "0"), ("LOCALID", "0"), ("NODEID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    callbacks = [Signalled("on_train_batch_start", 1, signal.SIGUSR1), CheckpointCallback(tmp_path), Preemption()]
    with pytest.raises(Preempted):
        run(tmp_path, 4, callbacks, accumulate_grad_batches=2)  # the update is finished first
    assert not asked
    assert names(tmp_path) == ["last.ckpt", "update-000002.ckpt"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
