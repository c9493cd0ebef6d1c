"""Two hosts, as network namespaces, of which one is lost: the other says so within seconds, and the run is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.test_resume import wait_for_update
from tests.small_runs import TINY

PREFIX = f"w{os.getpid() % 100_000}"
HOSTS = {f"{PREFIX}a": "10.99.0.1", f"{PREFIX}b": "10.99.0.2"}  # namespace and interface: address
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d")
WORDS = (
    *("trainer=slurm", "trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.num_nodes=2"),
    *("trainer.devices=1", "trainer.max_steps=150", "trainer.val_check_interval=50", "run_dir=run"),
    *("callbacks.checkpoints.every_n_updates=2", "data.batch.max_duration_s=10", "trainer.log_every_n_steps=1"),
)


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that configures the network."""
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Make two hosts with a cable between them, or skip; return their names."""
    first, second = HOSTS
    try:
        made = ip("netns", "add", first)
    except FileNotFoundError:
        pytest.skip("there is no ip: apt-get install iproute2")
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        ip("netns", "add", second)
        ip("link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second)
        for host, address in HOSTS.items():
            ip("-n", host, "addr", "add", f"{address}/24", "dev", host)
            for interface in (host, "lo"):
                assert ip("-n", host, "link", "set", interface, "up").returncode == 0
        yield [first, second]
    finally:
        for host in HOSTS:
            kill(host)
            ip("netns", "del", host)


def kill(host: str) -> None:
    """Kill all processes of a host."""
    for pid in ip("netns", "pids", host).stdout.split():
        os.kill(int(pid), signal.SIGKILL)


def start(hosts: list[str], folder: Path, *words: str) -> list[subprocess.Popen[bytes]]:
    """Start a run of two nodes; each prints to a log of its own."""
    started = []
    for host, is_first in zip(hosts, (True, False), strict=True):
        meeting = (f"--rdzv-endpoint={HOSTS[hosts[0]]}:29500", f"--rdzv-conf=is_host={is_first}".lower())
        node = (*TORCHRUN, *meeting, f"--local-addr={HOSTS[host]}", "-m", "asr.commands.train", *TINY, *WORDS, *words)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": host, "OMP_NUM_THREADS": "1"}
        with (folder / f"{'log' if is_first else 'second'}.txt").open("wb") as log:
            command = ["ip", "netns", "exec", host, *node]
            started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log))
    return started


def said_of_loss(folder: Path) -> str:
    """Return what the survivor says in its own line."""
    (line,) = [line for line in (folder / "log.txt").read_text().splitlines() if "asr-train: " in line]
    return line


@pytest.mark.parametrize(
    ("lost", "words", "most_s"), [("dies", (), 30), ("is silent", ("trainer.peer_timeout_s=5",), 40)]
)
def test_a_host_is_lost_and_the_other_ends_with_a_line_and_resumes(hosts, small_run, tmp_path, lost, words, most_s):
    data = f"data.dir={small_run.data_dir}"
    survivor, _ = start(hosts, tmp_path, data, *words)
    wait_for_update(tmp_path / "run", 2, survivor)
    begin = time.monotonic()
    if lost == "dies":
        kill(hosts[1])
    else:
        ip("-n", hosts[1], "link", "set", hosts[1], "down")
    code = survivor.wait(timeout=120)
    seconds = time.monotonic() - begin
    assert code == 1
    assert "the connection to another process of this run was lost" in said_of_loss(tmp_path)
    assert f"asr-train resume={tmp_path / 'run'} continues from update " in said_of_loss(tmp_path)
    assert seconds < most_s
    ended = small_run.run("train", f"resume={tmp_path / 'run'}", "trainer.num_nodes=1", timeout_s=180)
    assert "resuming from update" in ended.printed
