"""Writes prepared data as shards: tars as of lhotse's Shar, with audio that is encoded for them, or features.

N samples, T frames, F features.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import soundfile
from lhotse import AudioSource, Recording
from lhotse import Features as StoredFeatures
from lhotse.cut import Cut, MonoCut
from lhotse.shar.writers.tar import TarWriter
from lhotse.utils import fastcopy

from asr.data.features import Features, LogMel, read_features, refuse_infinite
from asr.data.manifests.audio import ShardMember, forget, reading
from asr.data.manifests.corpus import npy_bytes, storage_of
from asr.data.manifests.lhotse_manifests import to_line, to_plain
from asr.data.preparation.cuts import CheckedChunk, CheckedSplit, unreadable
from asr.data.preparation.prepared import describe_file, parse_cut, refuse_changed
from asr.data.preparation.saved_corpus import digest, gzipped
from werdict.files import TEMPORARY, locked_folder, naming, sync, write_whole

OPUS_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)  # RFC 6716, section 2; libsndfile writes no others
BLOCK_SAMPLES = 48_000  # libsndfile 1.2.2 crashes where minutes of Ogg are written at once
BLOCK_BYTES = 512  # of tar
INDEX = "index"  # folder of what is written of each shard, <split>.<number>.json
Files = Mapping[str, Path]


@dataclass(frozen=True)
class AudioField:
    """Encodes the audio of cuts.

    Attributes:
        format: ``flac`` keeps 16 and 24 bits as they are, and rounds what has no such samples to 16 bits; ``opus`` is
            lossy; ``original`` copies files that hold nothing but the cut, and is ``flac`` for others.
    """

    format: str = "flac"
    name = "recording"
    source = "audio"  # what is read of a cut

    @property
    def options(self) -> str:
        """All that decides which bytes are stored, apart from the cuts."""
        return self.format

    def read(self, cut: Cut) -> np.ndarray:
        """Return samples (N,) of the cut's first channel; may raise anything if that cannot be read."""
        samples: np.ndarray = cut.load_audio()[0]
        return samples

    def encode(self, cut: Cut, samples: np.ndarray) -> tuple[bytes, str, tuple[int, int]]:
        """Return the content of a file of samples (N,), the ending of its name, and its rate in Hz and N.

        Raises:
            ValueError: the format does not have that rate.
        """
        if self.format == "opus" and cut.sampling_rate not in OPUS_HZ:
            raise ValueError(
                f"data.storage.audio=opus stores {', '.join(map(str, OPUS_HZ))} Hz, and {cut.id} has "
                f"{cut.sampling_rate} Hz; choose data.storage.audio=flac"
            )
        return *_encoded(cut, samples, self.format), (cut.sampling_rate, len(samples))

    def stored(self, cut: Cut, name: str, size: tuple[int, int], member: ShardMember | None = None) -> MonoCut:
        """Return a cut of audio in a shard.

        Args:
            cut: whose audio was stored.
            name: id of the cut and of its recording.
            size: of what was encoded.
            member: where it is in the shard; None: as lhotse's Shar says that it is in a tar beside the cuts.
        """
        source = AudioSource("shar", [0], "") if member is None else AudioSource("file", [0], str(member))
        return _of_own_source(cut, name, recording=Recording(name, [source], *size, cut.duration, channel_ids=[0]))


def _own_file(cut: Cut) -> Path | None:
    """Return the file that holds the cut, its one channel, and nothing else; None if there is none."""
    recording = cut.recording
    is_whole = isinstance(cut, MonoCut) and cut.start == 0 and cut.duration == recording.duration
    is_plain = len(recording.sources) == 1 and recording.num_channels == 1 and not recording.transforms
    path = Path(recording.sources[0].source)
    return path if is_whole and is_plain and path.is_file() else None


def _encoded(cut: Cut, samples: np.ndarray, audio: str) -> tuple[bytes, str]:
    """Return samples (N,) float32 of a cut as a file, and its ending."""
    rate_hz = cut.sampling_rate
    if audio == "original" and (file := _own_file(cut)) is not None:
        return file.read_bytes(), file.suffix.lower() or ".audio"
    if audio == "opus":
        return _written(samples, rate_hz, "OGG", "OPUS"), ".opus"
    # a power of two changes no digit
    if _is_whole(of_16 := samples * np.float32(2**15), 2**15):
        return _written(of_16.astype(np.int16), rate_hz, "FLAC", "PCM_16"), ".flac"
    if _is_whole(of_24 := samples * np.float32(2**23), 2**23):
        return _written(of_24.astype(np.int32) << 8, rate_hz, "FLAC", "PCM_24"), ".flac"
    # libsndfile would scale by 2^15 - 1 and not by 2^15, as it does when it reads
    rounded = np.clip(np.rint(of_16), -(2**15), 2**15 - 1).astype(np.int16)
    return _written(rounded, rate_hz, "FLAC", "PCM_16"), ".flac"


def _is_whole(scaled: np.ndarray, bound: int) -> bool:
    inside = len(scaled) == 0 or (scaled.min() >= -bound and scaled.max() < bound)
    return bool(inside and np.array_equal(scaled, np.rint(scaled)))


def _written(samples: np.ndarray, rate_hz: int, container: str, subtype: str) -> bytes:
    content = io.BytesIO()
    with soundfile.SoundFile(content, "w", rate_hz, 1, subtype, format=container) as file:
        for start in range(0, len(samples), BLOCK_SAMPLES):
            file.write(samples[start : start + BLOCK_SAMPLES])
    return content.getvalue()


@dataclass(frozen=True)
class FeatureField:
    """Encodes the features of cuts, which training reads in place of audio.

    Attributes:
        features: computed once (`LogMel`), or read where the corpus has them.
    """

    features: Features
    name = "features"

    @property
    def options(self) -> str:
        """All that decides which bytes are stored, apart from the cuts."""
        features = self.features
        rate = f" at {features.sampling_rate_hz} Hz" if features.from_audio else ""
        return f"features {features.num_features} every {features.frame_shift_s:g} s{rate}"

    @property
    def source(self) -> str:
        """What is read of a cut."""
        return "audio" if self.features.from_audio else "features"

    def read(self, cut: Cut) -> np.ndarray:
        """Return the features (T, F) that training would read from files, of the same type; may raise anything."""
        if isinstance(self.features, LogMel):
            cut = self.features.with_features(cut)
        else:
            read_features(self.features, cut)  # with all its checks
        matrix: np.ndarray = cut.load_features()
        refuse_infinite(matrix)
        if len(matrix) != cut.num_frames:
            raise ValueError(f"{len(matrix)} frames of features do not fit {cut.duration} s")
        return matrix

    def encode(self, cut: Cut, matrix: np.ndarray) -> tuple[bytes, str, tuple[int, int]]:
        """Return the content of a file of features (T, F), the ending of its name, and their shape."""
        return npy_bytes(matrix), ".npy", (matrix.shape[0], matrix.shape[1])

    def stored(self, cut: Cut, name: str, size: tuple[int, int], member: ShardMember | None = None) -> MonoCut:
        """Return a cut of features in a shard, see `AudioField.stored`; it needs no audio."""
        extracted = self.features
        if isinstance(extracted, LogMel):
            told = {
                "type": extracted.extractor.name,
                "frame_shift": extracted.frame_shift_s,
                "sampling_rate": extracted.sampling_rate_hz,
            }
        else:
            told = {name: getattr(cut.features, name) for name in ("type", "frame_shift", "sampling_rate")}
        placeholder = {"storage_type": "shar", "storage_path": "", "storage_key": ""}
        told |= placeholder if member is None else storage_of(member)
        whole = {"start": 0.0, "duration": cut.duration, "recording_id": name, "channels": 0}
        features = StoredFeatures(num_frames=size[0], num_features=size[1], **whole, **told)
        return _of_own_source(cut, name, features=features)


def _of_own_source(cut: Cut, name: str, **field: Any) -> MonoCut:
    """Return a cut of all of a recording, or of all of its features, with the supervisions of another."""
    supervisions = [fastcopy(segment, recording_id=name, channel=0) for segment in cut.supervisions]
    return MonoCut(name, 0.0, cut.duration, 0, supervisions, custom=cut.custom or None, **field)


ShardField: TypeAlias = AudioField | FeatureField


@dataclass(frozen=True)
class ShardStorage:
    """Folder of shards, and what is stored in them.

    Attributes:
        folder: of all splits, absolute.
        field: what is stored of each cut.
    """

    folder: Path
    field: ShardField

    def files(self, chunk: CheckedChunk) -> dict[str, Path]:
        """Return the cuts, the tar and the index of the shard of a chunk."""
        number = chunk.path.stem.rpartition("-")[2]
        return {
            "cuts": self.folder / chunk.split / f"cuts.{number}.jsonl.gz",
            "tar": self.folder / chunk.split / f"{self.field.name}.{number}.tar",
            "index": self.folder / INDEX / f"{chunk.split}.{number}.json",
        }

    def write(self, splits: Mapping[str, CheckedSplit], num_jobs: int) -> dict[str, CheckedSplit]:
        """Write the shards of all splits, or find what an earlier call has written, with a line of progress for each.

        Returns:
            The same splits, with cuts that name the places of their audio or features in the shards.

        Raises:
            ValueError: the folder holds something else, or a shard of other data.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(self.folder, wait=True):
            self._refuse_others(splits)
            for folder in (*splits, INDEX):
                (self.folder / folder).mkdir(exist_ok=True)
            return {name: self._write_split(split, num_jobs) for name, split in splits.items()}

    def _refuse_others(self, splits: Mapping[str, CheckedSplit]) -> None:
        """Refuse a folder with anything in it that these splits do not write: nothing there is overwritten."""
        chunks = [chunk for split in splits.values() for chunk in split.chunks]
        expected = {path for chunk in chunks for path in self.files(chunk).values()}
        for path in self.folder.rglob("*"):
            if not path.is_dir() and path.with_name(path.name.removesuffix(TEMPORARY)) not in expected:
                raise ValueError(
                    f"data.storage.dir: {self.folder} holds {str(path.relative_to(self.folder))!r}, which is not "
                    "part of these data; give a new or an empty folder, or that of an interrupted call with the same "
                    "options"
                )

    def _write_split(self, split: CheckedSplit, num_jobs: int) -> CheckedSplit:
        field = self.field

        def write(chunk: CheckedChunk) -> CheckedChunk:
            files, lines = self.files(chunk), [line for line, _ in split.lines(chunk)]
            cuts = [parse_cut(line, chunk.path.parent) for line in lines]
            state = chunk.path.parents[1].name.partition("-")[2]  # of audio that has changed, see `current_folder`
            made_of = digest([f"{field.options}{state}\n".encode(), *lines])
            index = _found_index(files, made_of) or _write_shard(files, made_of, cuts, field)
            left_out = dict(index["dropped"])
            readable = [cut for cut in cuts if cut.id not in left_out]
            stored = [
                field.stored(cut, cut.id, (first, second), ShardMember(str(files["tar"]), *place))
                for cut, (first, second, *place) in zip(readable, index["members"], strict=True)
            ]
            dropped = [unreadable(chunk.split, name, why, field.source) for name, why in left_out.items()]
            return CheckedChunk.write(chunk.sibling("sharded"), chunk.split, made_of, stored, dropped, chunk.duration_s)

        return split.rebuilt(write, num_jobs, f"writing shards of {split.name}")


def _found_index(files: Files, made_of: str) -> dict[str, Any] | None:
    """Return the index of a shard that is there and whole; None if the shard, or a file of it, is not there.

    Raises:
        ValueError: another shard has its name, or its files have changed.
    """
    kinds = [kind for kind in ("tar", "cuts") if files[kind].exists()]
    index: dict[str, Any] = json.loads(files["index"].read_bytes()) if files["index"].exists() else {"made_of": None}
    if index["made_of"] == made_of:
        for kind in kinds:
            refuse_changed(files[kind], index[kind], files["index"].name)
        return index if len(kinds) == 2 else None
    if kinds:
        raise ValueError(
            f"data.storage.dir: {files[kinds[0]]} belongs to other data, to audio that has changed since, or to other "
            "options of text or limits; give a new folder, or remove this one if nothing needs it"
        )
    return None


def _write_shard(files: Files, made_of: str, cuts: Collection[Any], field: ShardField) -> dict[str, Any]:
    temporary = {kind: files[kind].with_name(files[kind].name + TEMPORARY) for kind in ("tar", "cuts")}
    try:
        with naming(files["tar"]):
            index = {"made_of": made_of, **_fill(temporary, cuts, field)}
        for kind, path in temporary.items():
            sync(path)
            index[kind] = describe_file(path)
        # the index first: a file without one is nobody's, and not overwritten
        write_whole(files["index"], json.dumps(index))
        for kind, path in temporary.items():
            os.replace(path, files[kind])
    finally:
        # after a full disk the next attempt needs the room
        for path in temporary.values():
            path.unlink(missing_ok=True)
    forget()
    return index


def _fill(temporary: Files, cuts: Collection[Any], field: ShardField) -> dict[str, Any]:
    """Write tar and cuts; return where each cut is in the tar, and which cuts are not."""
    members: list[list[int]] = []
    dropped: list[tuple[str, str]] = []
    with (
        temporary["cuts"].open("wb") as packed,
        gzipped(packed) as lines,
        TarWriter(str(temporary["tar"]), shard_size=None) as tar,
    ):
        for cut in cuts:
            try:
                with reading(cut.id):
                    array = field.read(cut)
            except ValueError as error:
                dropped.append((cut.id, str(error)))
                continue
            content, ending, size = field.encode(cut, array)
            name = member_name(cut.id)
            held = field.stored(cut, name, size)
            tar.write(f"{name}{ending}", io.BytesIO(content))
            offset = tar.tarstream.offset - -(-len(content) // BLOCK_BYTES) * BLOCK_BYTES
            manifest = f"{json.dumps(to_plain(getattr(held, field.name)))}\n"
            tar.write(f"{name}.json", io.BytesIO(manifest.encode()), count=False)
            lines.write(to_line(held).encode())
            members.append([*size, offset, len(content), zlib.crc32(content)])
    if not members:
        # lhotse's writer has opened no file
        tarfile.open(temporary["tar"], "w").close()
    return {"members": members, "dropped": dropped}


def member_name(cut_id: str) -> str:
    """Return the name of a cut in a tar, which lhotse compares with its id: the id, unless that is no plain name."""
    path = PurePosixPath(cut_id)
    is_inside = not path.is_absolute() and ".." not in path.parts and "\0" not in cut_id
    is_plain = is_inside and str(path) == cut_id and len(cut_id) < 200
    return cut_id if is_plain else hashlib.sha256(cut_id.encode()).hexdigest()[:32]
