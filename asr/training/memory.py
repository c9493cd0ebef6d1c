"""How much memory a device has, and the peak of what a step uses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
MEMINFO = Path("/proc/meminfo")
RESET_PEAK = "5"  # what /proc/self/clear_refs takes for it, see proc(5)
# limits of a process (ulimit -v and -d), and what counts for them
LIMITS = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
# files with limit, usage and caches of a container: control groups version 2, then version 1
CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class CudaMemory:
    """The memory of a GPU in bytes, as torch allocates it.

    Attributes:
        device: the GPU.
        name: of the device, and how it is measured.
        available: how much of it this process may use.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{torch.cuda.get_device_name(device)} ({device})"
        # without what other processes and the CUDA context hold
        self.available = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)

    def now(self) -> int:
        """Return the bytes that tensors hold."""
        return torch.cuda.memory_allocated(self.device)

    def start(self) -> None:
        """Reset the peak, and free what is cached."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the most bytes that tensors held since the start, after all queued work is done."""
        torch.cuda.synchronize(self.device)  # kernels may still be queued
        return torch.cuda.max_memory_allocated(self.device)


class ProcessMemory:
    """The main memory in bytes that this process has gained since the construction of this object.

    Approximate: the system counts whole pages, and the allocator caches some. Attributes as above.

    Args:
        num_processes: that share what is available.
    """

    def __init__(self, num_processes: int = 1) -> None:
        self.name = "main memory (approximate: growth of resident memory)"
        shared = min(_in_status("MemAvailable", MEMINFO), _left_in_container()) // num_processes
        self.available = min(shared, _left_in_limits())
        self.before = _in_status("VmRSS")

    def now(self) -> int:
        """Return the growth of resident memory."""
        return _in_status("VmRSS") - self.before

    def start(self) -> None:
        """Free what the allocator caches, and reset the peak."""
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        # if the system forbids it, the peak is that since the process started
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(RESET_PEAK)

    def peak(self) -> int:
        """Return the largest growth of resident memory."""
        return _in_status("VmHWM") - self.before  # the high-water mark of VmRSS


DeviceMemory = CudaMemory | ProcessMemory


def memory_of(device: torch.device, num_processes: int = 1) -> DeviceMemory:
    """Return the memory of the device that a model is on; processes on a CPU share that of the machine."""
    return CudaMemory(device) if device.type == "cuda" else ProcessMemory(num_processes)


def _in_status(name: str, file: Path = STATUS) -> int:
    """Return a number, in bytes, from a file with lines ``name:  number kB``."""
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def _left_in_container() -> int:
    """Return what the container's limit leaves, without file caches; 2^63 - 1 if it has no limit."""
    for limit, used, cached in CONTAINERS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            folder = Path(limit).parent
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            most, now = int(Path(limit).read_text()), int((folder / used).read_text())
            return most - now + int(stat[cached])
    return 2**63 - 1


def _left_in_limits() -> int:
    """Return what the limits of this process leave; 2^63 - 1 if it has none."""
    found = ((resource.getrlimit(limit)[0], name) for limit, name in LIMITS)
    return min([2**63 - 1, *(most - _in_status(name) for most, name in found if most != resource.RLIM_INFINITY)])
