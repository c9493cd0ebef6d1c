"""Compares results of any toolkit from Python."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from asr.compare.compare import AUTO, compare
from asr.compare.inputs.formats.table import lines_of, rows_of
from asr.compare.inputs.results import read_results
from asr.compare.inputs.rows import Row
from asr.compare.inputs.runs_of_rows import Allowed, runs_of_rows
from asr.compare.inputs.speakers import SpeakerOf, with_speakers
from asr.compare.report.html_and_json import json_text, page
from asr.compare.report.pages import render
from asr.compare.report.sections import set_sections
from asr.compare.report.terminal import tables
from asr.compare.result import Comparison
from asr.evaluation.formatting import count
from asr.evaluation.wer import Unit


@dataclass(frozen=True)
class ComparedResults:
    """What a comparison has found; in a notebook it is shown as tables."""

    comparison: Comparison

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Each pair of systems on each test set, the better one first, with its verdict and numbers."""
        return [
            {
                "set": test_set.name,
                "system": pair.system,
                "other": pair.other,
                "verdict": pair.verdict,
                "difference": pair.mean,
                "low": pair.low,
                "high": pair.high,
                "p_adjusted": pair.p_adjusted,
            }
            for test_set in self.comparison.sets
            for pair in test_set.pairs
        ]

    def table(self) -> list[dict[str, Any]]:
        """Return each system on each test set, for example for ``pandas.DataFrame``; rates are fractions."""
        return [
            {
                "set": test_set.name,
                "system": row.system,
                test_set.rate_name.lower(): row.wer_mean,
                "low": row.low,
                "high": row.high,
                "seeds": len(row.seeds) if test_set.has_seeds else None,
                "vs_reference": row.to_best.verdict if row.to_best else None,
            }
            for test_set in self.comparison.sets
            for row in test_set.rows
        ]

    def to_html(self, path: str | Path) -> Path:
        """Write the page that ``asr-compare`` writes; return its path."""
        Path(path).write_text(page(self.comparison), encoding="utf-8")
        return Path(path)

    def to_json(self) -> str:
        """Return what ``asr-compare`` writes to ``comparison.json``."""
        return json_text(self.comparison)

    def __str__(self) -> str:
        printed = io.StringIO()
        console = Console(file=printed, width=120)
        for table in tables(self.comparison):
            console.print(table, "")
        for sentence in (*self.comparison.notes, *self.comparison.problems):
            console.print(sentence, markup=False)
        return printed.getvalue()

    def _repr_html_(self) -> str:
        return render("notebook.html.jinja", sections=set_sections(self.comparison), notes=self.comparison.notes)


def compare_results(
    results: Any,
    *,
    pattern: str | None = None,
    format: str | None = None,
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    speaker_of: SpeakerOf | None = None,
    normalize: str = "none",
    unit: Unit = "word",
    by: Sequence[str] = (),
    allow: Collection[Allowed] = (),
    training_texts: str | Path | None = None,
    baseline: str | None = AUTO,
    comparisons: Literal["all", "baseline"] = "all",
    level: float = 0.95,
    title: str | None = None,
) -> ComparedResults:
    """Compare systems by their results on test sets.

    Args:
        results: a pandas frame or dictionaries with the columns of ``asr.compare.inputs.formats.table``; or files, see
            ``read_results``, as the four arguments after it.
        pattern: of paths.
        format: of files.
        references: a file of reference texts.
        columns: names of columns, if they are others.
        speaker_of: returns the speaker of an utterance's id; None: as the results say.
        normalize: of texts; as the arguments after it, see ``runs_of_rows``.
        unit: that is counted.
        by: columns.
        allow: what is no error.
        training_texts: a file of texts.
        baseline: as the two arguments after it, see ``compare``.
        comparisons: that are tested.
        level: of intervals and verdicts.
        title: of the page; None: the number of runs.

    Raises:
        ValueError: the results cannot be read or compared.
    """
    rows: Iterable[Row]
    if results is None or isinstance(results, str | Path) or _are_paths(results):
        rows = read_results(results, pattern=pattern, format=format, references=references, columns=columns)
    else:
        lines = lines_of(results) if hasattr(results, "itertuples") else results
        rows = rows_of(lines, columns or {}, "results")
    texts = None if training_texts is None else Path(training_texts)
    inputs = runs_of_rows(rows, normalize=normalize, unit=unit, by=by, allow=allow, training_texts=texts)
    if speaker_of is not None:
        inputs = replace(inputs, runs=with_speakers(inputs.runs, speaker_of))
    name = title or count(len(inputs.runs), "run")
    return ComparedResults(compare(inputs, title=name, baseline=baseline, comparisons=comparisons, level=level))


def _are_paths(results: Any) -> bool:
    return isinstance(results, list | tuple) and bool(results) and all(isinstance(path, str | Path) for path in results)
