"""Sweepers: seeds in planned looks; and settings tuned on dev before several seeds are compared."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from asr.run.command_line import override_key
from asr.run.compose import Composed
from asr.run.folder import has_begun
from asr.run.options import RunOptions
from asr.sweeps import tuning
from asr.sweeps.jobs import records
from asr.sweeps.tuning import UNTUNED, Settings, TunedSystem
from werdict.console import PlainConsole
from werdict.errors import DIVERGED, ConfigError, RunFailed
from werdict.files import read_json, write_whole
from werdict.formatting import count, percent, shortlist
from werdict.runs import FILE

OF_JOBS = ("gpus_per_job", "jobs_per_gpu", "target_wer")  # keys of all sweeps that each job reads in its own config
SHOWN = 3  # trials of a system in the printed table, the best ones

console = PlainConsole()


class LooksSweeper(BasicSweeper):
    """Trains every combination with as many seeds as the first look has, and then those that are open with more.

    A system is open while it may be the best, or while it is not known to differ from the baseline, on any test set.
    The baseline always goes on.

    Reference:
        Pocock 1977, "Group sequential methods in the design and analysis of clinical trials", Biometrika 64, 191-199,
        for planned looks with equal levels. Differs: Bonferroni's correction, which also holds after a system has left.
    """

    def sweep(self, arguments: list[str]) -> object:
        """Run the sweep; ``arguments`` are those of the command line."""
        assert self.config is not None
        self.looks = [int(num) for num in self.config.sweep.looks]
        if sorted({*self.looks}) != self.looks or not self.looks or self.looks[0] < 2:
            raise ConfigError(
                f"sweep.looks must be rising numbers of seeds from 2 on, as in [5,10], given {self.looks}"
            )
        if given := [word for word in arguments if override_key(word) == "seed"]:
            raise ConfigError(
                f"{given[0]}: sweep=looks trains the seeds 1 to {self.looks[-1]}; set sweep.looks instead"
            )
        return super().sweep([*arguments, f"seed=range(1,{self.looks[-1] + 1})"])

    def get_job_batch(self) -> Sequence[Sequence[str]]:
        """Return the jobs of the next look."""
        if self.batch_index == 0:
            jobs = [job for batch in self.overrides or () for job in batch]
            ends = zip([0, *self.looks], self.looks, strict=False)
            self.overrides = [[job for job in jobs if low < _seed(job) <= high] for low, high in ends]
        batch = super().get_job_batch()
        if self.batch_index == 1:
            return batch
        systems = self._open()
        console.print_line(f"after {self.looks[self.batch_index - 2]} seeds, open: {shortlist(systems)}")
        return [job for job in batch if _without_seed(job) in systems.values()]

    def _open(self) -> dict[str, tuple[str, ...]]:
        """Return the systems that go on, with their overrides without the seed."""
        # every command imports this plugin, and statistics take a second
        from asr.runs.folders import read_runs
        from werdict.comparison import compare

        assert self.config is not None
        sweep_dir = Path(self.config.hydra.sweep.dir)
        jobs = {(sweep_dir / job.name).resolve(): job for job in records(sweep_dir)}
        failed = {folder for folder, job in jobs.items() if job.failed and not job.was_ended}
        inputs = read_runs([folder for folder in jobs if has_begun(folder)], failed)
        comparison = compare(inputs, title=sweep_dir.name, looks=self.looks)
        going_on = {
            row.system
            for test_set in comparison.sets
            for row in test_set.rows
            if row.may_be_best or row.to_baseline is None or row.to_baseline.verdict == "cannot distinguish"
        }
        return {run.system: _without_seed(jobs[run.folder].overrides) for run in inputs.runs if run.system in going_on}


def _seed(job: Sequence[str]) -> int:
    return next(int(word.partition("=")[2]) for word in job if override_key(word) == "seed")


def _without_seed(job: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in job if override_key(word) not in ("seed", "sweep.swept")))


class TunedSweeper(Sweeper):
    """Gives every optimizer the same number of trials, then trains the best settings of each with the same seeds.

    First the same quasi-random places of every search space. While the best learning rate of any system lies at the
    edge of what was tried, every optimizer gets as many trials more: beyond the edge, or at the next places. All that
    is judged on the development sets, with a seed of its own; test sets are decoded at the end alone.

    Several studies do all of it as often, each with places and a tuning seed of its own, and train their winners with
    one seed each: then what differs between seeds includes the luck of tuning.

    Args:
        sweep: search spaces, numbers of trials and seeds, as ``configs/sweep/optimizers.yaml`` has them.

    Reference:
        Dahl et al. 2023, "Benchmarking Neural Network Training Algorithms", arXiv:2306.07179: several tuning studies
        of as many quasi-random trials for each algorithm. Differs: a range grows beyond its edges.
    """

    def __init__(self, sweep: DictConfig) -> None:
        container = OmegaConf.to_container(sweep, resolve=True)
        assert isinstance(container, dict)
        self.raw: dict[str, Any] = {str(key): value for key, value in container.items()}
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
        self.search = tuning.Search.read(self.raw)
        studies, seeds = self.search.studies, self.search.seeds
        tuned = tuning.systems(self.search, self.search.tuning_seed)
        self.num_trials = tuning.shares(tuned, self.search.trials)
        self.compared = tuning.compared_systems(self.search, tuned)
        chosen = {override_key(word) for system in tuned for word in (*system.overrides, *system.space)}
        self.common = _plain_overrides(arguments, {"seed", *chosen})
        _plain_overrides(self.search.tuning_overrides, {"seed", "decode_test", "sweep", *chosen})
        self.common += [f"sweep.{key}={self.raw[key]}" for key in OF_JOBS if self.raw[key] is not None]
        self._check_settings(tuned)
        self.sweep_dir.mkdir(parents=True, exist_ok=True)
        done = []
        for study in range(1, studies + 1):
            self.prefix = f"study {study} of {studies}: " if studies > 1 else ""
            study_systems = self._tuned(self.search.tuning_seed + tuning.SEEDS_APART * (study - 1))
            done.append(study_systems)
            report(done, self.sweep_dir)
            study_seeds = seeds if studies == 1 else [seeds[study - 1]]
            self._launch(
                "seeds", [words for seed in study_seeds for words in self._compared(study_systems, study, seed)]
            )

    def _check_settings(self, tuned: Sequence[TunedSystem]) -> None:
        """Refuse choices, and ends of ranges, that no run can have: later they would stop the sweep."""
        for last in dict.fromkeys((tuple(self.search.tuning_overrides), ())):
            for system in tuned:
                untuned: list[Settings] = [{}] if self.search.with_defaults and system.is_usual else []
                for settings in (*system.extreme_settings(), *untuned):
                    try:
                        words = self._with_common(system.words(settings), last)
                        try_parts(self._composed(words))
                    except ValueError as error:
                        shown = f"{system.name} with {_shown(settings)}" if settings else f"{UNTUNED}{system.optimizer}"
                        raise ConfigError(f"the sweep would try {shown}, which is refused: {error}") from error

    def _composed(self, words: list[str]) -> Composed:
        """Return what is composed for a job."""
        assert self.hydra_context is not None
        assert self.config is not None
        return Composed.of("train", self.hydra_context.config_loader.load_sweep_config(self.config, words))

    def _tuned(self, seed: int) -> list[TunedSystem]:
        """Return the systems with their trials."""
        tuned = tuning.systems(self.search, seed)
        pairs = zip(tuned, self.num_trials, strict=True)
        self._try("trials", seed, [(one, settings) for one, num in pairs for settings in one.sample(num)])
        extra = [num // min(self.num_trials) for num in self.num_trials]
        for _ in range(self.search.max_extra_trials):
            if not any(system.at_edge for system in tuned):
                break
            for turn in range(max(extra)):
                some = [system for system, num in zip(tuned, extra, strict=True) if turn < num]
                self._try("more trials", seed, [(system, system.next_settings()) for system in some])
        return tuned

    def _compared(self, tuned: Sequence[TunedSystem], study: int, seed: int) -> list[list[str]]:
        """Return the overrides of the runs that are compared, with what a comparison needs to know of their tuning."""
        jobs = {
            system.name: [*system.words(system.best.settings), self._tuned_as(system.name, study, system.space)]
            for system in tuned
        }
        if self.search.with_defaults:
            untuned = {f"{UNTUNED}{system.optimizer}": system for system in tuned if system.is_usual}
            jobs |= {name: [*system.overrides, self._tuned_as(name, study, ())] for name, system in untuned.items()}
        return [[*jobs[name], f"seed={seed}"] for name in self.compared]

    def _tuned_as(self, name: str, study: int, keys: Iterable[str]) -> str:
        tuned = f"system:{json.dumps(name)},study:{study},studies:{self.search.studies},keys:[{','.join(keys)}]"
        return f"++sweep.tuned={{{tuned}}}"

    def _try(self, title: str, seed: int, trials: Sequence[tuple[TunedSystem, Settings]]) -> None:
        extra = [f"seed={seed}", "decode_test=false"]
        jobs = [[*system.words(settings), *extra] for system, settings in trials]
        wers = self._launch(title, jobs, self.search.tuning_overrides)
        batch_records = [record for record in records(self.sweep_dir) if record.overrides in self.batch]
        ended = [record.name for record in batch_records if record.failed and record.exit_code != DIVERGED]
        if ended or any(map(math.isnan, wers)):  # NaN: another process is running the trial
            raise RunFailed(
                f"the sweep stops before it chooses: {count(len(ended), 'trial')} did not finish, and not because of "
                f"diverging, which says nothing of the settings: {shortlist(ended)}; to resume: the same command "
                f"again, with sweep.name={self.sweep_name}"
            )
        for (system, settings), wer in zip(trials, wers, strict=True):
            system.trials.append(tuning.Trial(settings, wer))

    def _launch(self, title: str, jobs: Sequence[list[str]], last: Sequence[str] = ()) -> list[float]:
        """Print what is next, run jobs, and return what ``run_job`` does for each."""
        self.batch = [self._with_common(words, last) for words in jobs]
        console.print(f"{self.prefix}{title}: {count(len(jobs), 'job')}")
        assert self.launcher is not None
        self.validate_batch_is_legal(self.batch)
        results = self.launcher.launch(self.batch, initial_job_idx=self.num_jobs)
        self.num_jobs += len(self.batch)
        return [float(result.return_value) for result in results]

    def _with_common(self, words: Sequence[str], last: Sequence[str]) -> list[str]:
        # of two overrides of one key, Hydra takes the last
        return [*words, *self.common, *last, f"sweep.name={self.sweep_name}"]


def try_parts(composed: Composed) -> None:
    """Build the parts of a run that a sweep may vary, without memory for weights.

    Args:
        composed: of a job, whose accelerator may be that of another machine.

    Raises:
        ConfigError: a part is refused.
    """
    # here, because the libraries take seconds, and what is wrong with the sweep itself is told before
    from asr.run.build import VOCAB_SIZE, try_updates
    from asr.run.choices import with_own_choices
    from asr.run.parts import build_data_parts, outline_recognizer

    options: RunOptions = with_own_choices(composed).options
    num_features = build_data_parts(options).features.num_features
    recognizer = outline_recognizer(options, VOCAB_SIZE, num_features)
    try_updates(options, recognizer, options.trainer.accelerator == "cpu")


def _plain_overrides(arguments: Sequence[str], chosen: Collection[str]) -> list[str]:
    """Return the overrides beside the sweep itself.

    Args:
        arguments: overrides of the command line.
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


def report(studies: Sequence[Sequence[TunedSystem]], sweep_dir: Path) -> None:
    """Print what the last study has chosen, and write all of them to ``tuning.json``."""
    table = Table(title="tuned on dev" + (f", study {len(studies)}" if len(studies) > 1 else ""))
    for column in ("system", "trials", "best settings", "WER dev %"):
        table.add_column(column, overflow="fold")
    for system in studies[-1]:
        best = system.best
        shown = sorted(system.trials, key=lambda trial: (trial is not best, trial.wer))[:SHOWN]
        settings, wers = [_shown(tried.settings) for tried in shown], [percent(tried.wer) for tried in shown]
        if not system.has_learned:
            settings[0] += " (failed: no trial came below a WER of 100 %)"
        elif system.at_edge:
            settings[0] += " (lr at the edge of what was tried)"
        table.add_row(system.name, str(len(system.trials)), "\n".join(settings), "\n".join(wers))
    console.print(table)
    plain = [
        {
            system.name: {
                "trials": [
                    {"settings": tried.settings, "wer": tried.wer if math.isfinite(tried.wer) else None}
                    for tried in system.trials
                ],
                "chosen": system.best.settings,
                "at_edge": system.at_edge,
                "has_learned": system.has_learned,
            }
            for system in tuned
        }
        for tuned in studies
    ]
    path = sweep_dir / FILE
    before = read_json(path) if path.exists() else []
    # systems and studies that this command leaves out keep their trials
    none: dict[str, Any] = {}
    merged = [{**old, **new} for old, new in itertools.zip_longest(before, plain, fillvalue=none)]
    write_whole(path, json.dumps(merged, indent=1))


def _shown(settings: Settings) -> str:
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())
