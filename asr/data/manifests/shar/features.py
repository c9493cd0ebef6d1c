"""Features in the tars of Shar folders, also of strangers: arrays of numpy, whose headers are checked at once."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from lhotse import Features
from lhotse.utils import compute_num_frames, fastcopy

from asr.data.manifests.lhotse_jsonl import parse_features
from asr.data.manifests.numpy_files import array_shape
from asr.data.manifests.shar.feature_members import storage_of
from asr.data.manifests.shar.members import ShardMember
from asr.data.manifests.shar.tars import TarItem

WITH_NUMPY = 'write them with numpy: SharWriter(…, fields={"features": "numpy"})'
PREFIX_BYTES = 2**12  # longer than the header of any array that is read
NUMBERS = "biuf"  # kinds of numpy's types that features may have, as in files


def refuse_other_features(where: str, features: Any) -> None:
    """Refuse features that are no array of the shard: lhotse would unpickle them, run a command, or open an address.

    Args:
        where: these are named, for messages.
        features: their manifest as plain data.

    Raises:
        ValueError: they are.
    """
    stated = features if isinstance(features, dict) else {}
    kind = stated.get("storage_type")
    if kind != "shar" or stated.get("storage_path") or stated.get("storage_key"):
        raise ValueError(
            f"{where}: features in storage {str(kind)[:40]!r} are refused, because reading them could run a command or "
            "fetch something; in a Shar folder all features are in storage 'shar', without path and key"
        )


def features_of(item: TarItem, file: BinaryIO) -> Features | None:
    """Return the features that a tar holds of a cut; None if it holds none.

    Args:
        item: of the tar.
        file: the tar, open.

    Raises:
        ValueError: they are no features, not in numpy's format, or not those of their manifest.
    """
    if item.member is None:
        return None
    if item.suffix != ".npy":
        what = "features compressed by lilcom" if item.suffix == ".llc" else "no array of numpy"
        raise ValueError(
            f"{item.where}: the file beside it is {item.suffix[:20]}, {what}, and is not read; {WITH_NUMPY}"
        )
    stated = item.plain_manifest("features")
    refuse_other_features(item.where, stated)
    # lhotse names no recording in features of a cut
    features = parse_features(item.where, stated | {"recording_id": item.name} | storage_of(item.member))
    return fastcopy(features, num_frames=_checked_frames(item, item.member, features, file))


def _checked_frames(item: TarItem, member: ShardMember, features: Features, file: BinaryIO) -> int:
    """Return the number of frames in a tar, if the header there is that of these features."""
    file.seek(member.offset)
    header = io.BytesIO(file.read(min(member.num_bytes, PREFIX_BYTES)))
    try:
        shape, dtype = array_shape(header, member.num_bytes, "its array")
    except ValueError as error:
        raise ValueError(f"{item.where}: {error}") from None
    if dtype.kind not in NUMBERS:
        raise ValueError(f"{item.where}: its array holds {dtype}, no numbers")
    possible = [(num_frames, features.num_features) for num_frames in _num_frames(features)]
    if shape not in possible:
        raise ValueError(f"{item.where}: its array has the shape {shape}, the manifest says {possible[-1]}")
    return shape[0]


def _num_frames(features: Features) -> Iterator[int]:
    """Yield the number of frames in a manifest, and that of its duration."""
    yield features.num_frames
    # lhotse (1.33) writes the frames of a whole recording beside the duration of a part
    with contextlib.suppress(ArithmeticError):
        yield compute_num_frames(features.duration, features.frame_shift, features.sampling_rate)
