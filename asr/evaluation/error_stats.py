"""Reports the error rates of one set: a headline, plain numbers and five text files."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr.evaluation import formatting
from asr.evaluation.confidence import Interval
from asr.evaluation.dependence import dependence_p
from asr.evaluation.formatting import count, percent
from asr.evaluation.wer import AlignedWord, Score, ScoredUtterance, Unit, words_of
from asr.evaluation.word_files import ctm_lines
from asr.safe_io import refuse_existing, write_new

GAP = "*"  # in alignments as people read them
_ZERO_WIDTH = ("Mn", "Me", "Cf")
NUM_WORST = 20
NUM_CONFUSIONS = 20
ERROR_COLUMNS = ("id", "speaker", "words", "substitutions", "deletions", "insertions")
_SET_NAME = re.compile(r"\w[\w.+-]*")


def aligned_view(alignment: Iterable[AlignedWord]) -> str:
    """Return three lines: reference words, hypothesis words below them, and S, D or I below every error."""
    columns = [_column(reference, hypothesis) for reference, hypothesis in alignment]
    lines = (
        zip(("REF", "HYP", "   "), zip(*columns, strict=True), strict=True) if columns else [("REF", ()), ("HYP", ())]
    )
    return "\n".join("  ".join([label, *cells]).rstrip() for label, cells in lines)


def confusions(alignments: Iterable[Iterable[AlignedWord]]) -> Counter[AlignedWord]:
    """Count the errors by their words: (said, recognized), with None for no word."""
    return Counter(pair for alignment in alignments for pair in alignment if pair[0] != pair[1])


def error_name(pair: AlignedWord) -> str:
    """Return ``substitution``, ``deletion`` or ``insertion``; empty if both words are the same."""
    reference, hypothesis = pair
    if reference == hypothesis:
        return ""
    if hypothesis is None:
        return "deletion"
    return "insertion" if reference is None else "substitution"


def _column(reference: str | None, hypothesis: str | None) -> tuple[str, str, str]:
    width = max(_width(reference or ""), _width(hypothesis or ""))
    mark = error_name((reference, hypothesis))[:1].upper()
    return (
        _pad(GAP * width if reference is None else reference, width),
        _pad(GAP * width if hypothesis is None else hypothesis, width),
        _pad(mark, width),
    )


def _pad(word: str, width: int) -> str:
    return word + " " * (width - _width(word))


def _width(word: str) -> int:
    """Return the columns in a terminal: East Asian wide characters take two, combining marks none."""
    visible = [character for character in word if unicodedata.category(character) not in _ZERO_WIDTH]
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in visible)


def headline(score: Score, interval: Interval) -> str:
    """Return the result in one line: WER with its interval, CER, edits and size of the set; of characters the CER."""
    counts = score.words
    edits = f"S {counts.substitutions} D {counts.deletions} I {counts.insertions}"
    size = f"{count(counts.num_reference, score.unit)}, {count(score.num_utterances, 'utterance')}"
    rates = [f"{score.rate_name} {percent(score.wer)} % {_interval_text(interval)}"]
    rates += [f"CER {percent(score.cer)} %"] if score.unit == "word" else []
    return " | ".join([*rates, edits, size])


def summary(score: Score, interval: Interval) -> dict[str, float | int | str | None]:
    """Return the result as plain numbers for a JSON file; rates are fractions, unknown ends are None.

    ``wer`` and ``num_words`` count in ``unit``. ``dependence_p`` tells whether hypotheses depend on the audio.
    """
    has_interval = interval.method != "none"
    texts = sorted((item.utterance.id, words_of(item.utterance.reference, score.unit)) for item in score.utterances)
    return {
        "unit": score.unit,
        "wer": score.wer,
        "wer_low": interval.low if has_interval else None,
        "wer_high": interval.high if has_interval else None,
        "interval_level": interval.level,
        "interval_method": interval.method,
        "interval_unit": interval.unit,
        "interval_num_units": interval.num_units,
        "cer": score.cer,
        "substitutions": score.words.substitutions,
        "deletions": score.words.deletions,
        "insertions": score.words.insertions,
        "num_words": score.words.num_reference,
        "num_characters": score.characters.num_reference,
        "num_utterances": score.num_utterances,
        "num_duplicates": score.num_duplicates,
        "dependence_p": dependence_p([item.utterance for item in score.utterances]),
        # tells whether two runs were scored against the same texts, whatever the order of utterances
        "references": hashlib.sha256(repr(texts).encode()).hexdigest()[:16],
    }


def check_set_name(name: str) -> None:
    """Refuse a name that cannot be part of a file name.

    Raises:
        ValueError: the name is empty, or holds more than letters, digits and ``_ . + -``.
    """
    if not _SET_NAME.fullmatch(name):
        raise ValueError(
            f"set name {name!r} cannot be part of a file name: it must begin with a letter, digit or _, and all others "
            "must be letters, digits or one of _ . + -; rename the set, for example test-clean"
        )


def write_report(folder: Path, set_name: str, score: Score, interval: Interval, notes: Sequence[str] = ()) -> None:
    """Write ``<set>.hyp.txt``, ``.alignments.txt``, ``.ctm``, ``.errors.tsv`` and last ``<set>.wer.txt``.

    Each file appears complete or not at all; if ``<set>.wer.txt`` exists, the others do too. ``<set>.ctm`` has the
    times of words, see ``ctm_lines``. ``<set>.errors.tsv`` is for programs: a header, then ``ERROR_COLUMNS`` of each
    utterance, separated by tabs; an unknown speaker is empty.

    Args:
        folder: created if needed.
        set_name: see ``check_set_name``.
        score: of the set.
        interval: of its WER.
        notes: sentences that must be shown with the result, for example "synthetic speech".

    Raises:
        ValueError: the name of the set cannot be part of a file name.
        FileExistsError: one of the files exists; then nothing is written.
    """
    check_set_name(set_name)
    ordered = sorted(score.utterances, key=lambda item: item.utterance.id)
    hypotheses = (f"{item.utterance.id}\t{' '.join(item.utterance.hypothesis.split())}\n" for item in ordered)
    alignments = (f"{_utterance_line(item, score.unit)}\n{aligned_view(item.alignment)}\n" for item in ordered)
    contents = {
        "hyp.txt": "".join(hypotheses),
        "alignments.txt": "\n".join(alignments),
        "ctm": "".join(ctm_lines(item.utterance.id, item.utterance.words) for item in ordered),
        "errors.tsv": _errors_text(ordered),
        "wer.txt": _wer_text(score, interval, notes),
    }
    files = {folder / f"{set_name}.{ending}": text for ending, text in contents.items()}
    for path in files:
        refuse_existing(path)
    for path, text in files.items():
        write_new(path, text)


def _interval_text(interval: Interval) -> str:
    if interval.method == "none":
        return f"(no interval from a single {interval.unit})"
    ends = formatting.interval(interval.low, interval.high)
    level, units = f"{100 * interval.level:g} %", count(interval.num_units, interval.unit)
    if interval.method == "exact upper bound":
        return f"{ends} ({level} upper bound, no error in {units})"
    return f"{ends} ({level} bootstrap over {units})"


def _errors_text(utterances: Sequence[ScoredUtterance]) -> str:
    rows = ["\t".join(ERROR_COLUMNS)]
    for item in utterances:
        word_errors, speaker = item.words, " ".join((item.utterance.speaker or "").split())
        counts = (word_errors.num_reference, word_errors.substitutions, word_errors.deletions, word_errors.insertions)
        rows.append("\t".join((item.utterance.id, speaker, *map(str, counts))))
    return "\n".join(rows) + "\n"


def _wer_text(score: Score, interval: Interval, notes: Sequence[str]) -> str:
    lines = [headline(score, interval), *(f"note: {' '.join(note.split())}" for note in notes)]
    if score.num_duplicates:
        left_out = count(score.num_duplicates, "utterance")
        lines.append(f"note: {left_out} left out: an earlier one has the same id")
    lines += ["", "Utterances with the most errors", ""]
    wrong = [item for item in score.utterances if item.words.errors]
    worst = sorted(wrong, key=lambda item: (-item.words.errors, item.utterance.id))[:NUM_WORST]
    for item in worst:
        lines += [_utterance_line(item, score.unit), aligned_view(item.alignment), ""]
    lines += ([] if worst else ["none has any", ""]) + ["Most frequent errors", ""]
    counted = [
        (-times, error_name(pair), " -> ".join(word for word in pair if word is not None))
        for pair, times in confusions(item.alignment for item in score.utterances).items()
    ]
    frequent = sorted(counted)[:NUM_CONFUSIONS]
    lines += [f"{-times:6d}  {error:<12}  {words}" for times, error, words in frequent] or ["none"]
    return "\n".join(lines) + "\n"


def _utterance_line(item: ScoredUtterance, unit: Unit) -> str:
    errors, words = count(item.words.errors, "error"), count(item.words.num_reference, unit)
    return f"{item.utterance.id}: {errors} in {words}"
