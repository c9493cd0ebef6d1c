"""Steps that a CUDA graph replays, and how long steps take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bench_steps import timed_ms

NUM_WARM_UPS = 3  # before a capture: lazily made state, and kernels that are chosen by trying


def captured(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Warm up by ``NUM_WARM_UPS`` steps, and return what replays one; on a CPU the step itself."""
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
    """Return the median milliseconds of steps: by CUDA events on a GPU, else of CPU time, of which others take none."""
    return statistics.median(timed_ms(step, device != "cpu") for _ in range(num))


def num_kernels(step: Callable[[], Any]) -> tuple[int, float]:
    """Return the number of kernels of a step on a GPU, and their share of its time."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    kernels = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return len(kernels), sum(event.device_time for event in kernels) * 1e-6 / seconds
