"""Where features lie: in numpy's files, or in a tar, read at once from the place that a manifest names.

Features in a tar have the storage type ``numpy_shard``, the tar as their path, and as their key the place in that tar:
``<byte>+<number of bytes>#<checksum>``.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from lhotse import Features
from lhotse.features.io import FeaturesReader, FeaturesWriter, register_reader
from lhotse.utils import fastcopy

from asr.data.manifests.shar.members import ShardMember
from asr.safe_io import naming

IN_SHARD = "numpy_shard"


def place_of(features: Features) -> str:
    """Return the file that holds features, or the place in a tar, as `ShardMember` names it."""
    path, key = features.storage_path, features.storage_key
    return f"{path}:{key}" if features.storage_type == IN_SHARD else os.path.join(path, key)


def storage_of(member: ShardMember) -> dict[str, str]:
    """Return the fields by which features name a member of a tar."""
    place = str(member).removeprefix(f"{member.tar}:")
    return {"storage_type": IN_SHARD, "storage_path": member.tar, "storage_key": place}


def with_checksum(features: Features) -> Features:
    """Return features with the checksum of what they are now, if they are in a shard; others as they are.

    Raises:
        UnusableFile: they cannot be read.
    """
    member = ShardMember.find(place_of(features))
    return features if member is None else fastcopy(features, **storage_of(member.checked()))


@register_reader
class NumpyShardReader(FeaturesReader):
    """lhotse's reader of features in a tar."""

    name = IN_SHARD

    def __init__(self, storage_path: str) -> None:
        self.tar = storage_path

    def read(self, key: str, left_offset_frames: int = 0, right_offset_frames: int | None = None) -> np.ndarray:
        """Return features (frames, bins) from one frame to another.

        Raises:
            UnusableFile: they cannot be read.
        """
        member = ShardMember.find(f"{self.tar}:{key}")
        assert member is not None, f"{key!r} is not a place in a tar file"
        array: np.ndarray = np.load(io.BytesIO(member.read()), allow_pickle=False)
        return array[left_offset_frames:right_offset_frames]


def write_array(folder: Path, key: str, array: np.ndarray) -> dict[str, str]:
    """Write an array of any shape to ``<first letters>/<key>.npy`` below a folder.

    Returns:
        The fields by which features name it.

    Raises:
        OSError: it cannot be written; np.save to a path would lose the errno, which tells what is wrong with the disk.
    """
    name = f"{key[:3]}/{key}.npy"
    path = folder / name
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy_bytes(array))
    return {"storage_type": "numpy_files", "storage_path": str(folder), "storage_key": name}


class InMemory(FeaturesWriter):
    """Keeps an array in its manifest, as lhotse's reader of Shar does."""

    name = "memory_npy"
    storage_path = ""

    def write(self, key: str, value: np.ndarray) -> bytes:
        """Return an array of any shape as the content of a numpy file."""
        return npy_bytes(value)


def npy_bytes(array: np.ndarray) -> bytes:
    """Return an array of any shape as the content of a numpy file, without pickles."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
