"""Reads corpora in the form of other toolkits: folders of Kaldi, and manifests of NeMo."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import soundfile
from lhotse import SupervisionSegment
from lhotse.kaldi import load_kaldi_data_dir, load_kaldi_text_mapping

from asr.data.manifests.audio_checks import TOLERATED_S
from asr.data.manifests.corpus import Dropped, Manifests
from asr.data.manifests.recordings import open_recordings
from asr.data.manifests.source_files import read_lines

KALDI_FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2gender", "utt2lang", "reco2dur")
# run in a Kaldi folder: saves what the commands of wav.scp print
CONVERT = (
    'mkdir -p wav && while read -r id command; do bash -c "${command%|}" </dev/null >"wav/$id.wav" && '
    'echo "$id $PWD/wav/$id.wav"; done <wav.scp >wav.new && mv wav.new wav.scp'
)


def is_kaldi(folder: Path) -> bool:
    """Return whether a folder is one of Kaldi."""
    return (folder / "wav.scp").is_file()


def read_kaldi(folder: Path, num_jobs: int = 1) -> Manifests:
    """Read a Kaldi folder by lhotse; relative paths in ``wav.scp`` start, as in Kaldi, at the current folder.

    Raises:
        ValueError: there is a command in ``wav.scp``, a file cannot be opened, or there are no utterances.
    """
    places = load_kaldi_text_mapping(folder / "wav.scp", must_exist=True)
    for name, place in places.items():
        if "|" in place:
            raise ValueError(
                f"{folder}/wav.scp: {name} is a command, {place!r}, which is not run. If you trust all of them, save "
                f"what they print to files, by this line in that folder:\n{CONVERT}"
            )
    try:
        rate_hz = soundfile.info(next(iter(places.values()), "")).samplerate
        recordings, supervisions, _ = load_kaldi_data_dir(folder, rate_hz, num_jobs=num_jobs)
    except (AssertionError, RuntimeError) as error:  # of lhotse, and of libsndfile
        raise ValueError(f"{folder} cannot be read as a folder of Kaldi: {error}") from error
    if supervisions is None:
        raise ValueError(f"{folder} has neither segments nor utt2spk beside wav.scp; utterances need text and utt2spk")
    for recording in recordings:
        for source in recording.sources:
            source.source = os.path.abspath(source.source)
    return Manifests.of(recordings, supervisions)


def read_nemo(path: Path, split: str, num_jobs: int = 1) -> tuple[Manifests, list[Dropped]]:
    """Read a manifest of NeMo: a JSON object per line with audio_filepath, duration, text, and perhaps more.

    ``offset``, ``lang`` and ``speaker`` are optional; a relative path starts at the folder of the manifest. The id of
    an utterance is the path of its audio without the ending, and a number where others are of the same file.

    Returns:
        Manifests, and the utterances whose audio cannot be used.

    Raises:
        ValueError: a line is malformed.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            rows.append((row["audio_filepath"], str(Path(row["audio_filepath"]).with_suffix("")), row))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: this is no utterance of NeMo: {error}") from error
    files = {name: (path.parent / os.path.expanduser(name), stem) for name, stem, _ in rows}
    opened = open_recordings([*files.values()], f"reading {path.name}", num_jobs)
    recordings = dict(zip(files, opened, strict=True))
    in_file, seen = Counter(name for name, *_ in rows), Counter[str]()
    segments, dropped = [], []
    for name, stem, row in rows:
        seen[name] += 1
        id = stem if in_file[name] == 1 else f"{stem}-{seen[name]}"
        recording, problem = recordings[name]
        if recording is None:
            dropped.append(Dropped(split, id, problem))
            continue
        start_s = float(row.get("offset") or 0)
        end_s = start_s + float(row.get("duration") or recording.duration - start_s)
        if abs(end_s - recording.duration) <= TOLERATED_S:  # durations are rounded
            end_s = recording.duration
        text, speaker = row.get("text") or "", str(row.get("speaker") or "") or None
        segments.append(
            SupervisionSegment(
                *(id, recording.id, start_s, end_s - start_s), text=text, language=row.get("lang"), speaker=speaker
            )
        )
    return Manifests.of((recording for recording, _ in recordings.values() if recording), segments), dropped


def is_nemo(path: Path) -> bool:
    """Return whether the first line of a file names audio as NeMo does."""
    return '"audio_filepath"' in next(read_lines(path), "")
