"""A machine of an elastic run of torchrun is lost: whoever is left continues with the same updates."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import torch

from tests.commands.test_resume import last, losses, wait_for_update
from tests.small_runs import TINY

LENGTH = ("trainer.max_steps=60", "trainer.val_check_interval=30", "schedule.warmup_steps=5", "decode_test=false")
WORDS = (*TINY, *LENGTH, "callbacks.checkpoints.every_n_updates=1", "data.batch.max_duration_s=10", "run_dir=run")


def start(port: int, folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    """Start one of at most two machines, in a process group of its own; it prints to a log of its own."""
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1")
    # the machine that is lost must not be the one where they meet
    waiting = f"--rdzv-conf=is_host={name == 'log'},last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=2"
    size = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.2")
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, waiting, *size, "-m", "asr.commands.train"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.txt").open("wb") as log:
        return subprocess.Popen(
            [*command, *words], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def kill(machine: subprocess.Popen[bytes]) -> None:
    """Kill torchrun, and the process that it has started in a session of its own."""
    children = subprocess.run(["pgrep", "-P", str(machine.pid)], capture_output=True, text=True).stdout
    for pid in (machine.pid, *map(int, children.split())):
        os.kill(pid, signal.SIGKILL)
    machine.wait()


def test_whoever_is_left_continues_with_the_same_updates(small_run, tmp_path):
    words = (*WORDS, f"data.dir={small_run.data_dir}")
    small_run.programs.run("train", *words, "trainer.accumulate_grad_batches=2", cwd=tmp_path, timeout_s=300)
    expected, lines = last(tmp_path / "run"), losses(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "whole")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    machines = [start(port, tmp_path, name, *words, "trainer.num_nodes=2") for name in ("log", "second")]
    try:
        wait_for_update(tmp_path / "run", 10, machines[0])
        kill(machines[1])
        assert machines[0].wait(timeout=300) == 0, (tmp_path / "log.txt").read_text()
    finally:
        for machine in machines:
            if machine.poll() is None:
                kill(machine)
    printed = (tmp_path / "log.txt").read_text()
    assert "trainer.accumulate_grad_batches=2" in printed
    assert "next epoch" not in printed
    assert losses(tmp_path / "run") == lines
    for key, value in expected["state_dict"].items():
        torch.testing.assert_close(last(tmp_path / "run")["state_dict"][key], value, rtol=1e-4, atol=1e-6)
