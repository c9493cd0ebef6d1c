"""A recognized utterance, as the file of any toolkit has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """What one system recognized in one utterance, or how many errors it made.

    Attributes:
        id: of the utterance.
        reference: None if the file has none.
        hypothesis: None if only the numbers of errors and words are known, or only the reference.
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
