"""What a step of each optimizer of the benchmark costs, next to torch's fused AdamW: writes benchmark/v1/costs.json.

Run:  python scripts/benchmark_costs.py [ROUNDS]

One process, one thread, the parameters of the benchmark's model, the settings of the entries as shipped, as
bench_optimizers.py measures. The entries' own times depend on their machines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from bench_optimizers import measure, processor
from bench_rows import Row
from bench_steps import Candidate, Stage, keep_freed_memory
from hydra import compose, initialize_config_dir

from asr.benchmark.entries import read_entry
from asr.benchmark.page import COSTS
from asr.benchmark.rules import BASELINE, TASKS, VERSION
from asr.config.build import build_data_parts, outline_recognizer, part, plain
from asr.config.dry_run import VOCAB_SIZE
from asr.config.help import CONFIGS

ROOT = Path(__file__).parents[1] / "benchmark" / VERSION
PERIOD = 10  # steps: some do more on every tenth


class Entrant(Candidate):
    """An entry's optimizer, with its settings."""

    def __init__(self, name: str, settings: Mapping[str, Any], stage: Stage) -> None:
        config: dict[str, Any] = {}
        for key, value in settings.items():
            *parents, last = key.split(".")
            node = config
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        self.row, self.stage = Row(name, "", "", period=PERIOD), stage
        self.optimizer = part(config, "parameter_rules", optimizer=part(config, "optimizer"))(stage.named)
        self.step = self.optimizer.step


def main(num_rounds: int) -> None:
    """Measure all entries as shipped, those of the first task that has them."""
    torch.set_num_threads(1)
    keep_freed_memory()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = plain(compose("train", [f"recipe={TASKS[0]}/benchmark_{VERSION}"]))
    model = outline_recognizer(config, VOCAB_SIZE, build_data_parts(config).features.num_features)
    stage = Stage([(name, tuple(param.shape)) for name, param in model.named_parameters()], "cpu", seed=0)
    settings: dict[str, Mapping[str, Any]] = {BASELINE: {}}
    for path in sorted(ROOT.glob("*/as_shipped/*/entry.yaml")):
        for line in read_entry(path.parent).lines:
            settings[path.parent.name] = line.get("settings") or settings.get(path.parent.name, {})
    entrants = [Entrant(name, own, stage) for name, own in settings.items()]
    found = measure(entrants, num_rounds, seed=0)
    costs = {one.row.name: {"ms": one.median_ms, "ratio": one.ratio, "quartiles": one.ratio_quartiles} for one in found}
    where = {"date": str(date.today()), "processor": processor(), "torch": torch.__version__, "rounds": num_rounds}
    (ROOT / COSTS).write_text(json.dumps({"measured": where, **costs}, indent=1) + "\n")
    print(json.dumps(costs, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
