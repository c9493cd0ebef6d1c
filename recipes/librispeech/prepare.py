"""LibriSpeech: read English books, up to 960 hours of training speech; and mini LibriSpeech, five hours of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.corpus import Corpus, Dropped, Manifests
from asr.data.manifests.rows import Row, manifests_of_split
from asr.data.manifests.source_files import reads

from .sources import PARTS, fetch_parts, find_parts, read_part, source_files

TRAIN = {
    "mini": ("train-clean-5",),
    "100": ("train-clean-100",),
    "460": ("train-clean-100", "train-clean-360"),
    "960": ("train-clean-100", "train-clean-360", "train-other-500"),
}
DEV = {"mini": ("dev-clean-2",)}  # of the others:
DEV_SETS, TEST_SETS = ("dev-clean", "dev-other"), ("test-clean", "test-other")


@reads(source_files)
def prepare_librispeech(
    output_dir: Path, *, source: str | None = None, subsets: str | int = "960", num_jobs: PositiveInt | None = 1
) -> Corpus:
    """Return the official splits: one training set, and each development and test set by itself.

    Args:
        output_dir: archives are unpacked in it.
        source: a folder of the parts, unpacked or as archives, or one archive; None downloads them from openslr.org.
        subsets: hours to train on: ``100``, ``460``, ``960``; or ``mini``, five hours with a dev set of its own.
        num_jobs: processes that read headers, None for one on each core; changes nothing.

    Raises:
        ValueError: there is no such subset, or the source lacks a part of it.
    """
    name = str(subsets)
    if name not in TRAIN:
        raise ValueError(f"data.prepare.subsets must be one of {', '.join(TRAIN)}, given {subsets!r}")
    train, dev = TRAIN[name], DEV.get(name, DEV_SETS)
    if source is None:
        folders = fetch_parts([*train, *dev, *(() if name == "mini" else TEST_SETS)], output_dir)
    else:
        folders = find_parts(source, [*train, *dev, *TEST_SETS], output_dir)
    _refuse_incomplete(source, name, folders)
    read = {part: read_part("train" if part in train else part, folder) for part, folder in folders.items()}
    rows: dict[str, list[Row]] = {"train": [row for part in train for row in read[part][0]]}
    rows |= {part: of_part for part, (of_part, _) in read.items() if part not in train}
    splits: dict[str, Manifests] = {}
    dropped: list[Dropped] = [item for _, items in read.values() for item in items]
    for split, of_split in rows.items():
        splits[split], unusable = manifests_of_split(split, of_split, num_jobs)
        dropped += unusable
    return Corpus(splits, dropped, tuple(_notes(name, {part: len(of_part) for part, (of_part, _) in read.items()})))


def _refuse_incomplete(source: str | None, subsets: str, folders: Mapping[str, Path]) -> None:
    missing = [part for part in TRAIN[subsets] if part not in folders]
    dev = DEV.get(subsets, DEV_SETS)
    if not any(part in folders for part in dev):
        missing.append(" or ".join(dev))
    if missing:
        raise ValueError(
            f"{source}: {', '.join(missing)} of LibriSpeech is not there, as a folder or as an archive; "
            f"data.prepare.subsets={subsets} needs it. What is there: {', '.join(folders) or 'no other part of it'}."
        )


def _notes(subsets: str, sizes: Mapping[str, int]) -> Iterator[str]:
    yield f"LibriSpeech, read English books; trained on {', '.join(TRAIN[subsets])}"
    if missing := [part for part in (*DEV.get(subsets, DEV_SETS), *TEST_SETS) if part not in sizes]:
        yield f"not in the source, so that nothing is measured on it: {', '.join(missing)}"
    for part, size in sizes.items():
        if size != PARTS[part].num_utterances:
            yield (
                f"{size} transcripts of {part} instead of {PARTS[part].num_utterances}: not comparable with others' "
                "results"
            )
