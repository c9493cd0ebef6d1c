"""Work by several processes: the same results in the same order, and an end that leaves nobody behind."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from asr.data.parallel import num_processes, run_jobs
from tests.programs import is_running, wait_until
from werdict.errors import OutOfMemory, RunFailed


def children() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


@pytest.mark.parametrize("num_jobs", [1, 5])
@pytest.mark.parametrize("num_tasks", [0, 40])
def test_results_come_in_the_order_of_the_tasks(num_jobs, num_tasks):
    def work(task: int) -> tuple[int, int]:
        time.sleep(0.002 * (task % 3))
        return task, torch.get_num_threads()

    before = children()
    assert list(run_jobs(work, iter(range(num_tasks)), num_jobs)) == [(task, 1) for task in range(num_tasks)]
    assert children() == before


def test_several_processes_work_and_tasks_are_read_as_they_become_free():
    read = []

    def tasks():
        for number in range(100):
            read.append(number)
            yield number

    def work(_: int) -> int:
        time.sleep(0.01)  # longer than it takes to start the second process's loop
        return os.getpid()

    found = run_jobs(work, tasks(), 2)
    pids = {next(found), next(found)}
    assert os.getpid() not in pids
    assert len(read) < 20
    assert len(pids | set(found)) == 2


def raising(error: Exception):
    def fail() -> None:
        raise error

    return fail


FAILURES = [
    *(
        (num_jobs, raising(error), type(error), f"^{re.escape(str(error))}$")
        for num_jobs in (1, 2)
        for error in (ValueError("bad"), OutOfMemory("full"), OSError(28, "No space left", "there"))
    ),
    (2, raising(type("Local", (Exception,), {})("why")), RuntimeError, "Local: why"),  # cannot be sent
    (2, lambda: os.kill(os.getpid(), signal.SIGKILL), RunFailed, r"lower data\.num_jobs"),
]


@pytest.mark.parametrize(("num_jobs", "fail", "kind", "said"), FAILURES)
def test_an_error_of_a_task_is_raised_and_all_processes_end(num_jobs, fail, kind, said):
    before = children()
    with pytest.raises(kind, match=said) as raised:
        list(run_jobs(lambda task: fail() if task == 3 else task, range(10), num_jobs))
    assert type(raised.value) is kind
    assert children() == before


def test_signals_to_all_processes_end_none_of_those_that_work():
    def work(task: int) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return task

    assert list(run_jobs(work, range(4), 2)) == list(range(4))


def test_the_number_of_processes_is_that_of_the_cores_unless_it_is_given():
    assert num_processes(None) == len(os.sched_getaffinity(0))
    assert num_processes(7) == 7


ENDLESS = """
import os, sys, time
from pathlib import Path
from asr.data.parallel import run_jobs

def work(task):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)

list(run_jobs(work, range(2), 2))
"""


def test_a_process_ends_with_the_one_that_has_started_it(tmp_path: Path):
    parent = subprocess.Popen([sys.executable, "-c", ENDLESS, tmp_path])
    while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 2:
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(is_running, pids)), 20)
