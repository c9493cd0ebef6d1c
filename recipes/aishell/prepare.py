"""AISHELL-1: read Mandarin, 150 hours of training speech by 340 speakers, in characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.manifests.rows import manifests_of_split
from asr.data.manifests.source_files import reads

from .sources import SPLITS, find_corpus, read_corpus, source_files

NUM_UTTERANCES = {"train": 120_098, "dev": 14_326, "test": 7176}


@reads(source_files)
def prepare_aishell(output_dir: Path, *, source: str | None = None, num_jobs: PositiveInt | None = 1) -> Corpus:
    """Return the official split, transcripts without spaces.

    Args:
        output_dir: archives are unpacked in it.
        source: the folder ``data_aishell``, the one above it, or an archive; None downloads it from openslr.org.
        num_jobs: processes that read headers, None for one on each core; changes nothing.

    Raises:
        ValueError: the source does not hold AISHELL-1, or lacks a split.
    """
    rows, dropped, num_silent = read_corpus(find_corpus(source, output_dir))
    if missing := [split for split in SPLITS if not rows[split]]:
        raise ValueError(f"{source}: there is no transcribed audio of {' and '.join(missing)} below wav")
    splits: dict[str, Manifests] = {}
    for split in SPLITS:
        splits[split], unusable = manifests_of_split(split, rows[split], num_jobs)
        dropped += unusable
    sizes = {split: len(of_split) for split, of_split in rows.items()}
    return Corpus(splits, dropped, tuple(_notes(sizes, num_silent)))


def _notes(sizes: Mapping[str, int], num_silent: int) -> Iterator[str]:
    yield "AISHELL-1, read Mandarin; transcripts are characters without spaces"
    if num_silent:
        yield f"transcripts without audio: {num_silent}"
    for split, expected in NUM_UTTERANCES.items():
        if sizes[split] != expected:
            yield f"{sizes[split]} utterances of {split} instead of {expected}: not comparable with others' results"
