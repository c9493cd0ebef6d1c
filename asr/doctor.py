"""``python -m asr.doctor``: checks of the machine, each with what to do; and versions, commit and devices."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import asr
from asr.commit import source_commit
from werdict.console import PlainConsole
from werdict.errors import first_line
from werdict.files import named_path

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
SHARED_MEMORY = Path("/dev/shm")
CONTROL_GROUP = Path("/sys/fs/cgroup")
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "lustre", "beegfs", "gpfs", "9p", "ceph", "glusterfs")
HOSTS = {"api.wandb.ai": "logger=wandb, else WANDB_MODE=offline", "huggingface.co": "encoder=pretrained, else a folder"}
GB = 1e9
MIN_OPEN_FILES = 1024

console = PlainConsole()


class Finding(NamedTuple):
    """What a check found: ``problem`` if something that werdict needs does not work; ``note`` if an option does not."""

    status: Literal["ok", "note", "problem"]
    what: str
    advice: str = ""


def version_lines() -> list[str]:
    """Return version and commit, torch, and the devices that it can use."""
    first = f"werdict {asr.__version__}, commit {source_commit() or 'unknown'}, Python {platform.python_version()}"
    if importlib.util.find_spec("torch") is None:  # asr-compare does without
        return [first, "torch is not installed"]
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    cores = len(os.sched_getaffinity(0))
    return [first, f"torch {torch.__version__}, {cuda}", f"devices: {', '.join([*gpus, f'cpu, {cores} cores'])}"]


def check_torch() -> Iterator[Finding]:
    """Check that torch was built for the GPUs and their driver, and which numbers they compute with."""
    import torch

    has_driver = NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None
    if not torch.cuda.is_available():
        if not has_driver:
            yield Finding("ok", "no NVIDIA driver: runs use the CPU")
        elif torch.version.cuda is None:
            yield Finding("problem", "torch is built for CPUs, but there is an NVIDIA driver", "install torch for CUDA")
        else:
            advice = "update the driver, or install torch for an older CUDA; look at CUDA_VISIBLE_DEVICES"
            yield Finding("problem", f"torch (CUDA {torch.version.cuda}) cannot use the NVIDIA driver", advice)
    for index in range(torch.cuda.device_count()):
        name, (major, minor) = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        free, total = torch.cuda.mem_get_info(index)
        built = [arch for arch in torch.cuda.get_arch_list() if arch.startswith((f"sm_{major}", "compute_"))]
        if not built:
            advice = "install a torch that is built for it"
            yield Finding("problem", f"{name}: torch has no kernels for compute capability {major}.{minor}", advice)
        yield Finding("ok", f"{name}: {free / GB:.0f} of {total / GB:.0f} GB free")
        if major < 8:  # Ampere is the first to compute with it
            yield Finding("note", f"{name}: no bfloat16", "trainer.precision=16-mixed, or 32-true")
        if free < total / 2:
            yield Finding("note", f"{name}: more than half of its memory is in use", "nvidia-smi shows by whom")


def check_memory() -> Iterator[Finding]:
    """Check memory, shared memory for workers of the loader, and the limit on open files."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    limit, used = (CONTROL_GROUP / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and (most := limit.read_text().strip()) != "max":  # of a container or a batch system
        free = min(free, int(most) - int(used.read_text()))
    low = free < 2 * GB
    advice = "close programs, or lower data.batch.max_duration_s and data.workers.num_workers" if low else ""
    yield Finding("note" if low else "ok", f"memory: {free / GB:.1f} GB free", advice)
    try:
        shared = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        shared = 0
    few = shared < GB
    advice = "docker run --shm-size=8g (or --ipc=host), or data.workers.num_workers=0" if few else ""
    yield Finding("problem" if few else "ok", f"shared memory: {shared / GB:.1f} GB free in {SHARED_MEMORY}", advice)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < MIN_OPEN_FILES:
        yield Finding("note", f"open files: at most {files}", f"ulimit -n {4 * MIN_OPEN_FILES}")


def check_audio() -> Iterator[Finding]:
    """Check what audio can be read."""
    import soundfile

    lacking = sorted({"WAV", "FLAC", "OGG", "MP3"} - soundfile.available_formats().keys())
    advice = "pip install --upgrade soundfile" if lacking else ""
    formats = f"without {', '.join(lacking)}" if lacking else "with FLAC, Ogg and MP3"
    yield Finding("note" if lacking else "ok", f"libsndfile {soundfile.__libsndfile_version__}, {formats}", advice)
    if importlib.util.find_spec("av") is None:
        yield Finding("note", "no FFmpeg (PyAV): m4a, mp4 and webm cannot be read", "pip install 'werdict[media]'")
    else:
        import av

        lacking = sorted({"aac", "opus", "mp3"} - av.codecs_available)
        without = f", without {', '.join(lacking)}" if lacking else ""
        yield Finding("note" if lacking else "ok", f"FFmpeg of PyAV {av.__version__}{without}")
    if importlib.util.find_spec("espeakng_loader") is None:
        advice = "pip install 'werdict[tts]'"
        yield Finding("note", "no eSpeak NG: the recipes digits (the default) and phrases cannot be made", advice)


def check_folders() -> Iterator[Finding]:
    """Check the places of prepared data and of runs: free space, permission, file system."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "werdict"
    for option, path in (("data.dir", os.environ.get("WERDICT_CACHE") or cache), ("runs", "runs")):
        folder = named_path(path).absolute()
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free, kind = shutil.disk_usage(there).free, file_system(there)
        what = f"{option}: {folder}, {free / GB:.0f} GB free, {kind}"
        if not os.access(there, os.W_OK | os.X_OK):
            yield Finding("problem", f"{what}, not writable", "export WERDICT_CACHE=FOLDER, or run_dir=FOLDER")
        elif free < 5 * GB:
            yield Finding("note", what, "less than 5 GB: free space, or export WERDICT_CACHE=FOLDER, or run_dir=FOLDER")
        elif option == "data.dir" and kind.startswith(NETWORK_FILE_SYSTEMS):
            yield Finding("note", what, "small files are slow there: WERDICT_CACHE=LOCAL_FOLDER, or data.storage=shar")
        else:
            yield Finding("ok", what)


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, as Linux calls it."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    holding = [(len(place), kind) for place, kind in mounts if path.is_relative_to(place.replace("\\040", " "))]
    return max(holding)[1] if holding else "unknown"


def check_network() -> Iterator[Finding]:
    """Check wandb's key, and the hosts that some options need."""
    from asr.tracking.wandb_logger import has_api_key

    if has_api_key():
        yield Finding("ok", "wandb: there is a key")
    else:
        yield Finding("note", "wandb: no key, so that runs stay offline", "wandb login, or export WANDB_API_KEY=…")
    for host, use in HOSTS.items():
        try:
            socket.create_connection((host, 443), timeout=3).close()
        except OSError as error:
            yield Finding("note", f"network: {host} cannot be reached ({first_line(error)})", f"only for {use}")
        else:
            yield Finding("ok", f"network: {host} answers")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    *(check_torch, check_memory, check_audio, check_folders, check_network),
)


def main() -> int:
    """Print versions and findings; return 1 if there is a problem, else 0."""
    for line in version_lines():
        console.print_line(line)
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except (ImportError, OSError) as error:  # a library that is broken, or its shared libraries
            what = f"{check.__name__}: {type(error).__name__}: {first_line(error)}"
            findings.append(Finding("problem", what, "install the packages of werdict again"))
    for status, what, advice in findings:
        console.print_line(f"{status:<8}{what}{f' → {advice}' if advice else ''}")
    return int(any(finding.status == "problem" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
