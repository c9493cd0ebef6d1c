"""WER and CER: normalized texts, aligned words, and their counts."""

from __future__ import annotations

import itertools
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.metadata import version
from typing import Literal

import jiwer
from rapidfuzz.distance import Levenshtein

from werdict.normalization import TextNormalizer, collapse_spaces, is_one_line

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


def wer(references: str | Sequence[str], hypotheses: str | Sequence[str]) -> float:
    """Return the word error rate of one hypothesis or several: edits by words of all references together.

    Raises:
        ValueError: there are not as many hypotheses as references, or the references have no words.
    """
    return _score_texts(references, hypotheses).wer


def cer(references: str | Sequence[str], hypotheses: str | Sequence[str]) -> float:
    """Return the character error rate of one hypothesis or several; spaces between words are characters.

    Raises:
        ValueError: as of `wer`.
    """
    return _score_texts(references, hypotheses).cer


def _score_texts(references: str | Sequence[str], hypotheses: str | Sequence[str]) -> Score:
    # a text is a sequence of texts, too: its letters
    first, second = ([texts] if isinstance(texts, str) else texts for texts in (references, hypotheses))
    if len(first) != len(second):
        raise ValueError(f"there must be as many hypotheses as references; given {len(second)} and {len(first)}")
    return score(Utterance(str(number), *pair) for number, pair in enumerate(zip(first, second, strict=True)))


def score(utterances: Iterable[Utterance], unit: Unit = "word") -> Score:
    """Count the errors of every utterance and in total.

    Words are separated by whitespace; other units are those of ``words_of``. Of utterances with the same id only the
    first counts: distributed samplers repeat some to fill their last batch.

    Raises:
        ValueError: there is no reference word, so that no error rate exists.
    """
    with_duplicates = list(utterances)
    first: dict[str, Utterance] = {}
    for utterance in with_duplicates:
        first.setdefault(utterance.id, utterance)
    scored = tuple(_score_utterance(utterance, unit) for utterance in first.values())
    words = sum((item.words for item in scored), ErrorCounts())
    if words.num_reference == 0:
        raise ValueError(
            f"WER: the references of {len(scored)} utterances contain no words, so that no error rate exists; "
            "check the transcripts of the set, or score it together with a set that has words"
        )
    characters = sum((item.characters for item in scored), ErrorCounts())
    return Score(scored, words, characters, len(with_duplicates) - len(scored), unit)


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


CHOICES = ("none", "basic", "english")
# people and programs write either: grave, acute, modifier letters, quotation marks, prime, full width
APOSTROPHES = str.maketrans(dict.fromkeys("`´ʻʼʽ‘’‛′＇", "'"))
# those that quote, or end a plural: at an end of a word, or several
_QUOTES = re.compile(r"(?<!\S)'+|'+(?!\S)|''+")


# first words of the Unicode names of characters that are written without spaces between words
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_NUM_SAMPLED = 1000  # texts that are looked at for a hint


class Normalization:
    """Changes references and hypotheses alike.

    Args:
        name: ``none``; ``basic``, lower case, without punctuation but for apostrophes within words, of any language; or
            ``english``, Whisper's rules, by which *colour* is *color*, *twenty one* is *21*, and *I'm* is *I am*. For
            both, typographic apostrophes are plain ones.

    Raises:
        ValueError: there is no such choice, or its package is not installed.

    Reference:
        Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", arXiv:2212.04356, appendix C,
        by the package whisper-normalizer.
    """

    def __init__(self, name: str = "none") -> None:
        if name not in CHOICES:
            raise ValueError(f"scoring.normalize must be one of {', '.join(CHOICES)}, given {name!r}")
        self._change: Callable[[str], str] | None = None
        self.note = ""
        if name == "basic":
            normalizer = TextNormalizer("lower", "strip")
            self._change = lambda text: collapse_spaces(_QUOTES.sub(" ", normalizer(text)))
            self.note = "scored in lower case without punctuation (scoring.normalize=basic)"
        elif name == "english":
            try:
                from whisper_normalizer.english import EnglishTextNormalizer
            except ImportError as error:
                raise ValueError(
                    "scoring.normalize=english needs the package whisper-normalizer: pip install 'werdict[scoring]'"
                ) from error
            self._change = EnglishTextNormalizer()
            package = f"whisper-normalizer {version('whisper-normalizer')}"
            self.note = f"scored after normalization of English by {package} (scoring.normalize=english)"

    def text(self, text: str) -> str:
        """Return a changed text."""
        return text if self._change is None else self._change(text.translate(APOSTROPHES))

    def __call__(self, utterances: Sequence[Utterance]) -> Sequence[Utterance]:
        """Return utterances with changed texts."""
        if self._change is None:
            return utterances
        return [
            replace(utterance, reference=self.text(utterance.reference), hypothesis=self.text(utterance.hypothesis))
            for utterance in utterances
        ]


def spelling_share(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the share of the word errors that ``basic`` does not count, in evenly spaced texts; 0 without errors."""
    wrong = [pair for pair in zip(references, hypotheses, strict=True) if pair[0] != pair[1]]
    wrong, basic = wrong[:: max(1, len(wrong) // _NUM_SAMPLED)], Normalization("basic").text
    errors = sum(Levenshtein.distance(said.split(), heard.split()) for said, heard in wrong)
    left = sum(Levenshtein.distance(basic(said).split(), basic(heard).split()) for said, heard in wrong)
    return 1 - left / errors if errors else 0.0


def lacks_spaces(references: Sequence[str]) -> bool:
    """Return whether texts are of a script without spaces between words, and have none there."""
    words = " ".join(references[:: max(1, len(references) // _NUM_SAMPLED)]).split()
    names = [unicodedata.name(character, "") for character in "".join(words)]
    # with spaces between words of these scripts, words are shorter
    return sum(name.startswith(_UNSPACED) for name in names) > max(len(names) / 2, 4 * len(words) - 1)
