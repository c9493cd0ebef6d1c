"""Simulated training runs whose true error rates are known.

R tables, K systems, S seeds, U speakers. A run makes errors on each word with a probability that is the system's rate,
changed by the seed, by the speaker, and by speaker and system together (a system may suit some speakers).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from werdict.result import Scale
from werdict.statistics.contrasts import Contrasts
from werdict.statistics.estimate import effective_number
from werdict.statistics.judge import on_scale

Array = NDArray[np.float64]
MOST_COUNTS = 4_000_000  # of errors that are drawn at once
TRUTH = 40_000  # tables that tell what a system's value is on average
SAME = 0.01  # systems whose true values differ by less count as equal: their simulation is not more exact


@dataclass(frozen=True)
class System:
    """A system.

    Attributes:
        rate: its error rate.
        seed_sd: standard deviation between seeds, of the logarithm of the rate or of the rate itself.
        failing: share of its runs that fail.
    """

    rate: float = 0.3
    seed_sd: float = 0.2
    failing: float = 0.0


@dataclass(frozen=True)
class World:
    """What error rates depend on; the first system is the baseline.

    Attributes:
        num_seeds: of each system.
        noise: whether effects multiply a rate, or are added to it.
        correlation: of what a seed does to two systems.
        speaker_sd: between speakers, for all systems alike.
        taste_sd: between speakers, for each system anew.
        words_each: of a speaker.
        scale: on which systems are compared.
    """

    systems: Sequence[System]
    num_seeds: int
    noise: Literal["log", "points"] = "log"
    correlation: float = 0.0
    speaker_sd: float = 0.3
    taste_sd: float = 0.0
    num_speakers: int = 40
    words_each: int = 100
    scale: Scale = "ratio"
    words: NDArray[np.int64] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "systems", tuple(self.systems))
        object.__setattr__(self, "words", np.full(self.num_speakers, self.words_each))

    def errors(self, rng: np.random.Generator, num: int, rates: Array | None = None) -> NDArray[np.int64]:
        """Draw errors (num, K, S, U); ``rates`` (num, K, S or 1), if given, stand in for those of the systems."""
        shape = num, len(self.systems), self.num_seeds
        if rates is None:
            rates = np.array([system.rate for system in self.systems])[:, None]
        alike = np.sqrt(self.correlation) * rng.normal(size=(num, 1, self.num_seeds))
        drawn = alike + np.sqrt(1 - self.correlation) * rng.normal(size=shape)
        by_seed = np.array([system.seed_sd for system in self.systems])[:, None] * drawn
        by_speaker = self.speaker_sd * rng.normal(size=(num, 1, 1, self.num_speakers))
        by_speaker = by_speaker + self.taste_sd * rng.normal(size=(num, shape[1], 1, self.num_speakers))
        effects = by_seed[..., None] + by_speaker
        probabilities = rates[..., None] + effects if self.noise == "points" else rates[..., None] * np.exp(effects)
        fails = rng.random(shape) < np.array([system.failing for system in self.systems])[:, None]
        return rng.binomial(self.words, np.where(fails[..., None], 1, probabilities.clip(0, 1)))

    def contrasts(self, errors: NDArray[np.int64]) -> Contrasts:
        """Return how a report compares these errors (..., K, S, U)."""
        values, moves, resolution = on_scale(errors, self.words, self.scale)
        return Contrasts(values, resolution, moves, effective_number(self.words))

    def chunks(self, rng: np.random.Generator, num: int) -> Iterator[Contrasts]:
        """Yield ``num`` tables, fewer at a time: all would not fit into the memory."""
        size = max(1, MOST_COUNTS // (len(self.systems) * self.num_seeds * self.num_speakers))
        for done in range(0, num, size):
            yield self.contrasts(self.errors(rng, min(size, num - done)))

    @property
    def truth(self) -> Array:
        """True values (K,), less that of the baseline: of clipped rates, see ``on_scale``."""
        by_system = _true_values(replace(self, systems=tuple(dict.fromkeys(self.systems)), num_seeds=1))
        true = np.array([by_system[system] for system in self.systems]) - by_system[self.systems[0]]
        return np.where(np.abs(true) < SAME * (1 if self.scale == "ratio" else self.systems[0].rate), 0, true)


@lru_cache(maxsize=256)
def _true_values(world: World) -> dict[System, float]:
    if len(world.systems) == 1:
        return {world.systems[0]: 0.0}
    values = np.concatenate([one.values for one in world.chunks(np.random.default_rng(5), TRUTH)])
    return dict(zip(world.systems, values.mean((0, -1)), strict=True))


def covered_worlds(num_systems: int, num_seeds: int) -> Iterator[tuple[str, World]]:
    """Yield the worlds in which each claim holds, by name."""
    half = num_systems // 2

    def world(systems: System | Sequence[System], **fields: object) -> World:
        alike = [systems] * num_systems if isinstance(systems, System) else systems
        return World(alike, num_seeds, **fields)  # type: ignore[arg-type]

    def two_kinds(first: System, second: System, num_first: int = half) -> list[System]:
        return [first] * num_first + [second] * (num_systems - num_first)

    yield "equal", world(System())
    yield "equal, seeds correlated by 0.5", world(System(), correlation=0.5)
    calm, steady, points = System(0.05, 0.1), System(0.3, 0.006), {"noise": "points", "speaker_sd": 0.09}
    for factor in (3, 5, 10):
        wild, shaky = replace(calm, seed_sd=factor * 0.1), replace(steady, seed_sd=factor * 0.006)
        yield f"baseline varies × {factor}", world(two_kinds(wild, calm, 1))
        yield f"another varies × {factor}", world(two_kinds(calm, wild, num_systems - 1))
        yield f"baseline varies × {factor} in points", world(two_kinds(shaky, steady, 1), **points)
        yield f"another varies × {factor} in points", world(two_kinds(steady, shaky, num_systems - 1), **points)
    yield "baseline and half of all vary × 3", world(two_kinds(System(0.1, 0.3), System(0.1, 0.1), max(1, half)))
    if num_systems > 2:
        # systems that are found different first leave a higher level to the last ones
        near, vary, far = System(0.1, 0.1), System(0.1, 0.3), System(0.3, 0.1)
        yield "half far off", world(two_kinds(near, far))
        yield "half far off, the others vary × 3", world(two_kinds(vary, far))
        yield "all but two far off, these vary × 2", world(two_kinds(System(0.1, 0.2), far, 2))
        yield "all but two far off, one of these varies × 3", world([near, vary, *[far] * (num_systems - 2)])
        yield "all but two far off, the baseline varies × 3", world([vary, near, *[far] * (num_systems - 2)])
        num_learning = num_systems - max(1, num_systems // 4)
        yield "a quarter never learns", world(two_kinds(System(), System(failing=1.0), num_learning))
    yield "each seed fails with 0.1", world(System(failing=0.1))
    yield "rates of 1 %", world(System(0.01))
    yield "rates of 0.3 %, 10 speakers", world(System(0.003), num_speakers=10)
    yield "rates of 95 %", world(System(0.95, 0.05), speaker_sd=0.05)
    yield "half at 97 %, half at 30 %", world(two_kinds(System(0.97, 0.1), System(0.3, 0.1)), speaker_sd=0.05)
    for num_speakers, taste_sd in itertools.product((6, 10, 16), (0.05, 0.3)):
        few = world(System(), num_speakers=num_speakers, taste_sd=taste_sd)
        yield f"{num_speakers} speakers, taste {taste_sd}", few
    constant, apart = {"noise": "points", "speaker_sd": 0.03}, two_kinds(System(0.1, 0.02), System(0.3, 0.02))
    yield "noise constant in points, 10 and 30 %", world(apart, **constant)
    yield "noise constant in points, 10 and 30 %, scale=points", world(apart, **constant, scale="points")
    shaken = two_kinds(steady, replace(steady, seed_sd=0.06), num_systems - 1)
    yield "another varies × 10 in points, scale=points", world(shaken, **points, scale="points")


def excluded_worlds(num_systems: int, num_seeds: int) -> Iterator[tuple[str, World]]:
    """Yield worlds that the claims exclude: only one system fails, in one run of ten."""
    for name, rate in (("typical rates are equal", 0.1), ("geometric means are equal", 0.1 ** (1 / 0.9))):
        fails = [*[System(0.1, 0.1)] * (num_systems - 1), System(rate, 0.1, failing=0.1)]
        yield f"only one fails, with 0.1; {name}", World(fails, num_seeds)
