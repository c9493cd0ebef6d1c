"""A sweep that tunes before it compares: lr and warm-up on dev, then several seeds, tests decoded once."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from asr.cli.config.words import override_key
from asr.cli.errors import ConfigError
from asr.cli.sweeps.tuning import TunedSystem, systems
from asr.console import PlainConsole
from asr.safe_io import write_whole

console = PlainConsole()


class TunedSweeper(Sweeper):
    """Gives every system the same number of trials, then trains the best settings of each with the same seeds.

    First every learning rate of its range. While the best of any system lies at the edge of what was tried, each
    gets one trial more: beyond the edge, or between its best and the neighbor. Then warm-ups at the best learning
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
        tuned = systems(self.options)
        chosen = [word for system, _ in tuned for word in (*system.overrides, *system.warmups)]
        self.common = _plain_overrides(arguments, {"seed", "optimizer.lr", *map(override_key, chosen)})
        self.sweep_dir.mkdir(parents=True, exist_ok=True)
        self._try("learning rates", [(system, lr) for system, lrs in tuned for lr in lrs])
        found = [system for system, _ in tuned]
        for _ in range(self.options["max_extra_trials"]):
            if not any(system.at_edge for system in found):
                break
            self._try("one more learning rate each", [(system, system.next_lr()) for system in found])
        self._try_warmups(found)
        report(found, self.sweep_dir)
        seeds = self.options["seeds"]
        self._launch("seeds", [[*system.chosen(), f"seed={seed}"] for seed in seeds for system in found])

    def _try(self, what: str, trials: Sequence[tuple[TunedSystem, float]]) -> None:
        usual = [system.warmups[0] if system.warmups else None for system, _ in trials]
        words = [system.words(lr, warmup) for (system, lr), warmup in zip(trials, usual, strict=True)]
        for (system, lr), wer in zip(trials, self._tune(what, words), strict=True):
            system.trials[lr] = wer

    def _try_warmups(self, found: Sequence[TunedSystem]) -> None:
        trials = [(system, warmup) for system in found for warmup in system.warmups[1:]]
        for system in found:
            system.warmup_trials = dict.fromkeys(system.warmups[:1], system.trials[system.best_lr])
        words = [system.words(system.best_lr, warmup) for system, warmup in trials]
        for (system, warmup), wer in zip(trials, self._tune("warm-ups", words), strict=True):
            system.warmup_trials[warmup] = wer

    def _tune(self, what: str, jobs: Sequence[list[str]]) -> list[float]:
        extra = [f"seed={self.options['tuning_seed']}", "decode_test=false"]
        return self._launch(what, [[*words, *extra] for words in jobs], self.options["tuning_overrides"])

    def _launch(self, what: str, jobs: Sequence[list[str]], last: Sequence[str] = ()) -> list[float]:
        """Print what is next, run jobs, and return their WERs on the development sets; infinity if one has none."""
        if not jobs:
            return []
        # of two overrides of one key, Hydra takes the last
        batch = [[*words, *self.common, *last, f"sweep.name={self.sweep_name}"] for words in jobs]
        console.print(f"{what}: {len(jobs)} jobs")
        assert self.launcher is not None
        self.validate_batch_is_legal(batch)
        results = self.launcher.launch(batch, initial_job_idx=self.num_jobs)
        self.num_jobs += len(batch)
        wers = [float(result.return_value) for result in results]
        return [math.inf if math.isnan(wer) else wer for wer in wers]


def _plain_overrides(arguments: Sequence[str], chosen: Collection[str]) -> list[str]:
    """Return what was typed beside the sweep itself.

    Args:
        arguments: what was typed.
        chosen: keys that the sweep sets itself.

    Raises:
        ConfigError: something is swept by commas, or is what the sweep chooses.
    """
    kept = []
    for override in OverridesParser.create().parse_overrides(list(arguments)):
        key = override.key_or_group
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: this sweep chooses what varies; give one value")
        if key in chosen:
            raise ConfigError(
                f"{override.input_line}: this sweep chooses {key}; see sweep.only, .schedule_modes, .optimizers, "
                ".schedules and .seeds"
            )
        if key != "sweep" and not key.startswith(("sweep.", "hydra.", "hydra/")):
            kept.append(str(override.input_line))
    return kept


def report(found: Sequence[TunedSystem], sweep_dir: Path) -> None:
    """Print what was chosen, and write it to ``tuning.json``."""
    table = Table(title="tuned on dev")
    for column in ("system", "lr: WER dev %", "warm-up: WER dev %", "chosen"):
        table.add_column(column, overflow="fold")
    for system in found:
        lrs = [f"{lr:g}: {_percent(system.trials[lr])}" for lr in sorted(system.trials)]
        warmups = [f"{word.partition('=')[2]}: {_percent(wer)}" for word, wer in system.warmup_trials.items()]
        chosen = " ".join(system.chosen()[len(system.overrides) :])
        doubt = " (at the edge of what was tried)" if system.at_edge else ""
        if not system.has_learned:
            doubt = " (failed: no trial came below a WER of 100 %)"
        table.add_row(system.name, "\n".join(lrs), "\n".join(warmups), chosen + doubt)
    console.print(table)
    plain = {
        system.name: {
            "lr": {f"{lr:g}": _finite(wer) for lr, wer in sorted(system.trials.items())},
            "warmup": {word: _finite(wer) for word, wer in system.warmup_trials.items()},
            "chosen": system.chosen(),
            "at_edge": system.at_edge,
            "has_learned": system.has_learned,
        }
        for system in found
    }
    write_whole(sweep_dir / "tuning.json", json.dumps(plain, indent=1))


def _percent(wer: float) -> str:
    return f"{100 * wer:.2f}" if math.isfinite(wer) else "none"


def _finite(wer: float) -> float | None:
    return wer if math.isfinite(wer) else None
