"""A sweep whose seeds are trained in planned looks: after each, only systems of which a question is open go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from asr.run.command_line import override_key
from asr.sweeps.jobs import can_be_resumed, records
from werdict.console import PlainConsole
from werdict.errors import ConfigError
from werdict.formatting import shortlist

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
        return [job for job in batch if _system(job) in systems.values()]

    def _open(self) -> dict[str, tuple[str, ...]]:
        """Return the systems that go on, with their overrides without the seed."""
        # every command imports this plugin, and statistics take a second
        from asr.runs.folders import read_runs
        from werdict.comparison import compare

        assert self.config is not None
        sweep_dir = Path(self.config.hydra.sweep.dir)
        jobs = {(sweep_dir / job.name).resolve(): job for job in records(sweep_dir)}
        failed = {folder for folder, job in jobs.items() if job.failed and not job.was_ended}
        inputs = read_runs([folder for folder in jobs if can_be_resumed(folder)], failed)
        found = compare(inputs, title=sweep_dir.name, looks=self.looks)
        going_on = {
            row.system
            for test_set in found.sets
            for row in test_set.rows
            if row.may_be_best or row.to_baseline is None or row.to_baseline.verdict == "cannot distinguish"
        }
        return {run.system: _system(jobs[run.folder].overrides) for run in inputs.runs if run.system in going_on}


def _seed(job: Sequence[str]) -> int:
    return next(int(word.partition("=")[2]) for word in job if override_key(word) == "seed")


def _system(job: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in job if override_key(word) not in ("seed", "sweep.swept")))
