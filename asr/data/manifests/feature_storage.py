"""The storage of features that may be read, and a writer of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from lhotse import Features, NumpyFilesWriter

# Of lhotse's other storages memory_raw unpickles, kaldiio runs a program named by the path, and lilcom_url opens an
# address; the rest need other packages. numpy_files reads with allow_pickle=False.
READABLE = "numpy_files"


def refuse_foreign_storage(features: Features) -> None:
    """Refuse features in other storages than numpy files: reading those could run code.

    Raises:
        ValueError: names the recording and its storage.
    """
    kind, path, key = features.storage_type, features.storage_path, str(features.storage_key)
    if kind != READABLE:
        problem = (
            f"storage {kind!r} is refused, because reading it could run a command or fetch something; only "
            f"{READABLE!r} is read. Copy the features: FeatureSet.copy_feats(NumpyFilesWriter(folder))."
        )
    # lhotse runs a path that begins with pipe:
    elif not os.path.isabs(path):
        problem = f"storage path {path[:80]!r} is refused; it must be the absolute path of a folder"
    # lhotse unpacks *.gz without a limit
    elif not key.endswith(".npy"):
        problem = f"storage key {key[:80]!r} is refused; it must name a file that ends with .npy"
    else:
        return
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
        content = io.BytesIO()
        np.save(content, value, allow_pickle=False)
        key, self.key = self.key or key, None
        name = f"{key[:3]}/{key}.npy"
        path = Path(self.storage_path, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # np.save to a path loses the errno, which tells what is wrong with the disk
            path.write_bytes(content.getbuffer())
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, str(path))
            raise self.failure from error
        return name
