"""Cuts whose audio is in a shard: as prepared data name them, and as the shard itself holds them."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from lhotse import AudioSource, Recording
from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy

from asr.data.manifests.audio_checks import BYTES, MIDDLE
from asr.data.manifests.shard_members import ShardMember


def member_name(cut_id: str) -> str:
    """Return the name of a cut in a tar, which lhotse compares with its id: the id, unless that is no plain name."""
    path = PurePosixPath(f"{cut_id}.x")
    is_inside = not path.is_absolute() and ".." not in path.parts and "\0" not in cut_id
    is_plain = is_inside and str(path.parent / path.stem) == cut_id
    return cut_id if is_plain and len(cut_id) < 200 else hashlib.sha256(cut_id.encode()).hexdigest()[:32]


def in_shard(cut: Cut, rate_hz: int, num_samples: int, member: ShardMember) -> Cut:
    """Return a cut whose audio is a member of a shard; nothing else changes for who reads it."""
    stored = _of_own_recording(cut, cut.id, rate_hz, num_samples, AudioSource("file", [0], str(member)))
    return fastcopy(stored, custom={**(stored.custom or {}), BYTES: member.num_bytes})


def placeholder(cut: Cut, name: str, rate_hz: int, num_samples: int) -> MonoCut:
    """Return the cut as lhotse's Shar holds it."""
    return fastcopy(_of_own_recording(cut, name, rate_hz, num_samples, AudioSource("shar", [0], "")), id=name)


def _of_own_recording(cut: Cut, recording_id: str, rate_hz: int, num_samples: int, source: AudioSource) -> MonoCut:
    recording = Recording(recording_id, [source], rate_hz, num_samples, cut.duration, channel_ids=[0])
    own = [fastcopy(segment, recording_id=recording_id, channel=0) for segment in cut.supervisions]
    # what is known of the files that it was prepared from does not hold for the shard
    custom = {key: value for key, value in (cut.custom or {}).items() if key not in (BYTES, MIDDLE)}
    return MonoCut(cut.id, 0.0, cut.duration, 0, own, recording=recording, custom=custom or None)
