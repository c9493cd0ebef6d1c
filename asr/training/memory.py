"""How much memory the device of a model has, and how much a step takes at its peak."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Protocol

import torch

STATUS = Path("/proc/self/status")
MEMINFO = Path("/proc/meminfo")
RESET_PEAK = "5"  # what /proc/self/clear_refs takes for it, see proc(5)
# limit, use and statistics of a container, by version of its control group
CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class DeviceMemory(Protocol):
    """The memory of a device, in bytes.

    Attributes:
        name: the device, and how it is measured.
        available: what this process may use of it.
    """

    name: str
    available: int

    def now(self) -> int:
        """Return what is in use."""

    def start(self) -> None:
        """Forget the peak, and what is kept for later use."""

    def peak(self) -> int:
        """Return the most that was in use at a time since the start; what was queued is finished first."""


class CudaMemory:
    """The memory of a GPU as torch hands it out.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{torch.cuda.get_device_name(device)} ({device})"
        # what other processes and the CUDA context hold cannot be had
        self.available = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)

    def now(self) -> int:
        """Return what tensors hold."""
        return torch.cuda.memory_allocated(self.device)

    def start(self) -> None:
        """Forget the peak, and give back what is cached."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the most that tensors held."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)


class ProcessMemory:
    """The main memory that this process has come to hold since this object was made.

    Approximate: the system counts pages, and the allocator keeps some for later use.
    """

    def __init__(self) -> None:
        self.name = "main memory (approximate: growth of resident memory)"
        self.available = min(_in_status("MemAvailable", MEMINFO), _left_in_container())
        self.before = _in_status("VmRSS")

    def now(self) -> int:
        """Return by how much resident memory has grown."""
        return _in_status("VmRSS") - self.before

    def start(self) -> None:
        """Give back what the allocator keeps, and forget the peak."""
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        # where it is forbidden, the peak is that since the process began
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(RESET_PEAK)

    def peak(self) -> int:
        """Return by how much resident memory had grown at most."""
        return _in_status("VmHWM") - self.before


def memory_of(device: torch.device) -> DeviceMemory:
    """Return the memory of the device that a model is on."""
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory()


def _in_status(name: str, file: Path = STATUS) -> int:
    """Return a number of a file of ``name:  number kB`` lines, in bytes."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def _left_in_container() -> int:
    """Return what the container's limit leaves, caches of files not counted; where there is no limit, very much."""
    for limit, used, cached in CONTAINERS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            folder = Path(limit).parent
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            most, now = int(Path(limit).read_text()), int((folder / used).read_text())
            return most - now + int(stat[cached])
    return 2**63 - 1
