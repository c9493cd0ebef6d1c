"""Reads what Hugging Face's ``datasets`` saves with ``save_to_disk``: Arrow files, which may hold the audio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr.console import PlainConsole, track
from asr.data.manifests.rows import Row
from asr.data.manifests.tables import find_columns, row_of
from asr.plain_data import read_json

INDEX, SPLITS = "state.json", "dataset_dict.json"

console = PlainConsole()


def saved_datasets(folder: Path) -> list[tuple[Path, str | None]]:
    """Return the folders of saved data, one for each split, with the name of the split; empty if there is none."""
    if (folder / SPLITS).is_file():
        return [(folder / name, name) for name in read_json(folder / SPLITS)["splits"]]
    return [(folder, None)] if (folder / INDEX).is_file() else []


def arrow_files(folder: Path) -> list[Path]:
    """Return the files of a folder that saves one split."""
    index = read_json(folder / INDEX)
    return [folder / Path(file["filename"]).name for file in index["_data_files"]]


def read_saved(
    folder: Path, split: str | None, user_columns: Mapping[str, str] | None, may_lack: bool, audio_dir: Path | None
) -> list[Row]:
    """Read one split, and print how it was read.

    Args:
        folder: of the split.
        split: name that it is saved under.
        user_columns: columns, by what they are, that the user names.
        may_lack: as of `find_columns`.
        audio_dir: where audio is written that the Arrow files hold; None: nowhere.

    Raises:
        ValueError: pyarrow is missing, a file is malformed, or there is no place for the audio.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ValueError(
            f"{folder} is saved by datasets, which needs pyarrow: pip install 'werdict[datasets]'"
        ) from error

    def records() -> Iterator[dict[str, Any]]:
        for file in arrow_files(folder):
            try:
                with pyarrow.memory_map(str(file)) as opened, pyarrow.ipc.open_stream(opened) as batches:
                    for batch in batches:
                        yield from batch.to_pylist()
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise ValueError(f"{file}: not Arrow data: {error}") from error

    header = list(next(records(), {}))
    columns = find_columns(str(folder), header, user_columns, may_lack)
    rows = []
    for number, fields in enumerate(track(records(), f"reading {folder.name}", transient=True), start=1):
        audio, stem = fields[columns.names["audio"]], f"{split or 'all'}-{number:06}"
        if isinstance(audio, Mapping) and audio.get("bytes"):
            if audio_dir is None:
                raise ValueError(
                    f"{folder} contains the audio itself: to decode it, save it to files and list them in a table"
                )
            path = audio_dir / f"{stem}{Path(audio.get('path') or 'x.wav').suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(audio["bytes"])
            fields[columns.names["audio"]] = str(path)
        row = row_of(f"{folder}, row {number}", fields, columns.names, folder)
        rows.append(replace(row, stem=stem, split=row.split or split))
    console.print_line(f"{folder}: saved data of {len(rows)} rows: {columns}")
    return rows
