"""Which column of a table is what: by the names that common corpora and tools use, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# of several that a table has, the first counts
ALIASES = {
    "audio": ("audio", "audio_filepath", "audio_path", "path", "file_name", "filename", "file", "wav"),
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "start": ("start", "offset"),
    "end": ("end",),
    "duration": ("duration",),
    "language": ("language", "lang"),
    "split": ("split",),
    "id": ("id",),
}
REQUIRED = ("audio", "text")
TIMES = ("start", "end", "duration")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    Attributes:
        names: column by what it is, a key of ``ALIASES``.
        unused: the other columns.
    """

    names: Mapping[str, str]
    unused: Sequence[str] = ()

    def __str__(self) -> str:
        used = ", ".join(field if field == name else f"{field} from {name!r}" for field, name in self.names.items())
        return f"{used}; not used: {', '.join(self.unused)}" if self.unused else used


def find_columns(
    where: str, header: Sequence[str], user_columns: Mapping[str, str] | None = None, may_lack: bool = False
) -> Columns:
    """Return which columns are read.

    Args:
        where: file and line of the header, for messages.
        header: names of all columns.
        user_columns: columns that the user names, ``data.columns``.
        may_lack: those that are given may be missing, as in another table than that of training.

    Raises:
        ValueError: a column is missing.
    """
    user_columns = user_columns or {}
    columns = {name.strip().lower(): name for name in reversed(header)}
    names = {}
    for field, aliases in ALIASES.items():
        named = user_columns.get(field)
        if named is not None and named not in header and not may_lack:
            raise ValueError(
                f"{where}: data.columns.{field}: there is no column {named!r}; there are {', '.join(header)}"
            )
        name = named if named in header else next((columns[alias] for alias in aliases if alias in columns), None)
        if name is not None:
            names[field] = name
    if "start" not in names and "end" not in names:
        names.pop("duration", None)  # of the whole file, which says it itself
    if missing := [field for field in REQUIRED if field not in names]:
        raise ValueError(
            f"{where}: no column was recognized as {' or '.join(missing)}; there are {', '.join(header)}. Give their "
            f"names: data.columns={{{', '.join(f'{field}: COLUMN' for field in missing)}}}, or in the header: "
            f"{', '.join(REQUIRED)}, and optionally {', '.join(field for field in ALIASES if field not in REQUIRED)}"
        )
    return Columns(names, [name for name in header if name not in names.values()])
