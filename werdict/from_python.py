"""Compares results of any toolkit from Python."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from werdict.comparison import AUTO, compare
from werdict.formatting import count
from werdict.report.pages import json_text, page, render, tables
from werdict.report.sections import set_sections
from werdict.result import Comparison, Scale
from werdict.results import Allowed, SpeakerOf, named_speakers, read_results, runs_of_rows, with_speakers
from werdict.scoring import Unit


@dataclass(frozen=True)
class ComparedResults:
    """What a comparison has found; in a notebook it is shown as tables."""

    comparison: Comparison

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """Each system that is compared with the baseline on each test set, with its verdict and numbers."""
        return [
            {"set": test_set.name, **asdict(contrast)}
            for test_set in self.comparison.sets
            for contrast in (*(row.to_baseline for row in test_set.rows), *test_set.pairs)
            if contrast is not None
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
                "may_be_best": row.may_be_best,
                "vs_baseline": row.to_baseline.verdict if row.to_baseline else None,
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
    results: Any = None,
    *,
    pattern: str | Path | None = None,
    format: str | None = None,
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    id_pattern: str | None = None,
    speakers: str | Path | None = None,
    speaker_pattern: str | None = None,
    speaker_of: SpeakerOf | None = None,
    normalize: str = "none",
    unit: Unit = "word",
    by: Sequence[str] = (),
    allow: Collection[Allowed] = (),
    training_texts: str | Path | None = None,
    baseline: str = AUTO,
    pairs: Literal["baseline", "all"] = "baseline",
    scale: Scale = "ratio",
    level: float = 0.95,
    title: str | None = None,
) -> ComparedResults:
    """Compare systems by their results on test sets.

    Args:
        results: a pandas frame, or dictionaries, with the columns ``system``, ``seed``, ``set``, ``id``, ``speaker``,
            ``reference`` and ``hypothesis``, or ``errors`` and ``words`` in place of the texts; or files of any
            toolkit, or patterns such as ``"out/*.json"``. None: the files that ``pattern`` matches.
        pattern: what the parts of the paths are: ``"exp/{system}/seed{seed}/{set}/*"``.
        format: of the files, see ``werdict.results.FORMATS``; None: as their contents say.
        references: a file of the reference texts; its name may hold ``{system}``, ``{seed}`` and ``{set}``.
        columns: names of columns or keys, if they are others: ``{"hypothesis": "pred_text_canary"}``.
        id_pattern: a regular expression that finds in each id what is compared, if the ids of systems differ.
        speakers: a file that names the speaker of each utterance, like Kaldi's utt2spk; None: as the results say.
        speaker_pattern: or a regular expression that finds the speaker in an utterance's id: ``"^[^-]+"``.
        speaker_of: or a function that returns the speaker of an utterance's id.
        normalize: texts before they are scored: ``none``, ``basic`` or ``english``.
        unit: what is counted.
        by: columns; the utterances of each value are also compared separately.
        allow: what is no error: ``missing``, ``duplicates``, ``references`` (that differ), ``empty``.
        training_texts: a text file; utterances whose references occur in it are compared separately.
        baseline: system that all others are compared with; ``auto``: ``adamw``, if it exists, else the first one.
        pairs: pairs that are tested: those with the ``baseline``, or ``all`` as a further question.
        scale: of the contrasts: ``ratio`` of geometric means, or ``points``.
        level: of each question.
        title: of the page; None: the number of runs.

    Raises:
        ValueError: the results cannot be read or compared.
    """
    rows = read_results(
        results, pattern=pattern, format=format, references=references, columns=columns, id_pattern=id_pattern
    )
    texts = None if training_texts is None else Path(training_texts)
    inputs = runs_of_rows(rows, normalize=normalize, unit=unit, by=by, allow=allow, training_texts=texts)
    speaker_of = speaker_of or named_speakers(speakers, speaker_pattern)
    if speaker_of is not None:
        inputs = replace(inputs, runs=with_speakers(inputs.runs, speaker_of))
    name = title or count(len(inputs.runs), "run")
    return ComparedResults(compare(inputs, title=name, baseline=baseline, pairs=pairs, scale=scale, level=level))
