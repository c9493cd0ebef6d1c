"""Search for bytes that a reader answers with anything but a message: coverage-guided, with atheris.

    python scripts/fuzz.py READER [--minutes 10] [--folder FOLDER]     READER: a row of READERS in fuzz_readers.py
    python scripts/fuzz.py READER --input FILE                         reads what was found once more

FOLDER keeps the inputs that reach new code, which a later search begins with, and below ``found`` what was found: one
input for each place in the code, and what it did there. Ends with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

READERS = ("table", "jsonl", "archive", "checkpoint", "run_folder", "manifest", "shar", "arpa")  # of fuzz_readers.py
HANG_S = 60  # of wall time on a busy machine; what needs too much processor time is found before
MAX_INPUT_BYTES = 2**16
MAX_RESTARTS = 20
# what formats mean by more than single bytes
WORDS = ("NaN", "-Infinity", "1e999", "9" * 20, "-1", "0.5", "null", "true", "[]", "{}", "[" * 8, "&a", "*a", "<<:")
WORDS_OF_FILES = (
    "../",
    "/dev/zero",
    "pipe:",
    "command",
    "!!python/name:os.system",
    "${oc.env:HOME}",
    r"\\ud800",
    r"\x00",
)
ADDRESS_SPACE = 2**32  # bytes above what the imports take, so that a bomb ends before the machine does


def main() -> int:
    """Search, print progress, and end with one line."""
    options = _options()
    folder = options.folder or Path(tempfile.gettempdir()) / "werdict-fuzz" / options.reader
    if options.input:
        from fuzz_readers import READERS
        from fuzz_watch import Watch

        problem = Watch(folder / "work").find(READERS[options.reader].read, options.input.read_bytes())
        print(problem or "well answered")
        return int(problem is not None)
    if importlib.util.find_spec("atheris") is None:
        sys.exit("fuzz.py: atheris is not installed; it exists for Linux on x86-64: pip install 'werdict[dev]'")
    return search(options.reader, folder, 60 * options.minutes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, help="default: werdict-fuzz/READER below the temporary directory")
    parser.add_argument("--input", type=Path)
    return parser.parse_args()


def search(reader: str, folder: Path, seconds: float) -> int:
    """Search for a time, in processes that an input may kill; return 1 if anything was found."""
    for name in ("corpus", "found"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    known = set((folder / "found").iterdir())
    end, num_inputs, coverage = time.monotonic() + seconds, 0, list[int]()
    context = multiprocessing.get_context("spawn")
    for _ in range(MAX_RESTARTS):
        log = folder / "log.txt"
        child = context.Process(target=hunt, args=(reader, folder, log, max(1, int(end - time.monotonic()))))
        child.start()
        while child.is_alive():
            child.join(60)
            counted, seen = _progress(log)
            print(f"{reader}: {num_inputs + counted} inputs, coverage {seen[-1:]}, {_minutes_left(end)}", flush=True)
        num_inputs, coverage = num_inputs + counted, coverage + seen
        if child.exitcode == 0 or time.monotonic() >= end:
            break
    found = sorted(set((folder / "found").iterdir()) - known)
    reached = f"coverage {coverage[0]} → {max(coverage)}" if coverage else f"no coverage, see {log}"
    what = f"found {', '.join(map(str, found))}" if found else "nothing found"
    failed = bool(found) or not coverage
    print(f"{'FAILED' if failed else 'ok'}: {reader}: {num_inputs} inputs, {reached}, {what}; corpus in {folder}")
    return int(failed)


def _progress(log: Path) -> tuple[int, list[int]]:
    """Return how many inputs a search has tried, and the branches covered, from what libFuzzer prints."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    tried = [int(number) for number in re.findall(r"(?m)^(?:#|stat::number_of_executed_units: )(\d+)", text)]
    return max(tried, default=0), [int(number) for number in re.findall(r"cov: (\d+)", text)]


def _minutes_left(end: float) -> str:
    return f"{max(0.0, end - time.monotonic()) / 60:.0f} minutes left"


def hunt(reader: str, folder: Path, log: Path, seconds: int) -> None:
    """Search in this process, which ends with it."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import atheris

    readers = _instrumented()
    from fuzz_watch import Watch

    for number, seed in enumerate(readers[reader].seeds()):
        (folder / "corpus" / f"seed-{number}").write_bytes(seed)
    with tempfile.TemporaryDirectory(prefix="werdict-fuzz-") as work:
        watch = Watch(Path(work) / "input")

        def try_input(data: bytes) -> None:
            problem = watch.find(readers[reader].read, data)
            if problem:
                _keep(folder / "found", problem, data)

        atheris.Setup([sys.argv[0], *_settings(folder, seconds)], try_input)
        atheris.Fuzz()


def _instrumented() -> Mapping[str, Any]:
    """Import the readers so that their branches guide the search; with all of torch in it this took minutes."""
    import atheris

    with atheris.instrument_imports(include=["tarfile", "zipfile", "yaml"]):
        import tarfile  # noqa: F401
        import zipfile  # noqa: F401

        import yaml  # noqa: F401
    import rich.progress
    import torch.optim.swa_utils
    from lightning.fabric.plugins.io import torch_io  # noqa: F401

    # bars cost more than most readers
    vars(rich.progress)["track"] = lambda items, *_, **__: items
    vars(rich.progress)["open"] = lambda path, mode, **_: Path(path).open(mode)  # noqa: SIM115
    with atheris.instrument_imports(include=["asr", "lhotse", "torch._weights_only_unpickler"]):
        importlib.reload(torch._weights_only_unpickler)
        from fuzz_readers import READERS
    return READERS


def _settings(folder: Path, seconds: int) -> list[str]:
    pages, resident = (int(size) for size in Path("/proc/self/statm").read_text().split()[:2])
    most = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    (folder / "words.txt").write_text("".join(f'"{word}"\n' for word in WORDS + WORDS_OF_FILES))
    return [
        f"-dict={folder / 'words.txt'}",
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={(resident * resource.getpagesize() + ADDRESS_SPACE) // 2**20}",
        f"-artifact_prefix={folder / 'found'}/",
        "-print_final_stats=1",
        str(folder / "corpus"),
    ]


def _keep(found: Path, problem: str, data: bytes) -> None:
    """Keep the first input for each place in the code: the last frame of a traceback, or the first words."""
    frames = re.findall(r'(?m)^  File ".*?([^/]+", line \d+)', problem)
    place = f"{frames[-1]} {problem.splitlines()[-1].split(':')[0]}" if frames else " ".join(problem.split()[:2])
    name = hashlib.sha256(place.encode()).hexdigest()[:8]
    if not (found / f"{name}.input").exists():
        (found / f"{name}.input").write_bytes(data)
        (found / f"{name}.txt").write_text(problem, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
