"""What is written of a decoded set: error counts with intervals, headlines, and words with their times."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rich.cells import cell_len, set_cell_size

from werdict import formatting
from werdict.files import refuse_existing, write_new
from werdict.formatting import count, percent
from werdict.scoring import AlignedWord, ErrorCounts, Score, ScoredUtterance, Unit, Utterance, Word, words_of

MIN_RESAMPLES = 100  # with fewer the ends of an interval are too random
MAX_DRAWS = 2 * 10**8  # units drawn for one interval; takes about two seconds
CHUNK_DRAWS = 2**20  # units drawn at once; limits memory to about 25 MB


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a WER.

    Attributes:
        low: lower end, a fraction.
        high: upper end, a fraction.
        unit: what was resampled, or counted as independent.
        num_units: their number.
        level: share of such intervals that contain the true value, for example 0.95.
        method: ``bootstrap``; ``exact upper bound`` if there is no error; ``none`` for a single utterance, which says
            nothing about others (then 0 to infinity).
    """

    low: float
    high: float
    unit: Literal["speaker", "utterance"] | Unit
    num_units: int
    level: float = 0.95
    method: Literal["bootstrap", "exact upper bound", "none"] = "bootstrap"


def bootstrap_interval(score: Score, *, num_resamples: int = 10_000, level: float = 0.95, seed: int = 0) -> Interval:
    """Return the percentile bootstrap interval of a WER.

    Errors of one speaker depend on each other. So whole speakers are drawn with replacement if every utterance has a
    speaker and there are at least two; otherwise utterances. Draws without a reference word have no WER and do not
    count. With few units the interval is too narrow: with ten simulated speakers, 90 of 100 contained the true WER.

    Without any error every draw would give 0. Then the interval is one-sided and exact for independent words
    (Clopper and Pearson): its upper end is the WER at which no error in that many words has a probability of
    ``1 - level``.

    Args:
        score: errors per utterance.
        num_resamples: draws of the whole set; fewer for more than 20,000 units, so that ``MAX_DRAWS`` units are drawn:
            with 300,000 units the ends move by 5 % of the interval's half width from seed to seed.
        level: between 0 and 1, exclusive.
        seed: the same seed gives the same interval.

    Reference:
        Bisani and Ney 2004, "Bootstrap estimates for confidence intervals in ASR performance evaluation", for
        utterances; Liu and Peng 2020, "Statistical testing on ASR performance via blockwise bootstrap",
        arXiv:1912.09508, for speakers as blocks; Clopper and Pearson 1934, "The use of confidence or fiducial limits
        illustrated in the case of the binomial", Biometrika 26, for sets without errors.
    """
    speakers = [item.utterance.speaker for item in score.utterances]
    unit: Literal["speaker", "utterance"] = "speaker" if all(speakers) and len(set(speakers)) > 1 else "utterance"
    counts: dict[object, ErrorCounts] = defaultdict(ErrorCounts)
    for index, item in enumerate(score.utterances):
        counts[item.utterance.speaker if unit == "speaker" else index] += item.words
    errors = np.array([of_unit.errors for of_unit in counts.values()])
    words = np.array([of_unit.num_reference for of_unit in counts.values()])
    interval = interval_of_counts(unit, errors, words, num_resamples=num_resamples, level=level, seed=seed)
    return replace(interval, unit=score.unit) if interval.unit == "word" else interval


def interval_of_counts(
    unit: Literal["speaker", "utterance"],
    errors: NDArray[np.int64],
    words: NDArray[np.int64],
    *,
    num_resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return the interval of ``bootstrap_interval`` from errors and words (U,) per unit."""
    if errors.sum() == 0:
        num_words = int(words.sum())
        high = -math.expm1(math.log1p(-level) / num_words)
        return Interval(0.0, high, "word", num_words, level, "exact upper bound")
    if len(errors) == 1:
        return Interval(0.0, math.inf, unit, 1, level, "none")
    num_resamples = min(num_resamples, max(MIN_RESAMPLES, MAX_DRAWS // len(errors)))
    rates = _resampled_rates(errors, words, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), unit, len(errors), level)


def _resampled_rates(
    errors: NDArray[np.int64], words: NDArray[np.int64], num_resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    rates = []
    rows = max(1, CHUNK_DRAWS // len(errors))
    for start in range(0, num_resamples, rows):
        drawn = rng.integers(len(errors), size=(min(rows, num_resamples - start), len(errors)))
        sum_errors, sum_words = errors[drawn].sum(axis=1), words[drawn].sum(axis=1)
        defined = sum_words > 0
        rates.append(sum_errors[defined] / sum_words[defined])
    return np.concatenate(rates)


LEVEL = 0.01
NUM_PERMUTATIONS = 199  # p-values are multiples of 0.5 %
BLOCK = 5  # utterances that change places; up to 9 if there are fewer than 10
MAX_UTTERANCES = 10_000


def depends_on_audio(p_value: float | None) -> bool | None:
    """Return whether hypotheses depend on the audio, by ``dependence_p`` at the level of 1 %; None if it is unknown."""
    return None if p_value is None else p_value <= LEVEL


def dependence_p(utterances: Iterable[Utterance]) -> float | None:
    """Return the p-value of the null hypothesis that what was recognized has nothing to do with what was said.

    The statistic is the number of character edits between hypotheses and references. It is compared with that of the
    same hypotheses in another order: they fit the references of other utterances as well if nothing was understood.
    They change places only among five utterances whose references are about equally long, so that a model that merely
    writes more for longer audio is not significant. Characters, because a model that spells no word right may have
    understood a part of all.

    The test is exact: the order as it was recognized is one of 200 that are equally likely, so that p is at most α in
    at most a share α of all runs that understand nothing. Equal hypotheses, or none, have p = 1. The same texts always
    give the same p. At most 10,000 utterances, evenly spaced by length, are used; they take 50,000 edit distances,
    about half a second.

    Args:
        utterances: of a test set, each id once.

    Returns:
        None if a perfect recognizer would not be significant at ``LEVEL`` either: there are fewer than five utterances,
        or nearly all have the same reference.

    Reference:
        Phipson and Smyth 2010, "Permutation p-values should never be zero", Statistical Applications in Genetics and
        Molecular Biology 9:39, for counting the order as it was recognized.
    """
    texts = [(" ".join(utterance.reference.split()), utterance.id, utterance.hypothesis) for utterance in utterances]
    texts.sort(key=lambda text: (len(text[0]), text[1]))
    if len(texts) > MAX_UTTERANCES:
        texts = [texts[place] for place in np.linspace(0, len(texts) - 1, MAX_UTTERANCES).astype(int)]
    references = [reference for reference, _, _ in texts]
    hypotheses = [" ".join(hypothesis.split()) for _, _, hypothesis in texts]
    p_value = _permutation_p(references, hypotheses)
    return None if p_value > LEVEL and _permutation_p(references, references) > LEVEL else p_value


def _permutation_p(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    rng, recognized, chance = np.random.default_rng(0), 0, np.zeros(NUM_PERMUTATIONS, np.int64)
    for block in np.array_split(np.arange(len(references)), max(1, len(references) // BLOCK)):
        edits = np.array(
            [[Levenshtein.distance(references[row], hypotheses[column]) for column in block] for row in block]
        )
        places = np.arange(len(block))
        orders = rng.permuted(np.tile(places, (NUM_PERMUTATIONS, 1)), axis=1)
        recognized += int(edits.trace())
        chance += edits[places, orders].sum(1)
    return float((1 + (chance <= recognized).sum()) / (1 + NUM_PERMUTATIONS))


def ctm_lines(name: str, words: Sequence[Word], channel: int = 1) -> str:
    """Return a line of NIST's CTM for each word: name, channel, start and duration in seconds, word, confidence.

    Fields are separated by spaces: those of the name are written as in an address, ``%20``, and so is ``%``.
    """
    field = re.sub(r"[\s%]", lambda match: quote(match[0]), name)
    return "".join(
        f"{field} {channel} {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} {word.confidence:.3f}\n"
        for word in words
    )


def word_row(word: Word, **more: Any) -> dict[str, Any]:
    """Return a word with its times as plain data."""
    times = {"word": word.text, "start": word.start_s, "end": word.end_s}
    return {**times, "confidence": round(word.confidence, 4), **more}


def json_line(name: str, text: str, words: Sequence[Word], **more: Any) -> str:
    """Return an utterance as a line of JSON: ``id``, ``text``, and ``words`` with times in seconds."""
    rows = [word_row(word) for word in words]
    return json.dumps({"id": name, "text": text, "words": rows, **more}, ensure_ascii=False) + "\n"


def textgrid(duration_s: float, tiers: Mapping[str, Sequence[Word]]) -> str:
    """Return a TextGrid, Praat's format of annotations, in which silence stands between words.

    Args:
        duration_s: of the utterance; words that end later make it longer.
        tiers: words in their order, by the name of their tier.
    """
    end_s = max([duration_s, *(word.end_s for words in tiers.values() for word in words)])
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {end_s:.3f}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, words) in enumerate(tiers.items(), 1):
        intervals = list(_without_gaps(words, end_s))
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f"        name = {_quoted(name)}"]
        lines += ["        xmin = 0", f"        xmax = {end_s:.3f}", f"        intervals: size = {len(intervals)}"]
        for place, (start_s, stop_s, text) in enumerate(intervals, 1):
            lines += [f"        intervals [{place}]:", f"            xmin = {start_s:.3f}"]
            lines += [f"            xmax = {stop_s:.3f}", f"            text = {_quoted(text)}"]
    return "\n".join(lines) + "\n"


def _without_gaps(words: Sequence[Word], end_s: float) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and text of intervals that cover everything."""
    silence = pairwise([0.0, *chain.from_iterable((word.start_s, word.end_s) for word in words), end_s])
    for number, (start_s, stop_s) in enumerate(silence):
        text = words[number // 2].text if number % 2 else ""
        if stop_s > start_s:
            yield start_s, stop_s, text


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


GAP = "*"  # in alignments as people read them
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
    width = max(cell_len(reference or ""), cell_len(hypothesis or ""))
    said, recognized = (GAP * width if word is None else word for word in (reference, hypothesis))
    mark = error_name((reference, hypothesis))[:1].upper()
    return set_cell_size(said, width), set_cell_size(recognized, width), set_cell_size(mark, width)


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
