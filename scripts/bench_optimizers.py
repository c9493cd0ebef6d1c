"""How long one step of each optimizer takes on the parameters of a Zipformer, next to torch's fused AdamW.

    pip install '.[bench]' && pip install --no-deps 'zipformer==0.1.3'
    python scripts/bench_optimizers.py [--only Adafactor,MaxFactor] [--limits] [--markdown]

One process, one thread. After warming up, every round times each optimizer once, in a shuffled order, and a ratio
compares two times of one round, so that a busy machine hurts all alike. All work on the same tensors, which are
written anew before every step, as a backward pass would; an optimizer that does more on some steps than on others is
timed over its whole period. ``--limits`` exits with 1 when one of ours takes longer or keeps more state than it may.
On a GPU: scripts/gpu_report.py --parts optimizers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

import torch
from bench_rows import INSTALL, ROWS, UNIT, Row
from bench_steps import Candidate, Stage, keep_freed_memory
from command_line import listed, positive, table_text
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

SHAPES = Path(__file__).parent / "shapes" / "zipformer_s.json"


@dataclass(frozen=True)
class Result:
    """What was measured of one row, per step."""

    row: Row
    median_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    state_bytes: float
    num_ops: float
    num_waits: float

    def misses(self) -> list[str]:
        """Return the limits that the row does not keep, in words."""
        kinds = (("time", self.ratio, self.row.max_ratio), ("state bytes", self.state_bytes, self.row.max_state_bytes))
        return [
            f"{self.row.name} {kind} {value:.3f}, at most {limit:g}" for kind, value, limit in kinds if value > limit
        ]


def measure(candidates: Sequence[Candidate], num_repeats: int, seed: int) -> list[Result]:
    """Time all in turns.

    Args:
        candidates: the first is the unit of the ratios.
        num_repeats: rounds.
        seed: of the order within each round.

    Returns:
        One result per candidate.
    """
    order, times = random.Random(seed), torch.zeros(len(candidates), num_repeats, dtype=torch.float64)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("Warming up", total=(num_repeats + 1) * len(candidates))
        for candidate in candidates:
            candidate.warm_up()
            progress.advance(bar)
        for turn in range(num_repeats):
            for i in order.sample(range(len(candidates)), len(candidates)):
                progress.update(bar, description=f"Round {turn + 1}: {candidates[i].row.name}", advance=1)
                times[i, turn] = candidates[i].period_ms()
    return [summary(candidate, times[i], times[0]) for i, candidate in enumerate(candidates)]


def summary(candidate: Candidate, times: Tensor, unit_times: Tensor) -> Result:
    """Reduce the rounds of one candidate to a line."""
    low, ratio, high = (times / unit_times).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=times.dtype)).tolist()
    num_ops, num_waits = candidate.counts()
    median_ms = float(times.quantile(0.5))
    return Result(candidate.row, median_ms, ratio, (low, high), candidate.state_bytes(), num_ops, num_waits)


def results_table(results: Sequence[Result], markdown: bool) -> Table:
    """Return what was measured."""
    columns = ("ms", "ratio", "quartiles", "state bytes/param", "ops", "waits")
    table = Table("optimizer")
    for column in columns:
        table.add_column(column, justify="right")
    for result in results:
        low, high = result.ratio_quartiles
        table.add_row(
            f"`{result.row.name}`" if markdown else result.row.name,
            f"{result.median_ms:.1f}",
            f"{result.ratio:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{result.state_bytes:.3f}",
            f"{result.num_ops:,.0f}",
            f"{result.num_waits:,.0f}",
        )
    return table


def circumstances(stage: Stage, options: argparse.Namespace, load: float, keeps_memory: bool) -> str:
    """Return what a reader must know to repeat or to doubt the numbers."""
    modules = sorted({row.module for row in options.rows} & INSTALL.keys())
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", *modules)]
    return (
        f"{date.today()}, {processor()}, {os.cpu_count()} cores, {options.threads} thread(s), "
        f"load {load:.2f} before and {os.getloadavg()[0]:.2f} after; {', '.join(versions)}; "
        f"{stage.num_elements:,} parameters in {len(stage.params)} tensors; {options.repeats} rounds, "
        f"seed {options.seed}; freed memory {'stays with' if keeps_memory else 'may leave'} the process."
    )


def legend(options: argparse.Namespace) -> str:
    """Return what the columns are."""
    kind = "CPU time" if options.threads == 1 else "wall time"
    return (
        f"ms: median {kind} of one step; ratio: to {UNIT.name}, median of the rounds; quartiles: of the ratio; ops: "
        "what a step dispatches, without views and reads, counted by a TorchDispatchMode; waits: numbers read off "
        "tensors, where a GPU would be waited for; ours reads them on a CPU alone, as it is free."
    )


def processor() -> str:
    """Return the name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options, checked; leaves with a message where one cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="JSON list of [name, shape] (default: %(default)s)")
    parser.add_argument("--only", default="", help="rows to time, with commas; the unit of the ratios always is")
    parser.add_argument("--repeats", type=positive, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=positive, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the values and of the order (default: %(default)s)")
    parser.add_argument("--limits", action="store_true", help="exit with 1 when one of ours costs more than it may")
    parser.add_argument("--markdown", action="store_true", help="print the table as optim/RESULTS.md has it")
    options = parser.parse_args(arguments)
    chosen = listed(parser, options.only, [row.name for row in ROWS])
    if options.limits and options.threads != 1:
        parser.error("--limits are those of one thread; leave --threads out")
    options.rows = [row for row in ROWS if row is UNIT or not chosen or row.name in chosen]
    return options


def main(arguments: Sequence[str]) -> None:
    """Measure the chosen rows, print them, and check the limits."""
    options, load = parsed(arguments), os.getloadavg()[0]
    torch.set_num_threads(options.threads)
    keeps_memory = keep_freed_memory()
    stage = Stage(json.loads(options.shapes.read_text()), "cpu", options.seed)
    candidates = [Candidate(row, stage) for row in options.rows]
    results = measure(candidates, options.repeats, options.seed)
    print(f"{circumstances(stage, options, load, keeps_memory)}\n\n{legend(options)}\n")
    print(table_text(results_table(results, options.markdown), options.markdown))
    misses = [miss for result in results for miss in result.misses()] if options.limits else []
    print(f"{len(results)} optimizers timed" + (", all limits kept" if options.limits and not misses else ""))
    if misses:
        print("Limits missed: " + "; ".join(misses))
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
