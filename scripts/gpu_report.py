"""Everything that only a GPU can show, in one command; each part is a process of its own.

    python scripts/gpu_report.py --out DIR [--parts correct,training-an4-bf16] [--data FOLDER] [--again]

Writes ``DIR/<part>.json``, row by row, and ``DIR/report.md``: a part that is cut off leaves the rows that it has. One
that is complete for this commit, device and size is kept, unless --again is given; the others are run. Nothing is
downloaded: corpora are spoken on the spot, or read from archives in --data. Exits with 1 if a goal is missed or a part
does not end. --small --device cpu shows on any machine that everything works.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from bench.output import UNSEEN, PartFile, circumstances, key_of, listed, write_report

BENCH = Path(__file__).resolve().parent / "bench"
LAYERED = ("transformer_12x512", "conformer_12x512")
PUBLISHED = "a run to its published WER"
# rough minutes on an H200, and what is shown; they are run in this order: first what has been measured least
PARTS = {
    "training-an4-bf16": (4, PUBLISHED),
    "exactness-find_batch_size": (2, "whether what it proposes fits"),
    "optimizers-zipformer_s": (5, "steps of ours and of others on the shapes of Zipformer S"),
    "training-seeds": (6, "three seeds one after another, and at a time"),
    "exactness-bf16": (6, "the same seed twice, SIGKILL and resumption; deterministic or not"),
    "training-phrases-bf16": (7, PUBLISHED),
    **{f"encoders-zipformer_{size}": (5, "8, 32 and 96 x 10 s beside the authors' package") for size in "sm"},
    **{f"encoders-zipformer_{size}-compiled": (5, "8, 32 and 96 x 10 s") for size in "sm"},
    "correct-models": (1, "encoders, losses and streams, to those of a CPU"),
    "correct-optimizers": (5, "trajectories, bf16 parameters, captured steps, waits for the device"),
    "harness": (2, "an update of a run, beside a bare loop"),
    "harness-checkpoints": (2, "how long training stands still for a checkpoint"),
    "distributed": (1, "gloo, NCCL and DDP, on two GPUs if there are two"),
    "optimizers-zipformer_m": (7, "as for S"),
    "optimizers-zipformer_l": (8, "as for S"),
    **{f"encoders-{name}": (3, "8, 32 and 96 x 10 s") for name in LAYERED},
    **{f"encoders-{name}-compiled": (3, "8, 32 and 96 x 10 s") for name in LAYERED},
    **{f"training-{corpus}-fp16": (minutes, PUBLISHED) for corpus, minutes in (("an4", 4), ("phrases", 7))},
    **{f"training-{corpus}-{bits}": (2, PUBLISHED) for corpus in ("fsdd", "digits") for bits in ("bf16", "fp16")},
    "training-loader": (2, "how long updates wait for 4 and 12 workers"),
    "exactness-fp32": (6, "as for bf16"),
}
MOST_SECONDS = 480  # of a part; it begins nothing new after seven minutes


def run_part(part: str, options: argparse.Namespace, key: dict[str, object]) -> None:
    """Run one part in a process of its own, and record it if it does not end well."""
    print(f"== {part}", flush=True)
    file = PartFile(options.out, part)
    words = ["--device", options.device, "--out", str(options.out)]
    words += ["--data", str(options.data)] * bool(options.data) + ["--small"] * options.small
    paths = os.pathsep.join(filter(None, [str(BENCH.parents[1]), os.environ.get("PYTHONPATH")]))  # of its runs
    command = [sys.executable, str(BENCH), part, *words]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True)
    try:
        code = process.wait(timeout=MOST_SECONDS)
        said = f"with exit code {code}; its last lines are on the terminal" if code else ""
    except subprocess.TimeoutExpired:
        said = f"after {MOST_SECONDS} s, which is the most"
    finally:
        # runs that it has started would continue, and slow down what is measured next
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if said:
        file.add_failure(key, said)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    listing = "\n".join(f"  {part:25} {minutes} min  {shows}" for part, (minutes, shows) in PARTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"parts, in their order:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = tuple(dict.fromkeys(part.partition("-")[0] for part in PARTS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument(
        "--parts", default=",".join(groups), help="or the beginnings of their names (default: %(default)s)"
    )
    parser.add_argument("--data", type=Path, help="folder with fsdd_flac.tar and an4_feats.tar")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="show only that everything works, in minutes on a CPU")
    parser.add_argument("--again", action="store_true", help="run parts that are complete, too")
    options = parser.parse_args(arguments)
    chosen = listed(parser, options.parts, (*groups, *PARTS))
    options.parts = [part for part in PARTS if chosen & {part, part.partition("-")[0]}]
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; to see that everything works: --small --device cpu")
    if options.device == "cpu" and not options.small:
        parser.error("--device cpu: on a CPU there is only the small form; add --small")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data: {options.data} is no folder")
    options.out, options.data = options.out.resolve(), options.data and options.data.resolve()
    return options


def main() -> int:
    """Run what is not done, and write the report."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the part that runs is ended, too
    key = key_of(circumstances(options.device), options.small)
    for part in options.parts:
        if PartFile(options.out, part).is_done(key) and not options.again:
            print(f"== {part}: complete for {key['commit']}; --again runs it anew")
            continue
        try:
            run_part(part, options, key)
        finally:
            write_report(options.out, PARTS)
    missed = write_report(options.out, PARTS)
    unseen = sum(check.endswith(UNSEEN) for check in missed)
    said = f"{len(missed)} goals missed{f', {unseen} of them not measured' if unseen else ''}"
    print(f"{options.out / 'report.md'}: {said if missed else 'every goal was met'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
