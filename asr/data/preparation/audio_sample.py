"""Some files of a corpus, by which stored features and shards of other files than are there now are noticed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from lhotse import Recording

from asr.data.manifests.audio_checks import file_content
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.manifests.feature_storage import place_of
from asr.data.manifests.shar.members import ShardMember
from asr.plain_data import read_json
from asr.safe_io import write_whole

SAMPLE = "audio_sample.json"  # beside the manifests of a corpus
NUM_FILES = 100  # of each split; all of a large corpus would take minutes on a network disk


def write_sample(folder: Path, corpus: Corpus) -> None:
    """Write names, sizes and checksums of some files of audio, or of features, evenly spread over each split."""
    found = [item for manifests in corpus.splits.values() for item in _sample(manifests)]
    write_whole(folder / SAMPLE, json.dumps(found, indent=None))


def _sample(manifests: Manifests) -> Iterator[tuple[str, int, int]]:
    sources = list(manifests.sources().values())
    for source in sources[:: max(1, len(sources) // NUM_FILES)]:
        name = str(source.sources[0].source) if isinstance(source, Recording) else place_of(source)
        # what cannot be read is dropped, and named, when it is checked
        with contextlib.suppress(OSError):
            if ShardMember.find(name) is None and Path(name).is_file():
                yield name, *file_content(Path(name))


def refuse_changed_audio(folder: Path) -> None:
    """Refuse a corpus of which some file is no longer what it was; one that is gone is no longer needed.

    Args:
        folder: of its manifests.

    Raises:
        ValueError: names the file.
    """
    try:
        known = [(Path(name), [size, crc32]) for name, size, crc32 in read_json(folder / SAMPLE)]
    except (ValueError, TypeError, OSError):  # nothing is prepared yet, or the file is damaged
        return
    for path, content in known:
        if path.is_file() and [*file_content(path)] != content:
            raise ValueError(
                f"{path} has changed since the data in {folder} were prepared from it; restore it, or remove that "
                "folder to have them prepared again"
            )
