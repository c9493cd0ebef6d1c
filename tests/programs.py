"""The commands, started hundreds of times: forked from one process that has imported them, each a program of its own.

A fresh interpreter needs seconds to import torch; a fork needs milliseconds and has the same exit code, signals, limits
and open files of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from asr.commands.__main__ import COMMANDS


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: of its exit; negative: the signal that killed it.
        printed: to standard output and error.
    """

    code: int
    printed: str

    @property
    def last_line(self) -> str:
        """The last line that says something, without the hint at the environment variable for developers."""
        lines = [line for line in self.printed.splitlines() if line.strip() and "HYDRA_FULL_ERROR=1 shows" not in line]
        return lines[-1] if lines else ""


@dataclass(frozen=True)
class Started:
    """A command at work, in a process group of its own; used as a ``subprocess.Popen`` is.

    Attributes:
        programs: that have started it.
        pid: of its process, and of its group.
    """

    programs: Programs
    pid: int

    def poll(self) -> int | None:
        """Return the exit code, None while it is at work."""
        code: int | None = self.programs.ask({"poll": self.pid})["code"]
        return code

    def wait(self, timeout: float) -> int:
        """Return the exit code; a command that is at work after some seconds is killed."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        """Signal its process alone."""
        os.kill(self.pid, number)


class Programs:
    """Starts commands of this project in processes of their own.

    Args:
        log: file for what the forking process itself says.
    """

    def __init__(self, log: Path) -> None:
        self.log = log.open("w")
        self.started: list[Started] = []
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.programs"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def run(
        self,
        command: str,
        *words: str,
        cwd: Path,
        timeout_s: float = 300,
        code: int | None = 0,
        limits: Mapping[str, int] | None = None,
        environment: Mapping[str, str] | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> Ended:
        """Run ``asr-<command>`` with words, and wait for its end.

        Args:
            command: of ``COMMANDS``.
            words: its command line.
            cwd: folder that it runs in.
            timeout_s: after which it is killed; it then ends with -9.
            code: that it must end with; None for any.
            limits: of the process, by their names in ``resource``, such as ``{"RLIMIT_FSIZE": 4096}``; those of memory
                count from what the forked process has, which differs between machines.
            environment: variables beside the test's own.
            constants: of modules, which have other values in the command, such as a bound that is waited for.
        """
        job = {
            "command": command,
            "words": words,
            "cwd": str(cwd),
            "timeout_s": timeout_s,
            "limits": dict(limits or {}),
            "environment": dict(environment or {}),
            "constants": dict(constants or {}),
        }
        answer = self.ask(job)
        printed = Path(answer.pop("printed"))
        ended = Ended(printed=printed.read_text(encoding="utf-8", errors="replace"), **answer)
        printed.unlink()
        assert code in (None, ended.code), f"exit code {ended.code}, expected {code}:\n{ended.printed}"
        return ended

    def start(
        self,
        command: str,
        *words: str,
        cwd: Path,
        constants: Mapping[str, float] | None = None,
        limits: Mapping[str, int] | None = None,
        ignored: signal.Signals | None = None,
        num_spares: int = 0,
    ) -> Started:
        """Start ``asr-<command>``, which prints to ``log.txt`` in its folder, and do not wait for it.

        Args:
            command: of ``COMMANDS``.
            words: its command line.
            cwd: folder that it runs in.
            constants: as in ``run``.
            limits: as in ``run``.
            ignored: signal that it ignores from its start, as nohup lets it.
            num_spares: ranks, or jobs of a sweep, that are forked too; further ones are new interpreters.
        """
        job = {"command": command, "words": words, "cwd": str(cwd), "environment": {}}
        job |= {"limits": dict(limits or {}), "constants": dict(constants or {})}
        job |= {"ignored": ignored, "num_spares": num_spares}
        self.started.append(Started(self, self.ask(job | {"log": str(cwd / "log.txt")})["pid"]))
        return self.started[-1]

    def end_started(self) -> None:
        """Kill what a test that failed has left at work."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        self.started.clear()

    def ask(self, job: Mapping[str, Any]) -> Any:
        """Have the forking process do something, and return its answer."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps(job), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def close(self) -> None:
        """End the forking process; children of the tests may hold its input open, so that closing it is not enough."""
        self.server.terminate()
        self.server.communicate()
        self.log.close()


def start_anew(command: str, *words: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a command as `Programs.start` does, but in an interpreter of its own, as a shell does."""
    with (cwd / "log.txt").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "asr.commands", command, *words],
            cwd=cwd,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def wait_until(happened: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Return whether a process exists and is more than an entry that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def serve(jobs: Iterator[str]) -> None:
    """Fork a child for every job, and answer with how it ended; run by ``python -m tests.programs``."""
    import gc
    import importlib
    import tempfile

    from hydra import compose, initialize_config_dir

    from asr.run.command_line import config_folder

    _import_all()
    tasks = {name: importlib.import_module(f"asr.commands.{name}") for name in COMMANDS}
    with initialize_config_dir(str(config_folder("train")), version_base="1.3"):
        compose("train")  # so that no child looks for Hydra's plugins, and builds its parser, again
    gc.collect()
    gc.freeze()  # a child whose collector looked at all that is imported here would copy its memory
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    codes: dict[int, int] = {}
    for line in jobs:
        job = json.loads(line)
        if "poll" in job:
            ended, status = (0, 0) if job["poll"] in codes else os.waitpid(job["poll"], os.WNOHANG)
            if ended:
                codes[ended] = os.waitstatus_to_exitcode(status)
            print(json.dumps({"code": codes.get(job["poll"])}), file=answers, flush=True)
            continue
        if "log" in job:
            descriptor, printed = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), job["log"]
        else:
            descriptor, printed = tempfile.mkstemp(prefix="werdict-printed-")
        child = os.fork()
        if child == 0:
            _be(job, tasks, descriptor)
        os.close(descriptor)
        if "log" in job:
            print(json.dumps({"pid": child}), file=answers, flush=True)
            continue
        ended_by = os.pidfd_open(child)  # can be read once the child has ended
        if not select.select([ended_by], [], [], job["timeout_s"])[0]:
            os.killpg(child, signal.SIGKILL)
        os.close(ended_by)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"code": code, "printed": printed}), file=answers, flush=True)


def _import_all() -> None:
    """Import what commands import once they know what they shall build, so that no child does so again."""
    import importlib
    import pkgutil

    import asr
    import optim

    importlib.import_module("hydra.experimental.compose")
    for package in (asr, optim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _be(job: Mapping[str, Any], tasks: Mapping[str, Any], descriptor: int) -> None:
    """Be the command, in a process that never returns."""
    import resource
    import tempfile

    from asr.commands.app import run_app
    from asr.processes import die_with_parent
    from tests.spare_processes import fork_spares

    def main(command: str, words: Sequence[str]) -> NoReturn:
        sys.argv = [f"asr-{command}", *words]
        _exit_after(partial(run_app, command, tasks[command].run))

    def start() -> None:
        os.setsid()  # so that it can be killed with all that it has started
        die_with_parent(os.getppid())
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # pytest may run under nohup
        if job.get("ignored"):
            signal.signal(job["ignored"], signal.SIG_IGN)
        os.chdir(job["cwd"])
        os.environ.update(job["environment"])
        tempfile.tempdir = None  # which the forking process has looked up
        for name in (1, 2):
            os.dup2(descriptor, name)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, value in job["limits"].items():
            resource.setrlimit(getattr(resource, name), (value + _mapped(name),) * 2)
        for name, value in job["constants"].items():
            module, _, constant = name.rpartition(".")
            assert hasattr(sys.modules[module], constant), name
            setattr(sys.modules[module], constant, value)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
        fork_spares(job.get("num_spares", 0), main)
        main(job["command"], job["words"])

    _exit_after(start)


def _exit_after(work: Callable[[], object]) -> NoReturn:
    """Do what a process is for, and end it as an interpreter does."""
    code = 70
    try:
        work()
        code = 0
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _mapped(limit: str) -> int:
    """Return the bytes that a process has of what a limit counts; 0 if it counts no memory."""
    field = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}.get(limit, "")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if field and line.startswith(field)), 0)


if __name__ == "__main__":
    serve(iter(sys.stdin.readline, ""))
