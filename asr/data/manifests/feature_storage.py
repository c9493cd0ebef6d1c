"""The storages of features that may be read, and writers of features."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from lhotse import Features, NumpyFilesWriter
from lhotse.features.io import FeaturesWriter

from asr.data.manifests.shar.feature_members import IN_SHARD, feature_member

# Of lhotse's other storages memory_raw unpickles, kaldiio runs a program named by the path, and lilcom_url opens an
# address; the rest need other packages. numpy_files reads with allow_pickle=False, and so do shards.
READABLE = "numpy_files"


def is_readable(kind: object, path: object, key: object) -> bool:
    """Return whether type, path and key of a storage name a numpy file, or a part of a tar."""
    if kind == IN_SHARD:
        return feature_member(path, key) is not None
    # lhotse runs a path that begins with pipe:, and unpacks *.gz without a limit
    is_safe = isinstance(path, str) and os.path.isabs(path) and isinstance(key, str) and key.endswith(".npy")
    return kind == READABLE and is_safe


def place_of(features: Features) -> str:
    """Return the file that holds features, or the place in a tar, as `ShardMember` names it."""
    path, key = features.storage_path, features.storage_key
    return f"{path}:{key}" if features.storage_type == IN_SHARD else os.path.join(path, key)


def refuse_foreign_storage(features: Features) -> None:
    """Refuse features in other storages than numpy files and shards: reading those could run code.

    Raises:
        ValueError: names the recording and its storage.
    """
    kind, path, key = features.storage_type, features.storage_path, str(features.storage_key)
    if is_readable(kind, path, key):
        return
    if kind == IN_SHARD:
        problem = (
            f"{path[:80]!r} and {key[:40]!r} are refused; they must be the absolute path of a tar and a place in it"
        )
    elif kind != READABLE:
        problem = (
            f"storage {kind!r} is refused, because reading it could run a command or fetch something; only "
            f"{READABLE!r} is read. Copy the features: FeatureSet.copy_feats(NumpyFilesWriter(folder))."
        )
    elif not os.path.isabs(path):
        problem = f"storage path {path[:80]!r} is refused; it must be the absolute path of a folder"
    else:
        problem = f"storage key {key[:80]!r} is refused; it must name a file that ends with .npy"
    raise ValueError(f"features of recording {features.recording_id!r}: {problem}")


class FeatureFiles(NumpyFilesWriter):
    """Writes lhotse's numpy files; distinguishes a full disk from features that cannot be computed.

    Attributes:
        failure: why an array could not be written, or None.
        key: of the next array; None: the random one that lhotse gives.
    """

    def __init__(self, storage_path: Path) -> None:
        super().__init__(storage_path)
        self.failure: OSError | None = None
        self.key: str | None = None

    def write(self, key: str, value: np.ndarray) -> str:
        """Write an array to ``<first letters>/<key>.npy`` and return that name."""
        content = npy_bytes(value)
        key, self.key = self.key or key, None
        name = f"{key[:3]}/{key}.npy"
        path = Path(self.storage_path, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # np.save to a path loses the errno, which tells what is wrong with the disk
            path.write_bytes(content)
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, str(path))
            raise self.failure from error
        return name


class InMemory(FeaturesWriter):
    """Keeps an array in its manifest, as lhotse's reader of Shar does."""

    name = "memory_npy"
    storage_path = ""

    def write(self, key: str, value: np.ndarray) -> bytes:
        """Return the content of a numpy file."""
        return npy_bytes(value)


def npy_bytes(array: np.ndarray) -> bytes:
    """Return the content of a numpy file, without pickles."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
