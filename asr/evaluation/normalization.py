"""How texts are made alike before they are scored: spelling, case and numbers that are no recognition errors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version

from rapidfuzz.distance import Levenshtein

from asr.evaluation.wer import Utterance
from asr.text.normalize import TextNormalizer, collapse_spaces

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
                    "scoring.normalize=english needs the package whisper-normalizer: python3 scripts/setup.py scoring"
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
