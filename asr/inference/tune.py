"""Chooses the weights of a decoder on development sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from torch import Tensor

from asr.console import PlainConsole
from asr.data.loading.batch import Batch
from asr.data.loading.loader import DataModule
from asr.decoding.hypothesis import Decoder
from asr.decoding.scorers.fusion import ShallowFusion
from asr.errors import RunFailed
from asr.evaluation.formatting import percent
from asr.evaluation.wer import Score, Utterance, score
from asr.inference.batches import process
from asr.models.recognizer import Recognizer
from asr.safe_io import write_new

TRIALS_FILE = "tuning.tsv"  # all trials

console = PlainConsole()


@dataclass(frozen=True)
class Trial:
    """Weights of a decoder by the names of their options, and the errors with them."""

    weights: Mapping[str, float]
    score: Score


def tune(recognizer: Recognizer, decoder: Decoder, data_module: DataModule, sets: Mapping[str, Any]) -> list[Trial]:
    """Decode sets with all combinations of weights, and leave the decoder with the best, those of the lowest WER.

    Audio is encoded once for all of them. Between equal ones the lower CER decides, then the smaller weights.

    Args:
        decoder: whose weights are tunable.
        sets: cuts by the name of their set.

    Returns:
        All combinations, in the order of their weights.

    Raises:
        OutOfMemory: a batch does not fit into memory.
        RunFailed: a worker that reads data was lost, or no utterance could be read.
        ValueError: the sets have no words.
    """
    assert isinstance(decoder, ShallowFusion)
    tried = decoder.tunable
    grid = [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]
    decoded: list[list[Utterance]] = [[] for _ in grid]

    def work(name: str, batch: Batch, encodings: Tensor, num_frames: Tensor) -> list[None]:
        ids = [f"{name}/{cut}" for cut in batch.ids]
        for weights, utterances in zip(grid, decoded, strict=True):
            decoder.weigh(**weights)
            hypotheses = decoder(recognizer.head, encodings, num_frames)
            texts = [data_module.tokenizer.decode(best.tokens) for best, *_ in hypotheses]
            utterances.extend(map(Utterance, ids, batch.texts, texts))
        return []

    unread: list[tuple[str, str]] = []
    for name, cuts in sets.items():
        found_unread = process(recognizer, data_module, cuts, f"tuning on {name}", partial(work, name)).unread
        unread += [(f"{name}: {cut}", reason) for cut, reason in found_unread]
    for cut, reason in unread:
        console.print_line(f"could not read {cut}: {reason}")
    if not decoded[0]:
        raise RunFailed(f"none of the {len(unread)} utterances of {', '.join(sets)} could be read to choose weights on")
    scores = (score(utterances, data_module.unit) for utterances in decoded)
    trials = [Trial(*pair) for pair in zip(grid, scores, strict=True)]
    decoder.weigh(**best_of(trials).weights)
    return trials


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the fewest errors."""
    return min(trials, key=lambda trial: (trial.score.words.errors, trial.score.characters.errors))


def report_trials(trials: Sequence[Trial], sets: Sequence[str], folder: Path) -> str:
    """Print all that were tried, write them to a file, and return a note on the choice."""
    best, names = best_of(trials), list(trials[0].weights)
    *rows, columns = names
    table = Table(*rows, *(f"{value:g}" for value in dict.fromkeys(trial.weights[columns] for trial in trials)))
    for values, group in itertools.groupby(trials, key=lambda trial: [trial.weights[name] for name in rows]):
        cells = (Text(percent(trial.score.wer), style="bold" if trial is best else "") for trial in group)
        table.add_row(*(f"{value:g}" for value in values), *cells)
    console.print(f"{best.score.rate_name} % on {', '.join(sets)}, by {', '.join(names)} (the last in columns):")
    console.print(table)
    lines = [[*(f"{x:g}" for x in t.weights.values()), percent(t.score.wer), percent(t.score.cer)] for t in trials]
    text = "".join("\t".join(line) + "\n" for line in ([*names, "wer", "cer"], *lines))
    write_new(folder / TRIALS_FILE, text)
    chosen = " ".join(f"decoder.{name}={value:g}" for name, value in best.weights.items())
    console.print_line(f"chosen: {chosen}")
    for name, value in best.weights.items():
        if value == max(trial.weights[name] for trial in trials):
            console.print_line(f"{name}={value:g} is the largest that was tried: larger ones may be better")
    reached = f"the {best.score.rate_name} was {percent(best.score.wer)} %"
    return f"search chosen on {', '.join(sets)}, where {reached}: {chosen}"
