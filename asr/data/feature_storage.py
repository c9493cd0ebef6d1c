"""Which of lhotse's storages of features may be read."""

from __future__ import annotations

import os

from lhotse import Features

# Of lhotse's other storages memory_raw unpickles, kaldiio starts the program that a path names and lilcom_url fetches;
# the rest need a package more. numpy_files reads with allow_pickle=False.
READABLE = "numpy_files"


def refuse_foreign_storage(features: Features) -> None:
    """Refuse features that are anything but numpy's files: reading them could unpickle, run a command or fetch.

    Raises:
        ValueError: names the recording that the features are of, and what was wanted.
    """
    if features.storage_type != READABLE:
        raise ValueError(
            f"features of recording {features.recording_id!r}: storage {features.storage_type!r} is refused, because "
            f"reading it could run a command or fetch something; only {READABLE!r} is read. Copy the features: "
            "FeatureSet.copy_feats(NumpyFilesWriter(folder))."
        )
    # lhotse would run a path that begins with pipe:
    if not os.path.isabs(features.storage_path):
        raise ValueError(
            f"features of recording {features.recording_id!r}: storage path {features.storage_path[:80]!r} is refused; "
            "it must be the absolute path of a folder"
        )
