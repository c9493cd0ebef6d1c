"""How soon systems reached a WER on the development sets, and how far they were at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asr.compare.result import Verdict

Axis = Literal["updates", "seconds"]


@dataclass(frozen=True)
class Target:
    """A WER on the development sets that systems are to reach.

    Attributes:
        wer: a fraction.
        is_fixed: whether the runs' own configs name it, so that nobody chose it after seeing them.

    Raises:
        ValueError: the WER is not between 0 and 1.
    """

    wer: float
    is_fixed: bool

    def __post_init__(self) -> None:
        is_number = isinstance(self.wer, int | float) and not isinstance(self.wer, bool)
        if not is_number or not 0 < self.wer < 1:
            raise ValueError(f"target_wer must be a fraction above 0 and below 1 (0.2 is 20 %), given {self.wer!r}")


@dataclass(frozen=True)
class SeedContrast:
    """A system compared with another by a number that each run has, over the seeds that both have.

    Attributes:
        system: its name.
        other: name of the other system.
        num_seeds: seeds in common.
        value: mean difference, or ratio of geometric means.
        low: lower end of its interval; the intervals and verdicts of all tested pairs hold together.
        high: upper end.
        p_adjusted: corrected for all tested pairs, see ``simultaneous``; None if this one was not tested.
        verdict: in words; smaller is better.
    """

    system: str
    other: str
    num_seeds: int
    value: float
    low: float
    high: float
    p_adjusted: float | None
    verdict: Verdict


@dataclass(frozen=True)
class TimeRow:
    """When the runs of a system first had the target WER.

    Attributes:
        system: its name.
        num_reached: runs that had it within the budget.
        num_runs: all runs; those that never finished have not reached it.
        mean: geometric mean of the times; a run that did not reach the target counts with the whole budget.
        contrast: ratio to the reference; None for the reference itself, and if neither ever reached the target.
    """

    system: str
    num_reached: int
    num_runs: int
    mean: float
    contrast: SeedContrast | None


@dataclass(frozen=True)
class TimesToTarget:
    """When all systems reached the target.

    Attributes:
        axis: unit of the times.
        budget: that all runs had; later times are not told apart.
        reference: system that the others are compared with.
        rows: shortest mean first.
        pairs: ratios of any two systems that are compared, each pair once, the faster system first.
    """

    axis: Axis
    budget: float
    reference: str
    rows: Sequence[TimeRow]
    pairs: Sequence[SeedContrast]


@dataclass(frozen=True)
class ProgressRow:
    """WER of a system on the development sets during training; rates are fractions.

    Attributes:
        system: its name.
        num_runs: that learned, or all if none did.
        wer_mean: at the given time.
        wer_sd: over seeds; None for one.
        area: mean WER over the updates of a run, averaged over seeds.
        area_sd: over seeds; None for one.
        contrast: difference of the WERs from the reference; None for the reference itself, or without common seeds.
    """

    system: str
    num_runs: int
    wer_mean: float
    wer_sd: float | None
    area: float
    area_sd: float | None
    contrast: SeedContrast | None


@dataclass(frozen=True)
class EqualTime:
    """All systems after the same time of training.

    Attributes:
        seconds: of training, with the optimizer's own and without validations.
        num_earlier: runs whose last validation was earlier; they count with that WER.
        reference: system that the others are compared with.
        rows: lowest WER first.
        pairs: differences of any two systems that share a seed, each pair once, the better system first.
    """

    seconds: float
    num_earlier: int
    reference: str
    rows: Sequence[ProgressRow]
    pairs: Sequence[SeedContrast]
