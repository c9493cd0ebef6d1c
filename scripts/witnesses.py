"""What a user can see of this program: recorded before a change, and compared after it.

    python scripts/witnesses.py record FOLDER [--tree TREE] [--data PATH] [--only NAME,NAME]
    python scripts/witnesses.py compare OLD NEW

record: runs the commands of a tree in a temporary folder, one at a time with ``torch_threads=1``, and writes a file for
each witness: digests of weights after 40 updates, error rates, texts. compare: prints what differs.
``tests/witnesses`` holds those of one machine; ``tests/optim`` holds the trajectories of optimizers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from witness_runs import ROOT, Witnesses, flat


def record(folder: Path, tree: Path, data: Path, only: Sequence[str]) -> None:
    """Write a file for each witness."""
    folder.mkdir(parents=True, exist_ok=True)
    processor = re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())
    made_with = {name: version(name) for name in ("torch", "lhotse", "numpy", "sherpa-onnx", "onnxruntime")}
    made_with["processor"] = processor[1] if processor else "unknown"
    with tempfile.TemporaryDirectory(prefix="witnesses-") as place:
        witnesses = Witnesses(Path(place), tree.resolve(), data.resolve())
        for name in only or [name for name in vars(Witnesses) if not name.startswith("_")]:
            start = os.times()
            try:
                found = getattr(witnesses, name)()
            except RuntimeError as error:
                found = {"failed": [line for line in str(error).splitlines() if line.startswith("asr-")]}
                print(error, file=sys.stderr)
            text = json.dumps({"made with": made_with, **found}, indent=1, ensure_ascii=False)
            (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            spent = sum(os.times()[:4]) - sum(start[:4])
            print(f"{name}: {spent:.0f} CPU s", flush=True)


def compare(old: Path, new: Path) -> int:
    """Print what differs between two recordings; return 1 if anything does."""
    changed, machines = set[str](), set[str]()
    for name in sorted({file.name for folder in (old, new) for file in folder.glob("*.json")}):
        if missing := [str(folder) for folder in (old, new) if not (folder / name).exists()]:
            print(f"{name}: not in {missing[0]}")
            changed.add(name)
            continue
        was, now = (dict(flat(json.loads((folder / name).read_text(encoding="utf-8")))) for folder in (old, new))
        for key in sorted({*was, *now}):
            if was.get(key, "(none)") != now.get(key, "(none)"):
                print(f"{name}: {key}: {was.get(key, '(none)')} → {now.get(key, '(none)')}")
                (machines if key.startswith("made with") else changed).add(name)
    if machines:
        print(
            "other versions or another processor: digests of weights may differ, and texts of models as weak as these"
        )
    print(f"{len(changed)} witnesses differ: {', '.join(sorted(changed))}" if changed else "no witness differs")
    return int(bool(changed))


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--tree", type=Path, default=ROOT)
    recording.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    recording.add_argument("--only", type=lambda names: names.split(","), default=())
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options.old, options.new)
    record(options.folder, options.tree, options.data, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
