"""A recognized utterance, as the file of any toolkit has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from asr.text_files import composed

WITHOUT_FOLDER_AND_SUFFIX = r"([^/\\]+?)(\.\w+)?$"


@dataclass(slots=True)
class Row:
    """What one system recognized in one utterance, or how many errors it made.

    Attributes:
        id: of the utterance.
        reference: None if the file has none.
        hypothesis: None if only the numbers of errors and words are known, or nothing: the utterance is missing.
        system: None if the file does not name it.
        seed: None for a single run.
        set: name of the test set; None if the file does not name it.
        words: in the reference, if there is no hypothesis.
        errors: the same.
        columns: further ones of a table, by name.
    """

    id: str
    reference: str | None = None
    hypothesis: str | None = None
    system: str | None = None
    seed: int | None = None
    set: str | None = None
    speaker: str | None = None
    words: int | None = None
    errors: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compose letters, so that the same words, ids and names are equal wherever they come from."""
        for name in ("id", "reference", "hypothesis", "system", "set", "speaker", "columns"):
            setattr(self, name, composed(getattr(self, name)))


def part_of_id(option: str, pattern: str) -> Callable[[str], str]:
    """Return a function that finds a part of an utterance's id.

    Args:
        option: that names the pattern, for messages.
        pattern: a regular expression; the part is its first group, or without groups all that it finds.

    Raises:
        re.error: it is no regular expression.
        ValueError: the function is given an id in which it finds nothing.
    """
    compiled = re.compile(pattern)

    def part_of(id: str) -> str:
        match = compiled.search(id)
        part: str | None = match and (match[1] if compiled.groups else match[0])
        if not part:
            raise ValueError(f"{option}={pattern!r} finds nothing in the utterance {id!r}")
        return part

    return part_of


def advice_on_ids(groups: Sequence[Collection[str]]) -> str:
    """Return which ``id_pattern`` makes more ids of several files agree, if folders and suffixes differ."""
    part_of = part_of_id("id_pattern", WITHOUT_FOLDER_AND_SUFFIX)
    parts = [{part_of(id) for id in ids if not id.endswith(("/", "\\"))} for ids in groups]
    are_unique = [*map(len, parts)] == [*map(len, groups)]
    if not are_unique or len(set.intersection(*parts)) <= len(set.intersection(*map(set, groups))):
        return ""
    return f". More ids agree without folders and suffixes: give 'id_pattern=\"{WITHOUT_FOLDER_AND_SUFFIX}\"'"
