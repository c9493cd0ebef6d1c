"""Text normalization: the only place where a transcript is changed before it is tokenized or scored."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# U+200B is a space of zero width; U+2581 is how sentencepiece writes a space, so it cannot also be a character
_SPACES = re.compile("[\\s\x00-\x1f\x7f-\x9f\u200b\u2581]+")
# Unicode's format characters (category Cf): never seen and never spoken. The joiners U+200C and U+200D stay, because
# Persian, Hindi and emoji are spelled with them, and so do signs that are seen: they span Arabic or Syriac numbers.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
SURROGATE = re.compile("[\ud800-\udfff]")
# these stand between two words without a space: dashes longer than a hyphen, slash, ellipsis
_WORD_BREAKS = frozenset("\u2012\u2013\u2014\u2015/\u2026")
_CASES: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}
_EMOJI_JOINER = "\u200d"


def collapse_spaces(text: str) -> str:
    """Turn every run of whitespace, control characters and U+2581 into one space, and trim both ends."""
    return _SPACES.sub(" ", text).strip(" ")


def is_one_line(id: str) -> bool:
    """Return whether an id can stand in the tables and files that are written, one line for each utterance."""
    return id.splitlines() == [id] and "\t" not in id


@dataclass(frozen=True)
class TextNormalizer:
    """Brings text of any language to one spelling; applying it twice changes nothing more.

    The result is in Unicode form NFC (composed), with single spaces and without invisible formatting characters.

    Attributes:
        case: ``lower`` and ``upper`` follow Unicode's rules, which know no language: Turkish ``I`` becomes ``i``,
            not ``ı``. Keep the case of such text, or change it before.
        punctuation: ``strip`` removes characters of the Unicode categories P* and S*. ``don't, stop!`` loses its
            comma and exclamation mark; long dashes, slashes, ellipses and runs of several such characters leave a
            space, so that ``yes--no`` stays two words and ``well-known`` becomes one.
        keep_characters: what ``strip`` leaves in place. Spelling marks that Unicode counts as punctuation belong
            here: the curly apostrophe ``’``, Catalan ``·``, Tibetan ``་``.
    """

    case: Literal["keep", "lower", "upper"] = "keep"
    punctuation: Literal["keep", "strip"] = "keep"
    keep_characters: str = "'"

    def __call__(self, text: str) -> str:
        """Return the normalized text.

        Raises:
            ValueError: the text holds half of a surrogate pair, as files that were decoded wrongly do.
        """
        if broken := SURROGATE.search(text):
            raise ValueError(
                f"text {text[:60]!r}: character {broken.start()} is half of a surrogate pair, which is no "
                "character; read the file again with its true encoding (mostly UTF-8)"
            )
        text = unicodedata.normalize("NFC", _INVISIBLE.sub("", _SPACES.sub(" ", text)))
        if self.punctuation == "strip":
            text = self._strip(text)
        # changing the case can take characters apart again
        return collapse_spaces(unicodedata.normalize("NFC", _CASES[self.case](text)))

    def _strip(self, text: str) -> str:
        kept: list[str] = []
        run = 0  # stripped characters since the last kept one; a word break counts as two
        for character in text:
            category = unicodedata.category(character)[0]
            if character not in self.keep_characters and category in "PS":
                run += 2 if character in _WORD_BREAKS else 1
                continue
            # these only make sense after another character: both are kept or dropped together
            follows = category == "M" or character == _EMOJI_JOINER
            if not (run and follows):
                kept.append(" " + character if run > 1 else character)
                run = 0
        return "".join(kept)
