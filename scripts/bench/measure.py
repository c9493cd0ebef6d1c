"""What every bench shares: its setting, the rows that it yields, clocks, turns, and processes of their own."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

T = TypeVar("T")
Value = str | dict[str, str]  # text, or cells by the titles of their columns

INSTALL = {
    "heavyball": "python3 scripts/setup.py bench",
    "pytorch_optimizer": "python3 scripts/setup.py bench",
    "schedulefree": "python3 scripts/setup.py peers",
    "pytest": "python3 scripts/setup.py dev",
    "hypothesis": "python3 scripts/setup.py dev",
    "espeakng_loader": "python3 scripts/setup.py tts",
    # its requirements exclude the torch that this project needs, so the group cannot hold it; some files of it are read
    "zipformer": "pip install --no-deps 'zipformer==0.1.3'",
}
NUM_WARM_UPS = 3  # before a capture: lazily made state, and kernels that are chosen by trying
MINUTES = 7.0  # of a part, after which nothing new is begun in it


@dataclass(frozen=True)
class Setting:
    """Where a bench runs, and how much of it.

    Attributes:
        device: ``cuda`` or ``cpu``.
        small: whether to show only that everything works.
        work: an empty folder.
        data: folder with archives of corpora, or None.
        options: of the command line, with those that the bench has added.
    """

    device: str
    small: bool
    work: Path
    data: Path | None = None
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    begun: float = field(default_factory=time.monotonic)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    @property
    def trainer(self) -> str:
        """The override that chooses the device."""
        return "trainer=gpu" if self.on_gpu else "trainer=cpu"

    def is_late(self) -> bool:
        """Return whether nothing new should begin."""
        return time.monotonic() - self.begun > 60 * MINUTES


@dataclass(frozen=True)
class Row:
    """One line of what is printed and reported.

    Attributes:
        check: what was looked at.
        value: what was found; rows with the same columns are printed as one table.
        goal: what it should be; empty: nothing is asked.
        met: whether it is, which something not measured is not; None: nothing is asked.
        measured: whether there was anything to see; the part is not complete without a row that has a goal.
    """

    check: str
    value: Value
    goal: str = ""
    met: bool | None = None
    measured: bool = True


def at_most(check: str, value: float, limit: float, unit: str = "") -> Row:
    """Return a row of a number that must not be larger than a limit."""
    return Row(check, f"{value:.3g}{unit}", f"at most {limit:.3g}{unit}", value <= limit)


def holds(check: str, fact: bool, value: str = "", goal: str = "yes") -> Row:
    """Return a row of what must be true."""
    return Row(check, value or ("yes" if fact else "no"), goal, fact)


def left_out(check: str, why: str, goal: str = "") -> Row:
    """Return a row of what was not measured; its goal, if it has one, counts as missed."""
    return Row(check, f"not measured: {why}", goal, met=False if goal else None, measured=False)


def too_late(check: str, goal: str = "measured") -> Row:
    """Return a row that there was no time for, which counts as missed whatever was asked."""
    return left_out(check, "the time of the part was used up", goal)


def error_text(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0][:200]}"


def until_error(check: str, rows: Iterator[Row], setting: Setting, goal: str = "no error") -> Iterator[Row]:
    """Yield rows, and one in place of an error, missed unless the goal is empty; what comes after it is still measured.

    Nothing is begun if it is late.
    """
    if setting.is_late():
        yield too_late(check)
        return
    try:
        yield from rows
    except Exception as error:  # of kernels, compilers and other people's packages, which have errors of their own
        yield Row(check, error_text(error), goal, met=False if goal else None)


def lacking(package: str) -> str:
    """Return how to install a package that is not installed; empty if it is."""
    if importlib.util.find_spec(package) is not None:
        return ""
    return f"{package} is not installed: {INSTALL.get(package, 'pip install .')}"


def timed_ms(step: Callable[[], Any], on_gpu: bool = False, clock: Callable[[], float] = time.process_time) -> float:
    """Return the milliseconds of a step: by CUDA events on a GPU, else by the clock, of CPU time if none is given."""
    if not on_gpu:
        start = clock()
        step()
        return 1e3 * (clock() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()  # else the launches would hide behind what was launched before
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def in_turns(steps: Sequence[Callable[[], T]], num_rounds: int | Sequence[int], seed: int = 0) -> list[list[T]]:
    """Make every step once in each round, in shuffled orders, so that a busy machine hurts all alike.

    Args:
        steps: to make.
        num_rounds: in which each takes part; those that take part in fewer do so in the first.
        seed: of the orders.

    Returns:
        What each step has returned, by round.
    """
    order, returned = random.Random(seed), [list[T]() for _ in steps]
    nums = [num_rounds] * len(steps) if isinstance(num_rounds, int) else num_rounds
    for turn in track(range(max(nums)), "Rounds", console=Console(stderr=True), transient=True):
        for place in order.sample(range(len(steps)), len(steps)):
            if turn < nums[place]:
                returned[place].append(steps[place]())
    return returned


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median ratio of the rounds of `in_turns`, and the lowest and the highest."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def alone(function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a module in a process of its own, with as many threads of torch as here."""
    threads = torch.set_num_threads, (torch.get_num_threads(),)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), *threads) as pool:
        return pool.submit(function, *arguments).result()


def peak_mb() -> float:
    """Return the peak memory of the tensors on the GPU, if it is in use, or of this process.

    A process counts the memory of the one that started it, too.
    """
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu_seconds(*of: int) -> float:
    """Return CPU seconds of this process and of its finished children, or of those named by `resource`."""
    usages = map(resource.getrusage, of or (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def captured(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Warm up by ``NUM_WARM_UPS`` steps, and return what replays one in a CUDA graph; on a CPU the step itself."""
    if device == "cpu":
        for _ in range(NUM_WARM_UPS):
            step()
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def median_ms(step: Callable[[], Any], device: str, num: int) -> float:
    """Return the median milliseconds of steps."""
    return statistics.median(timed_ms(step, device != "cpu") for _ in range(num))


def num_kernels(step: Callable[[], Any]) -> int:
    """Return the number of kernels of a step on a GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in profile.events())
