"""A sweep that tunes before it compares: lr and warm-up on dev, then several seeds, tests decoded once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from asr.cli.errors import ConfigError
from asr.cli.tuning import Contestant, contestants
from asr.console import PlainConsole
from asr.safe_io import write_whole

console = PlainConsole()


class TunedSweeper(Sweeper):
    """Gives every contestant the same number of trials, then trains the best settings of each with the same seeds.

    First every learning rate of its range. While the best of any contestant lies at the edge of what was tried, each
    gets one trial more: beyond the edge, or between its best and the neighbour. Then warm-ups at the best learning
    rate. All that is judged on the development sets, with a seed of its own; test sets are decoded at the end alone.

    Args:
        sweep: ranges and seeds, as ``configs/sweep/optimizers.yaml`` has them.
    """

    def __init__(self, sweep: DictConfig) -> None:
        container = OmegaConf.to_container(sweep, resolve=True)
        assert isinstance(container, dict)
        self.options: dict[str, Any] = {str(key): value for key, value in container.items()}
        self.num_jobs = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Remember who starts jobs."""
        self.config, self.hydra_context, self.sweep_name = config, hydra_context, str(config.sweep.name)
        self.sweep_dir = Path(config.hydra.sweep.dir)
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Tune and train; ``arguments`` are overrides for all jobs."""
        self.common = _plain_overrides(arguments)
        tuned = contestants(self.options)
        self.sweep_dir.mkdir(parents=True, exist_ok=True)
        self._try("learning rates", [(contestant, lr) for contestant, lrs in tuned for lr in lrs])
        found = [contestant for contestant, _ in tuned]
        for _ in range(self.options["max_extra_trials"]):
            if not any(contestant.at_edge for contestant in found):
                break
            self._try("one more learning rate each", [(contestant, contestant.next_lr()) for contestant in found])
        self._try_warmups(found)
        report(found, self.sweep_dir)
        seeds = self.options["seeds"]
        self._launch("seeds", [[*contestant.chosen(), f"seed={seed}"] for seed in seeds for contestant in found])

    def _try(self, what: str, trials: Sequence[tuple[Contestant, float]]) -> None:
        usual = [contestant.warmups[0] if contestant.warmups else None for contestant, _ in trials]
        words = [contestant.words(lr, warmup) for (contestant, lr), warmup in zip(trials, usual, strict=True)]
        for (contestant, lr), wer in zip(trials, self._tune(what, words), strict=True):
            contestant.trials[lr] = wer

    def _try_warmups(self, found: Sequence[Contestant]) -> None:
        trials = [(contestant, warmup) for contestant in found for warmup in contestant.warmups[1:]]
        for contestant in found:
            contestant.warmup_trials = dict.fromkeys(contestant.warmups[:1], contestant.trials[contestant.best_lr])
        words = [contestant.words(contestant.best_lr, warmup) for contestant, warmup in trials]
        for (contestant, warmup), wer in zip(trials, self._tune("warm-ups", words), strict=True):
            contestant.warmup_trials[warmup] = wer

    def _tune(self, what: str, jobs: Sequence[list[str]]) -> list[float]:
        extra = [f"seed={self.options['tuning_seed']}", "decode_test=false", *self.options["tuning_overrides"]]
        return self._launch(what, [[*words, *extra] for words in jobs])

    def _launch(self, what: str, jobs: Sequence[list[str]]) -> list[float]:
        """Say what is next, run jobs, and return their WERs on the development sets; infinity where one has none."""
        if not jobs:
            return []
        batch = [[*words, *self.common, f"sweep.name={self.sweep_name}"] for words in jobs]
        console.print(f"{what}: {len(jobs)} jobs")
        assert self.launcher is not None
        self.validate_batch_is_legal(batch)
        results = self.launcher.launch(batch, initial_job_idx=self.num_jobs)
        self.num_jobs += len(batch)
        wers = [float(result.return_value) for result in results]
        return [math.inf if math.isnan(wer) else wer for wer in wers]


def _plain_overrides(arguments: Sequence[str]) -> list[str]:
    """Return what was typed beside the sweep itself.

    Raises:
        ConfigError: something is swept by commas, or is what the sweep chooses.
    """
    kept = []
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.key_or_group
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: this sweep chooses what varies; give one value")
        if key in ("optimizer", "schedule", "seed", "optimizer.lr"):
            raise ConfigError(
                f"{override.input_line}: this sweep chooses {key}; see sweep.only, sweep.arms and sweep.seeds"
            )
        if key != "sweep" and not key.startswith(("sweep.", "hydra.", "hydra/")):
            kept.append(str(override.input_line))
    return kept


def report(found: Sequence[Contestant], sweep_dir: Path) -> None:
    """Print what was chosen, and write it to ``tuning.json``."""
    table = Table(title="tuned on dev")
    for column in ("contestant", "lr: WER dev %", "warm-up: WER dev %", "chosen"):
        table.add_column(column, overflow="fold")
    for contestant in found:
        lrs = [f"{lr:g}: {_percent(contestant.trials[lr])}" for lr in sorted(contestant.trials)]
        warmups = [f"{word.partition('=')[2]}: {_percent(wer)}" for word, wer in contestant.warmup_trials.items()]
        chosen = " ".join(contestant.chosen()[len(contestant.overrides) :])
        edge = " (at the edge of what was tried)" if contestant.at_edge else ""
        table.add_row(contestant.name, "\n".join(lrs), "\n".join(warmups), chosen + edge)
    console.print(table)
    plain = {
        contestant.name: {
            "lr": {f"{lr:g}": _finite(wer) for lr, wer in sorted(contestant.trials.items())},
            "warmup": {word: _finite(wer) for word, wer in contestant.warmup_trials.items()},
            "chosen": contestant.chosen(),
            "at_edge": contestant.at_edge,
        }
        for contestant in found
    }
    write_whole(sweep_dir / "tuning.json", json.dumps(plain, indent=1))


def _percent(wer: float) -> str:
    return f"{100 * wer:.2f}" if math.isfinite(wer) else "none"


def _finite(wer: float) -> float | None:
    return wer if math.isfinite(wer) else None
