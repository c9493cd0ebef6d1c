"""Word and character error rates of recognized text, per utterance and in total."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Literal

import jiwer

from asr.text.normalize import is_one_line

AlignedWord = tuple[str | None, str | None]
"""A reference word and the hypothesis word aligned with it; None: no word."""

Unit = Literal["word", "character", "nonspace-character"]
"""What an error rate counts. Scripts without spaces between words are scored by character: each counts as a word."""


RATE_NAMES: dict[Unit, str] = {"word": "WER", "character": "CER", "nonspace-character": "CER"}
# on how characters are counted, to be shown with a rate of them
UNIT_NOTES: dict[Unit, list[str]] = {
    "word": [],
    "character": ["CER: spaces count as characters (by the unit nonspace-character they do not)"],
    "nonspace-character": ["CER: spaces do not count as characters"],
}
SCORER = "6b3b12a9ad4ad639"  # changes whenever a rate of the same texts would; entries of the benchmark record it
SPACE = "␣"  # between words, as a character that readers see


@dataclass(frozen=True)
class Word:
    """A word with its place in the audio.

    Attributes:
        text: without spaces.
        start_s: seconds from the start of the utterance.
        end_s: seconds, at least ``start_s``.
        confidence: between 0 and 1, how sure the recognizer is of the word.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Utterance:
    """What was said and what was recognized.

    Attributes:
        id: one line of text without tabs.
        reference: may be empty; then every recognized word is an insertion.
        hypothesis: normalized in the same way as the reference; every remaining difference is an error.
        speaker: None or empty if unknown.
        words: of the hypothesis, with their times; empty if these are not known.
    """

    id: str
    reference: str
    hypothesis: str
    speaker: str | None = None
    words: tuple[Word, ...] = ()

    def __post_init__(self) -> None:
        if not is_one_line(self.id):
            raise ValueError(f"utterance id {self.id!r} is not one line without tabs; rename the utterance")


@dataclass(frozen=True)
class ErrorCounts:
    """Edits that turn references into hypotheses, in words or in characters."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def num_reference(self) -> int:
        """Number of words (characters) in the reference."""
        return self.hits + self.substitutions + self.deletions

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class ScoredUtterance:
    """An utterance with its errors and the word alignment that they were counted from."""

    utterance: Utterance
    words: ErrorCounts
    characters: ErrorCounts
    alignment: tuple[AlignedWord, ...]


@dataclass(frozen=True)
class Score:
    """Errors of a set of utterances.

    Attributes:
        utterances: each id once, in the given order.
        words: total over them; at least one reference word.
        characters: the same in Unicode code points, with the single spaces between words, whatever the unit.
        num_duplicates: utterances left out because an earlier one has the same id.
        unit: what counted as a word.
    """

    utterances: tuple[ScoredUtterance, ...]
    words: ErrorCounts
    characters: ErrorCounts
    num_duplicates: int = 0
    unit: Unit = "word"

    @property
    def rate_name(self) -> str:
        """What ``wer`` is called: of characters it is a CER."""
        return RATE_NAMES[self.unit]

    @property
    def wer(self) -> float:
        """Word errors per reference word; a fraction, which insertions may raise above 1."""
        return self.words.errors / self.words.num_reference

    @property
    def cer(self) -> float:
        """Character errors per reference character; a fraction."""
        return self.characters.errors / self.characters.num_reference

    @property
    def num_utterances(self) -> int:
        """Number of utterances scored."""
        return len(self.utterances)


def score(utterances: Iterable[Utterance], unit: Unit = "word") -> Score:
    """Count the errors of every utterance and in total.

    Words are separated by whitespace; other units are those of ``words_of``. Of utterances with the same id only the
    first counts: distributed samplers repeat some to fill their last batch.

    Raises:
        ValueError: there is no reference word, so that no error rate exists.
    """
    given = list(utterances)
    first: dict[str, Utterance] = {}
    for utterance in given:
        first.setdefault(utterance.id, utterance)
    scored = tuple(_score_utterance(utterance, unit) for utterance in first.values())
    words = sum((item.words for item in scored), ErrorCounts())
    if words.num_reference == 0:
        raise ValueError(
            f"WER: the references of {len(scored)} utterances contain no words, so that no error rate exists; "
            "check the transcripts of the set, or score it together with a set that has words"
        )
    characters = sum((item.characters for item in scored), ErrorCounts())
    return Score(scored, words, characters, len(given) - len(scored), unit)


def words_of(text: str, unit: Unit) -> list[str]:
    """Return what counts as the words of a text; characters with the single spaces between words, if these count."""
    words = text.split()
    return words if unit == "word" else list((SPACE if unit == "character" else "").join(words))


def _score_utterance(utterance: Utterance, unit: Unit) -> ScoredUtterance:
    # jiwer splits words at single spaces only
    reference, hypothesis = (" ".join(words_of(text, unit)) for text in (utterance.reference, utterance.hypothesis))
    words = jiwer.process_words(reference, hypothesis)
    reference, hypothesis = " ".join(utterance.reference.split()), " ".join(utterance.hypothesis.split())
    characters = jiwer.process_characters(reference, hypothesis)
    return ScoredUtterance(utterance, _counts(words), _counts(characters), _aligned_words(words))


def _counts(output: jiwer.WordOutput | jiwer.CharacterOutput) -> ErrorCounts:
    return ErrorCounts(output.hits, output.substitutions, output.deletions, output.insertions)


def _aligned_words(output: jiwer.WordOutput) -> tuple[AlignedWord, ...]:
    (reference,), (hypothesis,), (chunks,) = output.references, output.hypotheses, output.alignments
    aligned: list[AlignedWord] = []
    for chunk in chunks:
        said = reference[chunk.ref_start_idx : chunk.ref_end_idx]
        recognized = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
        # one is empty for deletions and insertions, otherwise both have the same length
        aligned.extend(itertools.zip_longest(said, recognized))
    return tuple(aligned)
