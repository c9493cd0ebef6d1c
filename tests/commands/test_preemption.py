"""A machine is taken away: whole process groups and single ranks are signalled, as schedulers do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from asr.processes import TRY_AGAIN
from asr.training.checkpoints import point_link
from tests.commands.conftest import TINY, Workplace
from tests.commands.test_resume import data, last, losses, same_weights, wait_for_update
from tests.programs import start_anew


def test_a_job_that_is_signalled_as_a_whole_saves_and_goes_on(trained, tmp_path):
    """The readers get the signal too, and must not end the run; a damaged checkpoint is skipped."""
    process = start_anew("train", *TINY, "logger=csv", "run_dir=run", f"data.dir={data(trained)}", cwd=tmp_path)
    wait_for_update(tmp_path / "run", 1, process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=600) == TRY_AGAIN, (tmp_path / "log.txt").read_text()
    said = (tmp_path / "log.txt").read_text()
    assert "received SIGTERM: stopped after update" in said
    assert f"resume={tmp_path / 'run'}" in said
    damaged = tmp_path / "run" / "checkpoints" / "update-000099.ckpt"
    damaged.write_bytes(b"half")
    point_link(damaged.with_name("last.ckpt"), damaged)
    printed = Workplace(tmp_path).run("train", "resume=run")
    assert f"left out: {damaged} is damaged" in printed
    assert "resuming from update" in printed
    assert same_weights(last(tmp_path / "run"), last(trained.run_dir))
    assert losses(tmp_path / "run") == losses(trained.run_dir)


def test_one_process_of_two_is_signalled_and_both_leave(trained, tmp_path):
    long = ("trainer.max_steps=5000", "trainer.val_check_interval=5000", "trainer.devices=2", "logger=csv")
    process = start_anew(
        "train", *TINY, *long, "data.batch.max_duration_s=10", "run_dir=run", f"data.dir={data(trained)}", cwd=tmp_path
    )
    wait_for_update(tmp_path / "run", 2, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (second,) = [pid for pid in children if b"LOCAL_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(int(second), signal.SIGUSR1)
    assert process.wait(timeout=600) == TRY_AGAIN, (tmp_path / "log.txt").read_text()
    assert "another process received a signal: stopped after update" in (tmp_path / "log.txt").read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert last(tmp_path / "run")["global_step"] >= 2
