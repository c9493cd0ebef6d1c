"""Features within a tar shard: one of lhotse's storages, read at once from the place that a manifest names.

A manifest of them has the storage type ``numpy_shard``, the tar as its path, and as its key the place in that tar:
``<byte>+<number of bytes>#<checksum>``.
"""

from __future__ import annotations

import io

import numpy as np
from lhotse import Features
from lhotse.features.io import FeaturesReader, register_reader
from lhotse.utils import fastcopy

from asr.data.manifests.numpy_files import array_shape, refuse_other_shape
from asr.data.manifests.shar.members import ShardMember

IN_SHARD = "numpy_shard"


def feature_member(storage_path: object, storage_key: object) -> ShardMember | None:
    """Return the member of a tar that path and key of a storage name; None if they name none."""
    member = ShardMember.find(f"{storage_path}:{storage_key}")
    return member if member is not None and member.tar == storage_path else None


def storage_of(member: ShardMember) -> dict[str, str]:
    """Return the fields by which features name a member of a tar."""
    place = str(member).removeprefix(f"{member.tar}:")
    return {"storage_type": IN_SHARD, "storage_path": member.tar, "storage_key": place}


def with_checksum(features: Features) -> Features:
    """Return features with the checksum of what they are now, if they are in a shard; others as they are.

    Raises:
        UnusableShard: they cannot be read.
    """
    member = feature_member(features.storage_path, features.storage_key) if features.storage_type == IN_SHARD else None
    return features if member is None else fastcopy(features, **storage_of(member.checked()))


def check_member(features: Features) -> None:
    """Refuse a member that is no array of the shape in its manifest, or claims a larger one than it holds.

    Raises:
        ValueError: it is refused.
        UnusableShard: it cannot be read.
    """
    member = feature_member(features.storage_path, features.storage_key)
    if member is None:
        raise ValueError(f"{features.storage_path[:80]!r} and {str(features.storage_key)[:40]!r} name no part of a tar")
    content = member.read()
    shape, _ = array_shape(io.BytesIO(content), len(content), str(member))
    refuse_other_shape(str(member), shape, (features.num_frames, features.num_features), len(content))


@register_reader
class NumpyShardReader(FeaturesReader):
    """lhotse's reader of features in a tar."""

    name = IN_SHARD

    def __init__(self, storage_path: str) -> None:
        self.tar = storage_path

    def read(self, key: str, left_offset_frames: int = 0, right_offset_frames: int | None = None) -> np.ndarray:
        """Return features (frames, bins) from one frame to another.

        Raises:
            ValueError: they are no array.
            UnusableShard: they cannot be read.
        """
        member = feature_member(self.tar, key)
        if member is None:
            raise ValueError(f"{key[:40]!r} is no place in a tar")
        array: np.ndarray = np.load(io.BytesIO(member.read()), allow_pickle=False)
        return array[left_offset_frames:right_offset_frames]
