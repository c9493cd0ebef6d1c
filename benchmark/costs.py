"""What a step of each optimizer of the benchmark costs, next to torch's fused AdamW: writes benchmark/v1/costs.json.

Run:  PYTHONPATH=scripts python benchmark/costs.py [ROUNDS]

One process, one thread, the parameters of the benchmark's model, the settings of the entries as shipped, as
``scripts/bench optimizers`` measures. The entries' own times depend on their machines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from bench.configs import options_from
from bench.optimizers import Candidate, Stage, keep_freed_memory, measure
from bench.output import processor
from bench.peers import Spec
from omegaconf import OmegaConf

from asr.run.build import VOCAB_SIZE
from asr.run.instantiate import build_component
from asr.run.options import RunOptions
from asr.run.parts import build_update_parts, outline_recognizer
from werdict.benchmark.entries import BASELINE, TASKS, VERSION, read_entry
from werdict.benchmark.page import COSTS

ROOT = Path(__file__).parent / VERSION
PERIOD = 10  # steps: some do more on every tenth


class Entrant(Candidate):
    """An entry's optimizer, with its settings."""

    def __init__(self, name: str, settings: Mapping[str, Any], stage: Stage, options: RunOptions) -> None:
        config = OmegaConf.create()
        for key, value in settings.items():
            OmegaConf.update(config, key, value)
        parts = {key: OmegaConf.to_container(config[key]) for key in ("optimizer", "parameter_rules")}
        self.row, self.stage = Spec(name, "", "", period=PERIOD), stage
        self.optimizer = build_update_parts(options.updated(**parts)).optimizer_factory(stage.named)
        self.step = self.optimizer.step


def main(num_rounds: int) -> None:
    """Measure all entries as shipped, those of the first task that has them."""
    torch.set_num_threads(1)
    keep_freed_memory()
    options = options_from(f"recipe={TASKS[0]}/benchmark_{VERSION}")
    model = outline_recognizer(options, VOCAB_SIZE, build_component(options.features, "features").num_features)
    stage = Stage([(name, tuple(param.shape)) for name, param in model.named_parameters()], "cpu", seed=0)
    settings: dict[str, Mapping[str, Any]] = {BASELINE: {}}
    for path in sorted(ROOT.glob("*/as_shipped/*/entry.yaml")):
        for line in read_entry(path.parent).lines:
            settings[path.parent.name] = line.get("settings") or settings.get(path.parent.name, {})
    entrants = [Entrant(name, own, stage, options) for name, own in settings.items()]
    costs = {
        entrant.row.name: {"ms": times.median_ms, "ratio": times.ratio, "quartiles": (times.low, times.high)}
        for entrant, times in zip(entrants, measure(entrants, num_rounds), strict=True)
    }
    where = {"date": str(date.today()), "processor": processor(), "torch": torch.__version__, "rounds": num_rounds}
    (ROOT / COSTS).write_text(json.dumps({"measured": where, **costs}, indent=1) + "\n")
    print(json.dumps(costs, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
