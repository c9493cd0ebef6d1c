"""What shards hold of a cut: one of the fields of lhotse's Shar, the recording or the features."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy

from asr.data.manifests.audio_checks import BYTES, MIDDLE
from asr.data.manifests.shar.members import ShardMember


@dataclass(frozen=True)
class Encoded:
    """A member of a shard.

    Attributes:
        content: of the file.
        ending: of its name.
        size: rate in Hz and number of samples of audio; number of frames, and of features in each.
    """

    content: bytes
    ending: str
    size: tuple[int, int]


class ShardField(ABC):
    """One field of cuts, and how it is stored.

    Attributes:
        name: of the field, with which the names of its tars begin.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def options(self) -> str:
        """All that decides which bytes are stored, apart from the cuts."""

    @property
    @abstractmethod
    def source(self) -> str:
        """What is read of a cut to make the field: audio or features."""

    @abstractmethod
    def refuse_unfit(self, cut: Cut) -> None:
        """Refuse a cut that cannot be stored with these options.

        Raises:
            ValueError: names the cut.
        """

    @abstractmethod
    def encode(self, cut: Cut) -> Encoded:
        """Return what a shard holds of a cut; may raise anything if that cannot be read."""

    @abstractmethod
    def in_shard(self, cut: Cut, size: tuple[int, int], member: ShardMember) -> Cut:
        """Return a cut whose field is a member of a shard; nothing else changes for who reads it."""

    @abstractmethod
    def placeholder(self, cut: Cut, name: str, size: tuple[int, int]) -> MonoCut:
        """Return the cut as lhotse's Shar holds it, under the name of its member."""


def member_name(cut_id: str) -> str:
    """Return the name of a cut in a tar, which lhotse compares with its id: the id, unless that is no plain name."""
    path = PurePosixPath(f"{cut_id}.x")
    is_inside = not path.is_absolute() and ".." not in path.parts and "\0" not in cut_id
    is_plain = is_inside and str(path.parent / path.stem) == cut_id
    return cut_id if is_plain and len(cut_id) < 200 else hashlib.sha256(cut_id.encode()).hexdigest()[:32]


def of_own_source(cut: Cut, source_id: str, custom: dict[str, Any] | None = None, **field: Any) -> MonoCut:
    """Return a cut of all of a recording, or of all of its features.

    Args:
        cut: of which supervisions and duration are.
        source_id: of the recording.
        custom: fields to add.
        field: the recording or the features.
    """
    own = [fastcopy(segment, recording_id=source_id, channel=0) for segment in cut.supervisions]
    # what is known of the files that it was prepared from does not hold for the shard
    kept = {key: value for key, value in (cut.custom or {}).items() if key not in (BYTES, MIDDLE)}
    return MonoCut(cut.id, 0.0, cut.duration, 0, own, custom=kept | (custom or {}) or None, **field)
