"""Writes the page of a run: its curves, what it is trained on, how it aligns, and where it is wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from asr.compare.report.pages import render
from asr.compare.report.tables import Cell, Column, Table
from asr.data.waveform import PLAYED_HZ, read_audio
from asr.evaluation.error_stats import aligned_view, confusions, error_name
from asr.evaluation.formatting import UNKNOWN, count
from asr.evaluation.wer import Score, ScoredUtterance, Unit
from asr.safe_io import write_whole
from asr.training.run_page.examples import Example
from asr.training.run_page.plots import plot_example, plot_run_curves

FACTS = [Column("", True), Column("", True)]
NUM_WORST, NUM_CONFUSIONS = 5, 20


@dataclass(frozen=True)
class RunPage:
    """What a page shows.

    Attributes:
        run_dir: folder of the run.
        headlines: the results.
        facts: by name, what the run was.
        notes: that must be shown with the results.
        scores: by set.
        cuts: by set, for their audio.
        features: augmented, of training utterances.
        alignments: of tokens, on dev.
        difference: by key what the recipe says and what the run has.
    """

    run_dir: Path
    headlines: Sequence[str]
    facts: Mapping[str, str]
    notes: Sequence[str]
    scores: Mapping[str, Score]
    cuts: Mapping[str, Iterable[Any]]
    features: Sequence[Example]
    alignments: Sequence[Example]
    difference: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Worst:
    """An utterance with many errors; ``audio`` is an address of the data themselves, or empty."""

    id: str
    size: str
    alignment: str
    audio: str


def worst_utterances(score: Score) -> list[ScoredUtterance]:
    """Return the utterances with the most errors, most first."""
    wrong = [scored for scored in score.utterances if scored.words.errors]
    return sorted(wrong, key=lambda scored: (-scored.words.errors, scored.utterance.id))[:NUM_WORST]


def write_run_page(page: RunPage) -> None:
    """Write ``report/report.html``, a page without scripts that loads nothing, and its curves as PNG files."""
    metrics = page.run_dir / "metrics.csv"  # logger=none writes none
    (rate_name, *_) = {score.rate_name for score in page.scores.values()} or {"WER"}
    curves = plot_run_curves(metrics, rate_name) if metrics.exists() else []
    for plot in curves:
        write_whole(page.run_dir / "report" / f"{plot.name}.png", plot.png)
    worst = {name: worst_utterances(score) for name, score in page.scores.items()}
    audio = {
        name: read_audio(page.cuts.get(name, ()), {scored.utterance.id for scored in utterances})
        for name, utterances in worst.items()
    }
    text = render(
        "run_page.html.jinja",
        __package__ or "",
        page=page,
        title="/".join(page.run_dir.parts[-2:]),
        curves=curves,
        features=[plot_example(example, number) for number, example in enumerate(page.features)],
        alignments=[plot_example(example, number) for number, example in enumerate(page.alignments)],
        confusions=[_confusion_table(name, score) for name, score in page.scores.items()],
        worst={
            name: [_shown(scored, page.scores[name].unit, audio[name]) for scored in utterances]
            for name, utterances in worst.items()
        },
        facts=Table("This run", FACTS, [[Cell(name), Cell(text)] for name, text in page.facts.items()]),
        difference=_difference_table(page.difference),
        config=(page.run_dir / "config.yaml").read_text(encoding="utf-8"),
        styles={},
    )
    write_whole(page.run_dir / "report" / "report.html", text)


def _shown(scored: ScoredUtterance, unit: Unit, audio: Mapping[str, np.ndarray]) -> Worst:
    size = f"{count(scored.words.errors, 'error')} in {count(scored.words.num_reference, unit)}"
    samples = audio.get(scored.utterance.id)
    return Worst(
        scored.utterance.id, size, aligned_view(scored.alignment), "" if samples is None else _address(samples)
    )


def _address(samples: np.ndarray) -> str:
    content = io.BytesIO()
    soundfile.write(content, samples, PLAYED_HZ, format="FLAC", subtype="PCM_16")
    return f"data:audio/flac;base64,{base64.b64encode(content.getvalue()).decode()}"


def _confusion_table(name: str, score: Score) -> Table:
    counted = confusions(scored.alignment for scored in score.utterances).items()
    frequent = sorted(counted, key=lambda item: (-item[1], error_name(item[0]), str(item[0])))[:NUM_CONFUSIONS]
    rows = [
        [Cell(pair[0] or UNKNOWN), Cell(pair[1] or UNKNOWN), Cell(str(times)), Cell(error_name(pair))]
        for pair, times in frequent
    ]
    columns = [Column("said", True), Column("recognized", True), Column("times"), Column("error", True)]
    return Table(f"Most frequent errors on {name}", columns, rows)


def _difference_table(difference: Mapping[str, tuple[str, str]]) -> Table:
    rows = [[Cell(key), Cell(recipe_value), Cell(run_value)] for key, (recipe_value, run_value) in difference.items()]
    columns = [Column("key", True), Column("recipe", True), Column("this run", True)]
    return Table("Differs from its recipe", columns, rows)
