"""How long one step of each optimizer takes on the parameters of a Zipformer, next to torch's fused AdamW.

    python3 scripts/setup.py bench && pip install --no-deps 'zipformer==0.1.3'
    python scripts/bench optimizers [--only Adafactor,MaxFactor] [--limits] [--markdown]
    python scripts/bench optimizers-zipformer_m --device cuda         beside replayed steps and numbers of kernels

One process, one thread. After warming up, every round times each optimizer once, in a shuffled order, and fused AdamW
after each of its steps, which the ratio compares it with, so that a busy machine hurts both alike. A slow optimizer
takes part in fewer rounds, so that the whole table takes minutes. All work on the same tensors, which are written anew
before every step, as a backward pass would; an optimizer that does more on some steps than on others is timed over its
whole period. ``--limits`` exits with 1 when one of ours takes longer or keeps more state than it may.

ms: median time of one step, CPU time with one thread; ratio: to fused AdamW, median and quartiles of the rounds; ops:
what a step dispatches, without views and reads, counted by a TorchDispatchMode; waits: numbers read off tensors, where
a GPU would be waited for; ours reads them on a CPU alone, as it is free.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from bench.configs import build_encoder
from bench.measure import (
    INSTALL,
    Row,
    Setting,
    at_most,
    captured,
    error_text,
    in_turns,
    lacking,
    left_out,
    median_ms,
    num_kernels,
    timed_ms,
    until_error,
)
from bench.output import listed
from bench.peers import ROWS, UNIT, Spec, build_optimizer
from optim import Chain

SHAPES = Path(__file__).with_name("zipformer_s.json")
NUM_REPEATS = 15
SECONDS_EACH = 3.0  # after which an optimizer takes part in no further round
# how many times fused AdamW an eager step may take, 0: nothing is asked; those of SOAP and PSGDKron are a fifth of what
# they took at 30d78e0; what has been measured least comes first
MOST_RATIOS = {
    **{"icefall_scaled_adam": 0, "ScaledAdam": 4, "icefall_eve": 0, "Eve": 2.5, "SOAP": 70, "PSGDKron": 80},
    **{"heavyball_adamw": 0, "AdamW": 2, "LaProp": 2, "ADOPT": 2, "Lion": 2, "RMSprop": 2, "ScheduleFreeAdamW": 2},
    **{"heavyball_muon_adamw": 0, "torch_muon_adamw": 0, "Muon": 12, "Cain": 5, "LearnedGradient": 0},
    **{"Adafactor": 5, "T5XAdafactor_128": 5, "MaxFactor": 5, "torch_adafactor": 0, "pytorch_optimizer_adafactor": 0},
    **{"SOAP_10": 0, "pytorch_optimizer_soap": 0, "heavyball_psgd_kron": 0, "pytorch_optimizer_kron": 0},
}
OURS, THEIRS, MOST_OF_THEIRS = "ScaledAdam", "icefall_scaled_adam", 1 / 3
NUM_PERIODS, SECONDS = (3, 30), 3.0  # that are timed: at least and at most, and for how long if there may be more
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add which optimizers are timed on what."""
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="JSON list of [name, shape] (default: %(default)s)")
    parser.add_argument(
        "--only",
        type=lambda names: listed(parser, names, [row.name for row in ROWS]),
        default="",
        help="optimizers to time, with commas; the unit of the ratios always is",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the values and of the order (default: %(default)s)")
    parser.add_argument("--limits", action="store_true", help="miss a goal when one of ours costs more than it may")


def chosen(options: argparse.Namespace) -> list[Spec]:
    """Return the unit of the ratios and what is timed beside it."""
    return [row for row in ROWS if row is UNIT or not options.only or row.name in options.only]


def rows(setting: Setting, encoder: str) -> Iterator[Row]:
    """Yield a row for each optimizer: in rounds on ``--shapes``, or one after the other on those of an encoder."""
    if encoder:
        yield from on_encoder(setting, encoder)
        return
    options, keeps_memory = setting.options, keep_freed_memory()
    if options.limits and torch.get_num_threads() != 1:
        sys.exit("--limits are those of one thread; leave --threads out")
    stage = Stage(json.loads(options.shapes.read_text()), setting.device, options.seed)
    timed = chosen(options)
    candidates = [Candidate(row, stage) for row in timed]
    versions = [f"{name} {metadata.version(name)}" for name in sorted({row.module for row in timed} & INSTALL.keys())]
    size = f"{stage.num_elements:,} parameters in {len(stage.params)} tensors"
    memory = f"freed memory {'stays with' if keeps_memory else 'may leave'} the process"
    yield Row("circumstances", "; ".join((*versions, size, f"seed {options.seed}", memory)))
    limits = list[Row]()
    for candidate, times in zip(candidates, measure(candidates, options.repeats, options.seed), strict=True):
        row, state_bytes = candidate.row, candidate.state_bytes()
        cells = {
            "ms": f"{times.median_ms:.1f}",
            "ratio": f"{times.ratio:.2f}",
            "quartiles": f"{times.low:.2f}–{times.high:.2f}",
            "state bytes/param": f"{state_bytes:.3f}",
            "ops": f"{candidate.num_ops:,.0f}",
            "waits": f"{candidate.num_waits:,.0f}",
        }
        yield Row(row.name, cells)
        pairs = (("time", times.ratio, row.max_ratio), ("state bytes", state_bytes, row.max_state_bytes))
        limits += [at_most(f"{row.name} {kind}", value, limit) for kind, value, limit in pairs if limit < math.inf]
    yield from limits if options.limits else ()


class StepTimes(NamedTuple):
    """Milliseconds of a step, and its ratio to the unit of the same round: median and quartiles."""

    median_ms: float
    ratio: float
    low: float
    high: float


def measure(candidates: Sequence[Candidate], num_repeats: int, seed: int = 0) -> list[StepTimes]:
    """Warm all up, and time them in turns; the first is the unit of the ratios."""
    unit, nums = candidates[0], list[int]()
    for candidate in candidates:
        begun = time.monotonic()
        candidate.warm_up()
        nums.append(max(1, min(num_repeats, round(SECONDS_EACH / (time.monotonic() - begun)))))
    nums[0] = num_repeats
    rounds = in_turns([partial(candidate.period_beside, unit) for candidate in candidates], nums, seed)
    step_times = []
    for pairs in rounds:
        ratios = [mine / other if pairs is not rounds[0] else 1.0 for mine, other in pairs]
        low, ratio, high = torch.tensor(ratios).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        step_times.append(StepTimes(statistics.median(mine for mine, _ in pairs), ratio, low, high))
    return step_times


def keep_freed_memory() -> bool:
    """Let the allocator keep what is freed, for all optimizers alike; return whether it can.

    glibc hands large blocks back and takes them anew, depending on what ran before: that doubled the time of those
    that make large copies, such as icefall's ScaledAdam.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, mmap_threshold, most = -1, -3, 2**30
    return mallopt is not None and bool(mallopt(trim_threshold, most) and mallopt(mmap_threshold, most))


class Stage:
    """The parameters and gradients that all optimizers share, and the clock.

    Args:
        shapes: (name, shape) pairs.
        device: where the tensors lie.
        seed: of the values of parameters and gradients.
    """

    def __init__(self, shapes: Sequence[tuple[str, Sequence[int]]], device: str, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.values, self.slopes = (
            [(size * torch.randn(list(shape), generator=random)).to(device) for _, shape in shapes]
            for size in (0.1, 0.01)
        )
        self.grads = [torch.empty_like(slope) for slope in self.slopes]
        self.named = [(name, nn.Parameter(value.clone())) for (name, _), value in zip(shapes, self.values, strict=True)]
        self.params: list[Tensor] = [param for _, param in self.named]
        self.num_elements = sum(param.numel() for param in self.params)
        self.on_gpu = device != "cpu"
        # what other processes take from one thread is no cost of the optimizer; CPU time of several would add up
        self.clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    @torch.no_grad()
    def refresh(self) -> None:
        """Write parameters and gradients anew."""
        torch._foreach_copy_(self.params, self.values)
        torch._foreach_copy_(self.grads, self.slopes)
        for param, grad in zip(self.params, self.grads, strict=True):
            param.grad = grad  # HeavyBall takes them away

    def step_ms(self, step: Callable[[], Any]) -> float:
        """Return the milliseconds of one step."""
        self.refresh()
        return timed_ms(step, self.on_gpu, self.clock)


class Candidate:
    """A row's optimizer, ready to step.

    Raises:
        ValueError: the module is missing, or lacks the optimizer.
    """

    def __init__(self, row: Spec, stage: Stage) -> None:
        self.row, self.stage = row, stage
        self.optimizer: Optimizer = build_optimizer(row, stage.named)
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()  # schedulefree begins in its mode for evaluation
        self.step: Callable[[], Any] = self.optimizer.step

    def warm_up(self) -> None:
        """Step once and for a period, and see that every tensor moves: what does nothing is fast."""
        self.stage.step_ms(self.step)
        self.num_ops, self.num_waits = self._counts()
        pairs = zip(self.stage.params, self.stage.values, strict=True)
        num_still = sum(torch.equal(param, value) for param, value in pairs)
        if num_still:
            raise ValueError(f"{self.row.name} left {num_still} of {len(self.stage.params)} parameters where they were")

    def period_ms(self) -> float:
        """Return the milliseconds of a step, averaged over the period."""
        return statistics.fmean(self.stage.step_ms(self.step) for _ in range(self.row.period))

    def period_beside(self, unit: Candidate) -> tuple[float, float]:
        """Return the milliseconds of a step, averaged over the period, and those of the unit between its steps."""
        pairs = [(self.stage.step_ms(self.step), self.stage.step_ms(unit.step)) for _ in range(self.row.period)]
        mine, others = zip(*pairs, strict=True)
        return statistics.fmean(mine), statistics.fmean(others)

    def _counts(self) -> tuple[float, float]:
        """Return operations and waits of an eager step, averaged over the period."""
        counter = Counter()
        for _ in range(self.row.period):
            self.stage.refresh()
            with counter:
                self.optimizer.step()
        return counter.num_ops / self.row.period, counter.num_reads / self.row.period

    def state_bytes(self) -> float:
        """Return the bytes that the optimizer keeps per element of the parameters."""
        shared = {tensor.untyped_storage().data_ptr() for tensor in (*self.stage.params, *self.stage.grads)}
        stores = {
            store.data_ptr(): store.nbytes() for store in (t.untyped_storage() for t in tensors_in(self.optimizer))
        }
        return sum(size for place, size in stores.items() if place not in shared) / self.stage.num_elements


class Counter(TorchDispatchMode):
    """Counts the operations that torch dispatches, without views, and the numbers that Python reads off tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ops, self.num_reads = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation, and do it."""
        self.num_reads += func in READS
        self.num_ops += func not in READS and not func.is_view
        return func(*args, **(kwargs or {}))


def tensors_in(thing: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors that an object holds in its attributes and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | ModuleType):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    inner: Iterable[Any] = thing if isinstance(thing, list | tuple | set | frozenset) else ()
    inner = thing.values() if isinstance(thing, Mapping) else inner
    for part in (*inner, *getattr(thing, "__dict__", {}).values()):
        yield from tensors_in(part, seen)


def on_encoder(setting: Setting, size: str) -> Iterator[Row]:
    """Yield what steps take on the shapes of an encoder of configs/encoder, and how ours is to icefall's."""
    with torch.device("meta"):
        shapes = [(name, tuple(parameter.shape)) for name, parameter in build_encoder(size).named_parameters()]
    if setting.small:
        shapes = [(name, tuple(min(dim, 8) for dim in shape)) for name, shape in shapes[:60]]
    stage, by_name = Stage(shapes, setting.device, seed=0), {row.name: row for row in ROWS}
    title, taken_ms = f"{size}, {stage.num_elements / 1e6:.1f} M in {len(stage.params)} tensors", dict[str, float]()
    for contestant in [by_name[chosen] for chosen in (UNIT.name, *MOST_RATIOS)]:
        check, most = f"{title}: {contestant.name}", MOST_RATIOS.get(contestant.name, 0) * setting.on_gpu
        if why := lacking(contestant.module):
            yield left_out(check, why)
            continue
        goal = f"at most {most:g} × {UNIT.name}" if most else "no error" if contestant.module == "optim" else ""
        yield from until_error(check, _timed(contestant, stage, setting, check, most, taken_ms), setting, goal)
    if setting.on_gpu:
        check = f"{title}: time of {OURS}, of {THEIRS}"
        if OURS in taken_ms and THEIRS in taken_ms:
            yield at_most(check, taken_ms[OURS] / taken_ms[THEIRS], MOST_OF_THEIRS)
        else:
            yield left_out(check, "one of them was not measured", f"at most {MOST_OF_THEIRS:.3g}")


def _timed(
    contestant: Spec, stage: Stage, setting: Setting, check: str, most: float, taken_ms: dict[str, float]
) -> Iterator[Row]:
    """Yield a row of means over the period, and add the milliseconds of an eager step to ``taken_ms``."""
    candidate = Candidate(contestant, stage)
    candidate.warm_up()
    times, begun = list[float](), time.monotonic()
    least, largest = NUM_PERIODS
    while len(times) < least or (len(times) < largest and time.monotonic() < begun + SECONDS):
        times.append(candidate.period_ms())
    taken_ms[contestant.name] = milliseconds = statistics.median(times)
    text = f"{milliseconds:.3g} ms"
    if setting.on_gpu:
        num = 0
        for _ in range(contestant.period):
            stage.refresh()
            num += num_kernels(candidate.step)
        text += f", {num / contestant.period:,.0f} kernels"
    ratio = milliseconds / taken_ms[UNIT.name]
    text += f", {ratio:.2f} × {UNIT.name}"
    if contestant.module == "optim" or contestant is UNIT:
        del candidate
        try:
            text += f"; captured {_captured_ms(contestant, stage, setting):.3g} ms"
        except Exception as error:  # of rules that decide by the count of steps, or of a kernel that cannot be captured
            text += f"; not captured: {error_text(error)}"
    yield Row(check, text, f"at most {most:g} × {UNIT.name}" if most else "", ratio <= most if most else None)


def _captured_ms(contestant: Spec, stage: Stage, setting: Setting) -> float:
    """Return the milliseconds of a step that a CUDA graph replays, with gradients that stay."""
    takes = {"capturable": True} if contestant is UNIT else {}
    stage.refresh()
    optimizer = Candidate(replace(contestant, options={**contestant.options, **takes}), stage).optimizer
    for member in getattr(optimizer, "optimizers", [optimizer]):
        if isinstance(member, Chain):
            member.make_capturable()
    return median_ms(captured(optimizer.step, setting.device), setting.device, NUM_PERIODS[1])
