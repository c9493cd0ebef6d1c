"""What whole comparisons show: tests of all systems at once, runs that fail, speakers who are unknown."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from cells import ALPHA, Cell, wrong
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from worlds import WER, World

from asr.compare.compare import compare
from asr.compare.inputs.rows import Row
from asr.compare.inputs.runs import Inputs, Run, SetErrors
from asr.compare.inputs.runs_of_rows import runs_of_rows
from asr.compare.report.headline import UNKNOWN_SPEAKERS, headline
from asr.compare.result import SetComparison
from asr.compare.statistics.counts import count_errors
from asr.compare.statistics.failures import learned_runs, reliabilities
from asr.compare.statistics.omnibus import omnibus
from asr.compare.statistics.pairs import SetDifferences
from asr.evaluation.dependence import LEVEL, dependence_p, depends_on_audio
from asr.evaluation.wer import Utterance

SET = "test"
UTTERANCES_EACH = 10  # of a speaker
FAILURES = 0.1
MOST_RANKS_WITH_TIES = 12
LEXICON = np.array([first + second for first in "bdfgklmnprst" for second in ("a", "er", "in", "ous")])
FREQUENCIES = (1 / np.arange(1, len(LEXICON) + 1)) / (1 / np.arange(1, len(LEXICON) + 1)).sum()  # Zipf's
Nothing = Literal["nothing", "babble"]


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


def made_runs(
    errors: NDArray[np.int64],
    words: NDArray[np.int64],
    speakers: tuple[str | None, ...],
    depend: NDArray[np.bool_] | None = None,
) -> list[Run]:
    """Return runs with these errors (systems, seeds, utterances) on utterances with these words and speakers.

    Args:
        errors: of the runs.
        words: of the utterances.
        speakers: of the utterances.
        depend: (systems, seeds), whether hypotheses depend on the audio; None: that is not known.
    """
    ids, runs = tuple(f"u{place}" for place in range(len(words))), []
    for system, seed in np.ndindex(errors.shape[:2]):
        found = SetErrors(ids, speakers, tuple(words.tolist()), tuple(errors[system, seed].tolist()))
        if depend is not None:
            found = replace(found, depends_on_audio=bool(depend[system, seed]))
        runs.append(Run(Path(f"{system}-{seed}"), f"system {system}", seed, {SET: found}))
    return runs


def any_verdict(runs: list[Run]) -> bool:
    """Whether any two systems are found different by the runs that learned."""
    by_system = {run.system: [one for one in runs if one.system == run.system] for run in runs}
    learned = learned_runs(by_system, SET)
    counts = count_errors([run for name, own in by_system.items() for run in learned[name] or own], SET)
    unlearned = [name for name, own in learned.items() if not own]
    together = SetDifferences(counts, 1 - ALPHA, unlearned=unlearned).together
    return together is not None and bool((together.adjusted <= ALPHA).any())


def failure_rows(
    num: int,
    seeds: Sequence[int] = (2, 3, 5, 10, 20),
    systems: Sequence[int] = (2, 3, 8),
    failing: Sequence[float] = (FAILURES, 0.5),
    kinds: Sequence[Nothing] = ("nothing", "babble"),
) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different if some of their runs learn nothing."""
    for num_seeds, num_systems, share, kind in itertools.product(seeds, systems, failing, kinds):
        world, rng = World(0.01, 0.03, 0.0, num_seeds, 20), np.random.default_rng(0)
        speakers = tuple(f"s{place}" for place in range(world.num_speakers))
        errors = world.errors(rng, num, np.full(num_systems, WER))
        depend = rng.random(errors.shape[:3]) >= share
        for place in np.argwhere(~depend):
            errors[*place], depend[*place] = learned_nothing(kind, world, rng)
        found = [
            any_verdict(made_runs(one, world.words, speakers, own)) for one, own in zip(errors, depend, strict=True)
        ]
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "runs that learn nothing %": 100 * share,
            "they write": kind,
            "found different": wrong(found),
        }


def learned_nothing(kind: Nothing, world: World, rng: np.random.Generator) -> tuple[NDArray[np.int64], bool]:
    """Return the errors per speaker of a run that learned nothing, and whether its texts seem to depend on the audio.

    Frequent words are said, and written, most often. A run that babbles writes few of them: its WER is below 100 %.
    """
    num_words = world.words_each // UTTERANCES_EACH
    said = rng.choice(LEXICON, (world.num_speakers, UTTERANCES_EACH, num_words), p=FREQUENCIES)
    errors, utterances = np.zeros(world.num_speakers, np.int64), []
    for speaker, number in np.ndindex(said.shape[:2]):
        length = 0 if kind == "nothing" else rng.integers(num_words // 2)
        written = rng.choice(LEXICON, length, p=FREQUENCIES)
        errors[speaker] += Levenshtein.distance(said[speaker, number].tolist(), written.tolist())
        texts = " ".join(said[speaker, number]), " ".join(written)
        utterances.append(Utterance(f"{speaker}-{number}", *texts))
    return errors, bool(depends_on_audio(dependence_p(utterances)))


def dependence_rows(
    num: int, sizes: Sequence[int] = (10, 100, 1000), shares: Sequence[float] = (0.0, 0.02, 0.05, 0.1)
) -> Iterator[Mapping[str, object]]:
    """Yield how often hypotheses seem to depend on the audio; if they do not, in at most 1 of 100 runs.

    Of ten words of an utterance, a share is understood; others are written at random.
    """
    for num_utterances, right in itertools.product(sizes, shares):
        rng, found = np.random.default_rng(0), []
        for _ in range(num):
            said = rng.choice(LEXICON, (num_utterances, 10), p=FREQUENCIES)
            written = np.where(rng.random(said.shape) < right, said, rng.choice(LEXICON, said.shape, p=FREQUENCIES))
            texts = zip(said.tolist(), written.tolist(), strict=True)
            pairs = ((" ".join(one), " ".join(other)) for one, other in texts)
            found.append(
                bool(depends_on_audio(dependence_p([Utterance(str(place), *pair) for place, pair in enumerate(pairs)])))
            )
        yield {
            "utterances": num_utterances,
            "words understood %": 100 * right,
            "learned": Cell(float(np.mean(found)), num, at_most=None if right else LEVEL),
        }


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


def table_of_counts_rows(num: int, speakers: Sequence[int] = (8, 40, 200)) -> Iterator[Mapping[str, object]]:
    """Yield how often equal systems are found different by counts of a table: single runs, and runs with seeds."""
    for num_seeds, num_speakers, num_systems in itertools.product((1, 3), speakers, (2, 4)):
        world = World(0.01 if num_seeds > 1 else 0.0, 0.03, 0.02, num_seeds, num_speakers)
        drawn = world.errors(np.random.default_rng(0), num, np.full(num_systems, WER))
        told = [any(pair.verdict == "better" for pair in compared_counts(one, world.words).pairs) for one in drawn]
        yield {"seeds": num_seeds, "speakers": num_speakers, "systems": num_systems, "found different": wrong(told)}


def compared_counts(errors: NDArray[np.int64], words: NDArray[np.int64]) -> SetComparison:
    """Compare errors (systems, seeds, speakers), an utterance each, as rows of a table; one seed is a single run."""
    rows = [
        Row(
            id=f"u{speaker}",
            system=f"system {system}",
            seed=seed if errors.shape[1] > 1 else None,
            speaker=f"s{speaker}",
            words=int(words[speaker]),
            errors=int(wrong_words),
        )
        for (system, seed, speaker), wrong_words in np.ndenumerate(errors)
    ]
    (found,) = compare(runs_of_rows(rows), title="").sets
    return found
