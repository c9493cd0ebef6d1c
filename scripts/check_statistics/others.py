"""What stands beside verdicts over seeds: single runs, unknown speakers, runs that learn nothing, luck in tuning."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from cells import ALPHA, Cell, Row, cell, repeated
from numpy.typing import NDArray
from tables import judge
from worlds import System, World

from werdict.error_files import LEVEL, dependence_p, depends_on_audio
from werdict.scoring import Utterance
from werdict.statistics.contrasts import Contrasts
from werdict.statistics.judge import on_scale, reliabilities

UTTERANCES_EACH = 10  # of a speaker
TRIALS = 12  # of a study
CURVATURE = 0.4  # of the log WER over a range of settings from -1 to 1, the best at 0
LEXICON = np.array([first + second for first in "bdfgklmnprst" for second in ("a", "er", "in", "ous")])
FREQUENCIES = (1 / np.arange(1, len(LEXICON) + 1)) / (1 / np.arange(1, len(LEXICON) + 1)).sum()  # Zipf's


def any_verdict(contrasts: Contrasts) -> NDArray[np.bool_]:
    """Whether any system differs from the baseline (R,)."""
    return (judge(contrasts, with_best=False).verdicts() != 0).any(-1)


def single_rows(num: int, speakers: Sequence[int] = (8, 40, 200)) -> Iterator[Row]:
    """Yield how often equal single runs, as from another toolkit's table, are found different."""

    def simulate(world: World, num: int, seed: int) -> Row:
        found = judge(world.contrasts(world.errors(np.random.default_rng(seed), num)))
        return {
            "speakers": world.num_speakers,
            "systems": len(world.systems),
            "any false verdict": cell((found.verdicts() != 0).any(-1), ALPHA),
            "best is not in its set": cell(~found.best[0][:, 0], ALPHA),
        }

    for num_speakers, num_systems in itertools.product(speakers, (2, 5)):
        world = World([System(0.15, 0.0)] * num_systems, 1, num_speakers=num_speakers, taste_sd=0.1)
        yield repeated(partial(simulate, world), num)


def unknown_rows(num: int) -> Iterator[Row]:
    """Yield how often equal systems are found different where speakers are not named; reports say so.

    A system may suit some speakers, and utterances are not independent then: such verdicts are too sure.
    """
    for num_speakers in (4, 16, 100):
        world = World([System(0.15, 0.03)] * 2, 5, taste_sd=0.3, num_speakers=num_speakers, words_each=1000)
        rates = world.errors(np.random.default_rng(0), num) / world.words_each
        rates = np.repeat(rates, UTTERANCES_EACH, axis=-1)
        words = np.full(rates.shape[-1], 10)
        errors = np.random.default_rng(1).binomial(words, rates)
        values, moves, resolution = on_scale(errors, words, "ratio")
        differs = any_verdict(Contrasts(values, resolution, moves, float(len(words))))
        yield {"speakers": num_speakers, "found different": cell(differs)}


def dependence_rows(
    num: int, sizes: Sequence[int] = (10, 100, 1000), shares: Sequence[float] = (0.0, 0.02, 0.05, 0.1)
) -> Iterator[Row]:
    """Yield how often hypotheses seem to depend on the audio; if they do not, in at most 1 of 100 runs.

    Of ten words of an utterance, a share is understood; others are written at random.
    """

    def seems_to(rng: np.random.Generator, num_utterances: int, right: float) -> bool:
        said = rng.choice(LEXICON, (num_utterances, 10), p=FREQUENCIES)
        written = np.where(rng.random(said.shape) < right, said, rng.choice(LEXICON, said.shape, p=FREQUENCIES))
        texts = zip(said.tolist(), written.tolist(), strict=True)
        pairs = [Utterance(str(place), " ".join(one), " ".join(other)) for place, (one, other) in enumerate(texts)]
        return bool(depends_on_audio(dependence_p(pairs)))

    for num_utterances, right in itertools.product(sizes, shares):
        rng = np.random.default_rng(0)
        dependent = np.array([seems_to(rng, num_utterances, right) for _ in range(num)])
        yield {
            "utterances": num_utterances,
            "words understood %": 100 * right,
            "learned": cell(dependent, None if right else LEVEL),
        }


def reliability_rows(
    num: int, seeds: Sequence[int] = (3, 5, 10, 20), systems: Sequence[int] = (2, 10)
) -> Iterator[Row]:
    """Yield how often systems that fail equally often are said to differ from the baseline in how many runs learn."""
    for num_seeds, num_systems, failing in itertools.product(seeds, systems, (0.1, 0.5)):
        learned = np.random.default_rng(0).binomial(num_seeds, 1 - failing, (num, num_systems))
        counts = ({str(place): (some, num_seeds) for place, some in enumerate(row)} for row in learned.tolist())
        rows = (reliabilities(one, "0", ALPHA).values() for one in counts)
        is_any = [any(one.p_adjusted is not None and one.p_adjusted <= ALPHA for one in row) for row in rows]
        yield {
            "seeds": num_seeds,
            "systems": num_systems,
            "runs that fail %": 100 * failing,
            "found different": cell(np.array(is_any), ALPHA),
        }


def tuned(num: int, num_systems: int, num_seeds: int, studies: int, seed: int = 0) -> NDArray[np.bool_]:
    """Return whether any of systems that are tuned alike differs from the first: by one study, or one for each seed.

    Each study chooses the setting that looks best of some, with one run of each.
    """
    world, rng = World([System(0.15, 0.07)] * num_systems, num_seeds), np.random.default_rng(seed)
    lost = CURVATURE * rng.uniform(-1, 1, (num, num_systems, studies, TRIALS)) ** 2
    seen = lost + world.systems[0].seed_sd * rng.normal(size=lost.shape)
    chosen = np.take_along_axis(lost, seen.argmin(-1)[..., None], -1)[..., 0]
    return any_verdict(world.contrasts(world.errors(rng, num, world.systems[0].rate * np.exp(chosen))))


def tuning_rows(num: int) -> Iterator[Row]:
    """Yield how often systems that are tuned alike are found different; one study compares its settings alone."""

    def simulate(num_systems: int, num_seeds: int, num: int, seed: int) -> Row:
        one_study: Cell = cell(tuned(num, num_systems, num_seeds, 1, seed))
        each = cell(tuned(num, num_systems, num_seeds, num_seeds, seed), ALPHA)
        return {"seeds": num_seeds, "systems": num_systems, "one study": one_study, "a study for each seed": each}

    for num_seeds, num_systems in itertools.product((3, 5, 10, 20), (2, 8)):
        yield repeated(partial(simulate, num_systems, num_seeds), num)
