"""The steps that bench_optimizers.py measures: their time, operations, waits and state."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from bench_rows import Row, build_optimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

NUM_WARM_UPS = 3
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


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


def timed_ms(step: Callable[[], Any], on_gpu: bool, clock: Callable[[], float] = time.process_time) -> float:
    """Return the milliseconds of a step: by CUDA events on a GPU, else by the clock."""
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


class Candidate:
    """A row's optimizer, ready to step.

    Raises:
        ValueError: the module is missing, or lacks the optimizer.
    """

    def __init__(self, row: Row, stage: Stage) -> None:
        self.row, self.stage = row, stage
        self.optimizer: Optimizer = build_optimizer(row, stage.named)
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()  # schedulefree begins in its mode for evaluation
        self.step: Callable[[], Any] = self.optimizer.step

    def warm_up(self) -> None:
        """Step a few times, and see that every tensor moves: what does nothing is fast."""
        for _ in range(max(NUM_WARM_UPS, self.row.period)):
            self.stage.step_ms(self.step)
        pairs = zip(self.stage.params, self.stage.values, strict=True)
        num_still = sum(torch.equal(param, value) for param, value in pairs)
        if num_still:
            raise ValueError(f"{self.row.name} left {num_still} of {len(self.stage.params)} parameters where they were")

    def period_ms(self) -> float:
        """Return the milliseconds of a step, averaged over the period."""
        return sum(self.stage.step_ms(self.step) for _ in range(self.row.period)) / self.row.period

    def counts(self) -> tuple[float, float]:
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
