"""Runs as they are after reading, with errors of the test's choice, and comparisons of made-up trainings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from werdict.comparison import compare
from werdict.result import Comparison
from werdict.runs import Cost, Curve, Inputs, Run, SetErrors

NAMES = (
    "eve lr=0.01",
    "eve lr=0.03",
    "adamw",
    "maxfactor",
    "cain lr=0.003",
    "cain lr=0.01",
    "scaled_adam schedule=eden",
    "learned_gradient",
    "eve lr=0.1",
    "adafactor",
    "t5x_adafactor parameter_rules=none",
    "cain lr=0.03",
    "adamw lr=0.004 schedule=warmup_inverse_square_root",
    "maxfactor beta2=0.98 clip=0.5",
    "eve lr=0.003",
    "cain lr=0.1 encoder=transformer_m head=ctc tokenizer=unigram data.batch.max_duration_s=120",
)
NUM_UTTERANCES, NUM_SPEAKERS, NUM_WORDS = 60, 10, 12
UPDATES, EVERY = 600, 30


def made_comparison(
    num_systems: int = 8,
    num_seeds: int = 3,
    *,
    sets: tuple[str, ...] = ("test",),
    curves: bool = True,
    seconds: bool = True,
    names: tuple[str, ...] = NAMES,
    **options,
) -> Comparison:
    """Compare systems of which each is a little worse than the one before."""
    runs = [
        made_run(name, rank, seed, sets, curves, seconds)
        for rank, name in enumerate(names[:num_systems])
        for seed in range(1, num_seeds + 1)
    ]
    baseline = "adamw" if "adamw" in names[:num_systems] else "auto"
    given = {"title": "made", "baseline": baseline, "target_wer": 0.2, "notes": ["synthetic speech"], **options}
    return compare_runs(runs, **given)


def made_run(name: str, rank: int, seed: int, sets: tuple[str, ...], curves: bool, seconds: bool) -> Run:
    rng = np.random.default_rng([rank, seed])
    rate = 0.03 * 1.25**rank * rng.normal(1, 0.06)
    words = name.split()
    return Run(
        folder=Path(f"runs/digits/transformer_ctc/{'-'.join(words)}-seed={seed}"),
        system=name,
        seed=seed,
        lr=next((float(word[3:]) for word in words if word.startswith("lr=")), 0.002),
        sets={name: made_errors(rate * (1 + index), rng) for index, name in enumerate(sets)},
        curves=made_curves(rate, 0.1 + 0.01 * rank, rng, seconds) if curves else {},
        cost=Cost(
            num_updates=UPDATES,
            num_parameters=1_234_567,
            seconds=UPDATES * (0.1 + 0.01 * rank),
            seconds_per_update=0.1 + 0.01 * rank,
            optimizer_step_seconds=0.005,
            optimizer_step_sd=0.002,
            optimizer_share=0.05 + 0.01 * rank,
            optimizer_state_bytes=1_234_567 * 8,
            peak_memory_mb=850.0 + rank,
        ),
    )


def made_errors(rate: float, rng: np.random.Generator) -> SetErrors:
    """The voices and the sentences are the same for all runs; some voices are harder."""
    hardness = np.random.default_rng(0).uniform(0.5, 1.5, NUM_SPEAKERS)
    return SetErrors(
        ids=tuple(f"utterance-{index:03d}" for index in range(NUM_UTTERANCES)),
        speakers=tuple(f"speaker-{index % NUM_SPEAKERS}" for index in range(NUM_UTTERANCES)),
        words=(NUM_WORDS,) * NUM_UTTERANCES,
        errors=tuple(
            int(rng.binomial(NUM_WORDS, min(1.0, rate * hardness[index % NUM_SPEAKERS])))
            for index in range(NUM_UTTERANCES)
        ),
    )


def made_curves(rate: float, step_s: float, rng: np.random.Generator, seconds: bool) -> dict[str, Curve]:
    updates = np.arange(1, UPDATES + 1)
    loss = (4 * rate + 4 * np.exp(-updates / 90)) * rng.normal(1, 0.1, UPDATES)
    validated = updates[EVERY - 1 :: EVERY]
    wer = rate + 0.9 * np.exp(-validated / 120) * rng.normal(1, 0.05, len(validated))
    return {
        name: Curve(
            tuple(at.tolist()), tuple((at * step_s).tolist()) if seconds else (), tuple(np.asarray(values).tolist())
        )
        for name, at, values in (("train/loss", updates, loss), ("val/wer", validated, wer))
    }


WORDS = 10
SPEAKERS = ("a", "a", "b", "b", "c", "c")


def errors_of(
    counts: Sequence[int], prefix: str = "u", speakers: Sequence[str | None] | None = SPEAKERS, words: int = WORDS
) -> SetErrors:
    ids = tuple(f"{prefix}{index}" for index in range(len(counts)))
    given = tuple(speakers[: len(counts)]) if speakers else (None,) * len(counts)
    return SetErrors(ids, given, (words,) * len(counts), tuple(counts))


def run_of(
    system: str,
    seed: int,
    counts: Sequence[int] = (1, 2, 3, 2, 1, 0),
    *,
    folder: str = "",
    sets: Mapping[str, SetErrors] | None = None,
    curves: Mapping[str, Curve] | None = None,
    num_updates: int = 100,
) -> Run:
    return Run(
        folder=Path(folder or f"runs/{system}-{seed}"),
        system=system,
        seed=seed,
        lr=0.001,
        sets={"test": errors_of(counts)} if sets is None else sets,
        curves=curves or {},
        cost=Cost(num_updates=num_updates, num_parameters=1000),
    )


def compare_runs(
    runs: Sequence[Run],
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
    failed: Sequence[tuple[str, int]] = (),
    title: str = "made",
    **options: Any,
) -> Comparison:
    return compare(Inputs(runs, problems, notes, failed), title=title, **options)


def better(counts: Sequence[int], by: int) -> list[int]:
    return [count - by for count in counts]


# three seeds of four systems; the second is far better than the first, the third about as good
COUNTS = {1: (6, 5, 7, 6, 5, 6), 2: (5, 6, 6, 7, 6, 6), 3: (6, 6, 6, 6, 5, 5)}


def sweep() -> list[Run]:
    runs = []
    for seed, counts in COUNTS.items():
        other = COUNTS[seed % 3 + 1]
        runs += [run_of("adamw", seed, counts), run_of("eve", seed, better(counts, 4)), run_of("cain", seed, other)]
    return runs
