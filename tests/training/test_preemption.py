"""A signal ends a run after its update, with a checkpoint from which it is resumed exactly."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import lightning.pytorch as pl
import pytest

from asr.processes import TRY_AGAIN
from asr.training.callbacks.checkpoints import CheckpointCallback, Preempted, Preemption
from tests.training.runs import Validated, names, run, same, state


class Signalled(pl.Callback):
    """Sends a signal to this process once, at a moment of training."""

    def __init__(self, hook: str, update: int, number: signal.Signals = signal.SIGTERM, times: int = 1) -> None:
        self.update, self.number, self.times, self.sent = update, number, times, 0
        setattr(self, hook, self.send)

    def send(self, trainer, *_):
        if trainer.global_step == self.update and not self.sent:
            self.sent += 1
            for _ in range(self.times):
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


@pytest.mark.parametrize(("hook", "update", "saved"), MOMENTS)
def test_a_run_stops_after_the_current_update_and_is_resumed_bit_for_bit(whole, tmp_path, capsys, hook, update, saved):
    seen = Validated()
    with pytest.raises(Preempted) as left:
        run(tmp_path, 8, [Signalled(hook, update), seen, CheckpointCallback(tmp_path), Preemption()])
    assert left.value.code == TRY_AGAIN == 75
    said = capsys.readouterr().err
    assert f"received SIGTERM: stopped after update {saved} with exit code 75" in said
    assert f"saved as {tmp_path}/checkpoints/update-00000{saved}.ckpt" in said
    assert f"resume={tmp_path}\n" in said
    run(tmp_path, 8, [seen])
    for name in ("best", "last"):
        assert same(*(state(folder / "checkpoints" / f"{name}.ckpt") for folder in (whole[0], tmp_path)))
    assert seen.updates == whole[1]


@pytest.mark.parametrize(("hook", "update", "saved"), MOMENTS)
def test_ctrl_c_saves_after_the_current_update_too(whole, tmp_path, hook, update, saved):
    before = signal.getsignal(signal.SIGINT)
    callbacks = [Signalled(hook, update, signal.SIGINT), CheckpointCallback(tmp_path), Preemption()]
    with pytest.raises(SystemExit) as left:  # of Lightning
        run(tmp_path, 8, callbacks)
    assert isinstance(left.value.__context__, KeyboardInterrupt)
    assert re.search(rf"update {saved}, saved.* asr-train resume={tmp_path}$", str(left.value.__context__))
    assert signal.getsignal(signal.SIGINT) is before
    run(tmp_path, 8)
    assert same(*(state(folder / "checkpoints" / "last.ckpt") for folder in (whole[0], tmp_path)))


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    callbacks = [
        Signalled("on_train_batch_start", 2, signal.SIGINT, times=2),
        CheckpointCallback(tmp_path),
        Preemption(),
    ]
    with pytest.raises(SystemExit):
        run(tmp_path, 8, callbacks)
    assert names(tmp_path) == []


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
