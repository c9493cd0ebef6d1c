"""Your own recordings: a table, manifests or folders of lhotse, Kaldi or NeMo; missing splits are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import PositiveInt

from asr.data.manifests.corpus import Corpus, Manifests, RecordingOrFeatures
from asr.data.manifests.import_manifests import UNSPLIT, ImportedManifests, import_manifests, manifest_files
from asr.data.manifests.layouts import SourceOption
from asr.data.parallel import num_processes
from asr.data.preparation.saved_corpus import chooses
from werdict.text_files import reads

from .choose import choose_custom
from .splits import split_off


@chooses(choose_custom)
@reads(manifest_files)
def prepare_custom(
    output_dir: Path,
    *,
    source: SourceOption | None = None,
    columns: Mapping[str, str] | None = None,
    dev_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 20261121,
    num_jobs: PositiveInt | None = 1,
) -> Corpus:
    """Return the manifests of a source, with train, dev and test.

    A missing dev or test is split off the rest: whole speakers where their sizes allow, else parts of large ones. The
    notes say so.

    Args:
        output_dir: for audio that a source holds in Arrow files; no other is copied.
        source: a table, a manifest of cuts or of NeMo, or a folder of them, of Shar, Kaldi, or transcripts; or several,
            with their splits.
        columns: of tables, by what they are, where names are others than usual.
        dev_fraction: share of the audio to use as dev, if it is missing.
        test_fraction: the same for test.
        seed: of the split.
        num_jobs: processes that read the headers of audio, None for one on each core; changes nothing.

    Raises:
        ValueError: no source is given, it is malformed, or too small to split.
    """
    if source is None:
        raise ValueError("recipe custom needs your recordings: data.source=PATH of a table or of manifests")
    for name, fraction in (("dev_fraction", dev_fraction), ("test_fraction", test_fraction)):
        if not 0 < fraction < 0.3:
            raise ValueError(f"data.prepare.{name} must be above 0 and below 0.3, given {fraction}")
    imported = import_manifests(
        source, num_jobs=num_processes(num_jobs), columns=columns, audio_dir=output_dir / "audio"
    )
    _refuse_useless(source, imported)
    segments = {split: list(of_split.supervisions) for split, of_split in imported.splits.items()}
    splits, notes = split_off(segments, {"test": test_fraction, "dev": dev_fraction}, seed)
    speakers = {name: {segment.speaker for segment in of_split} - {None} for name, of_split in splits.items()}
    manifests = {}
    for name in sorted(splits):
        sources = _sources(imported, name)
        used = {segment.recording_id: sources[segment.recording_id] for segment in splits[name]}
        manifests[name] = Manifests.of(used.values(), splits[name])
        num_shared = len(speakers[name] & speakers["train"])
        if num_shared and name in imported.splits and name != "train":
            notes.append(f"speakers of {name} that are in train too: {num_shared}")
    return Corpus(
        manifests,
        [replace(item, split="train") if item.split == UNSPLIT else item for item in imported.dropped],
        (*imported.notes, *notes),
    )


def _refuse_useless(source: SourceOption, imported: ImportedManifests) -> None:
    """Refuse a split of which nothing can be used, instead of making another one."""
    for split in sorted({*imported.splits, *(item.split for item in imported.dropped)}) or [UNSPLIT]:
        if split not in imported.splits or not len(imported.splits[split].supervisions):
            reasons = [item.reason for item in imported.dropped if item.split == split][:3]
            nothing = "nothing in it" if split == UNSPLIT else f"nothing of split {split!r}"
            raise ValueError(f"{source}: {nothing} can be used; the first reasons: {reasons or 'it is empty'}")


def _sources(imported: ImportedManifests, split: str) -> dict[str, RecordingOrFeatures]:
    """Return the recordings or features that a split's segments may refer to; other splits may have the same ids."""
    origins = (split,) if split in imported.splits and split != "train" else ("train", UNSPLIT)
    by_name: dict[str, RecordingOrFeatures] = {}
    for manifests in (imported.splits[origin] for origin in origins if origin in imported.splits):
        for name, source in manifests.sources().items():
            if by_name.setdefault(name, source) != source:
                raise ValueError(
                    f"recording {name!r} is described twice, differently, in the manifests of train and in those "
                    "without a split; give one of them another id"
                )
    return by_name
