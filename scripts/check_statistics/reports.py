"""What whole comparisons show: tests of all systems at once, runs that fail, speakers who are unknown."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from cells import ALPHA, Cell, wrong
from numpy.typing import NDArray
from worlds import WER, World

from asr.compare.compare import compare
from asr.compare.inputs.runs import Inputs, Run, SetErrors
from asr.compare.report.headline import UNKNOWN_SPEAKERS, headline
from asr.compare.statistics.counts import count_errors
from asr.compare.statistics.failures import learned_runs, reliabilities
from asr.compare.statistics.omnibus import omnibus
from asr.compare.statistics.pairs import SetDifferences

SET = "test"
UTTERANCES_EACH = 10  # of a speaker
FAILURES = 0.1
MOST_RANKS_WITH_TIES = 12


def omnibus_rows(
    num: int, seeds: Sequence[int] = (2, 3, 4, 5, 9, 12, 20), systems: Sequence[int] = (3, 4, 8)
) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are said to differ over seeds; F is not what decides.

    Rounded WERs tie; that is cheap to simulate for few systems and seeds alone.
    """
    for num_seeds, num_systems, noisy, grain in itertools.product(seeds, systems, (0, 1, 2), (0.0, 0.01)):
        if grain and num_systems * num_seeds > MOST_RANKS_WITH_TIES:
            continue
        rng = np.random.default_rng(0)
        sds = World(0.01, 0.0, 0.0, num_seeds, noisy=noisy).seed_sds(num_systems)[..., 0]
        drawn = WER + sds * rng.normal(size=(num, num_systems, num_seeds))
        drawn = np.round(drawn / grain) if grain else drawn
        found = [omnibus(dict(zip(string.ascii_lowercase, wers, strict=False))) for wers in drawn]
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "noisy": noisy,
            "ties": "many" if grain else "none",
            "said to differ": wrong([one.friedman_p <= ALPHA for one in found]),
            "by F": Cell(float(np.mean([one.f_p <= ALPHA for one in found])), num),
        }


def made_runs(errors: NDArray[np.int64], words: NDArray[np.int64], speakers: tuple[str | None, ...]) -> list[Run]:
    """Return runs with these errors (systems, seeds, utterances) on utterances with these words and speakers."""
    ids = tuple(f"u{place}" for place in range(len(words)))
    return [
        Run(Path(f"{system}-{seed}"), f"system {system}", seed, {SET: found})
        for system, seed in np.ndindex(errors.shape[:2])
        for found in [SetErrors(ids, speakers, tuple(words.tolist()), tuple(errors[system, seed].tolist()))]
    ]


def any_verdict(runs: list[Run]) -> bool:
    """Whether any two systems are found different by the runs that learned."""
    by_system = {run.system: [one for one in runs if one.system == run.system] for run in runs}
    learned = learned_runs(by_system, SET)
    counts = count_errors([run for name, own in by_system.items() for run in learned[name] or own], SET)
    together = SetDifferences(counts, 1 - ALPHA).together
    return together is not None and bool((together.adjusted <= ALPHA).any())


def failure_rows(
    num: int, seeds: Sequence[int] = (3, 5, 10, 20), systems: Sequence[int] = (2, 3, 8)
) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different if one run of ten fails."""
    for num_seeds, num_systems in itertools.product(seeds, systems):
        world, rng = World(0.01, 0.03, 0.0, num_seeds, 20), np.random.default_rng(0)
        speakers = tuple(f"s{place}" for place in range(world.num_speakers))
        errors = world.errors(rng, num, np.full(num_systems, WER))
        failed = rng.random(errors.shape[:3]) < FAILURES
        errors[failed] = world.words
        found = [any_verdict(made_runs(one, world.words, speakers)) for one in errors]
        yield {"seeds": num_seeds, "systems": num_systems, "found different": wrong(found)}


def reliability_rows(
    num: int, seeds: Sequence[int] = (2, 3, 5, 10, 20), systems: Sequence[int] = (2, 3, 8)
) -> Iterator[Mapping[str, object]]:
    """Yield how often systems that fail equally often are said to differ in how many of their runs learn."""
    for num_seeds, num_systems, failing in itertools.product(seeds, systems, (FAILURES, 0.5)):
        learned = np.random.default_rng(0).binomial(num_seeds, 1 - failing, (num, num_systems))
        counts = ({str(place): (some, num_seeds) for place, some in enumerate(row)} for row in learned.tolist())
        found = (reliabilities(one).values() for one in counts)
        told = [any(one.p_adjusted is not None and one.p_adjusted <= ALPHA for one in row) for row in found]
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "runs that fail %": 100 * failing,
            "found different": wrong(told),
        }


def unknown_rows(num: int) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different where speakers are not named, and without a warning.

    A system may suit some speakers, and utterances are not independent then: such verdicts are too sure.
    """
    for num_speakers in (4, 16, 100):
        world = World(0.005, 0.03, 0.05, 5, num_speakers)
        rates = replace(world, words_each=1000).errors(np.random.default_rng(0), num, np.full(2, WER)) / 1000
        rates = np.repeat(rates, UTTERANCES_EACH, axis=-1)
        words = np.full(rates.shape[-1], UTTERANCES_EACH)
        errors = np.random.default_rng(1).binomial(words, rates)
        told = [any_verdict(made_runs(one, words, (None,) * len(words))) for one in errors]
        (shown,) = compare(Inputs(made_runs(errors[0], words, (None,) * len(words))), title="").sets
        silent = UNKNOWN_SPEAKERS not in headline(shown, 1 - ALPHA)
        yield {
            "speakers": num_speakers,
            "found different": Cell(float(np.mean(told)), num),
            "found different without a warning": Cell(float(np.mean(told)) * silent, num, at_most=0.0),
        }
