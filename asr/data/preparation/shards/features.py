"""Features of cuts as members of a shard: computed from audio, or those of a corpus without audio.

T frames, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lhotse import Features as StoredFeatures
from lhotse.cut import Cut, MonoCut
from lhotse.utils import fastcopy

from asr.data.features import Features, LogMel, read_features, refuse_infinite
from asr.data.manifests.feature_storage import InMemory, npy_bytes, storage_of
from asr.data.manifests.shar.members import ShardMember
from asr.data.preparation.shards.fields import Encoded, ShardField, of_own_source


@dataclass(frozen=True)
class FeatureField(ShardField):
    """Stores the features of cuts, which training reads in place of audio.

    Attributes:
        features: computed once (`LogMel`), or read where the corpus has them.
    """

    features: Features
    name = "features"

    @property
    def options(self) -> str:
        """The features in a few words."""
        one = self.features
        rate = f" at {one.sampling_rate_hz} Hz" if one.from_audio else ""
        return f"features {one.num_features} every {one.frame_shift_s:g} s{rate}"

    @property
    def source(self) -> str:
        """What features are made of."""
        return "audio" if self.features.from_audio else "features"

    def refuse_unfit(self, cut: Cut) -> None:
        """Refuse nothing: features of any cut can be stored."""

    def encode(self, cut: Cut) -> Encoded:
        """Return the features (T, F) that training would read from files, of the same type."""
        if isinstance(self.features, LogMel):
            cut = self.features.store(cut, InMemory())
        else:
            read_features(self.features, cut)  # with all its checks
        matrix: np.ndarray = cut.load_features()
        refuse_infinite(matrix)
        num_frames, num_features = matrix.shape
        if num_frames != cut.num_frames:
            raise ValueError(f"{num_frames} frames of features do not fit {cut.duration} s")
        return Encoded(npy_bytes(matrix), ".npy", (num_frames, num_features))

    def in_shard(self, cut: Cut, size: tuple[int, int], member: ShardMember) -> Cut:
        """Return a cut whose features are a member of a shard, and that needs no audio."""
        features = fastcopy(self._stored(cut, cut.id, size), **storage_of(member))
        return of_own_source(cut, cut.id, features=features)

    def placeholder(self, cut: Cut, name: str, size: tuple[int, int]) -> MonoCut:
        """Return the cut with features that its shard holds."""
        return fastcopy(of_own_source(cut, name, features=self._stored(cut, name, size)), id=name)

    def _stored(self, cut: Cut, recording_id: str, size: tuple[int, int]) -> StoredFeatures:
        log_mel, (num_frames, num_features) = self.features, size
        if isinstance(log_mel, LogMel):
            kind, frame_shift_s, rate_hz = log_mel.extractor.name, log_mel.frame_shift_s, log_mel.sampling_rate_hz
        else:
            kind, frame_shift_s = cut.features.type, cut.features.frame_shift
            rate_hz = cut.features.sampling_rate
        return StoredFeatures(
            type=kind,
            num_frames=num_frames,
            num_features=num_features,
            frame_shift=frame_shift_s,
            sampling_rate=rate_hz,
            start=0.0,
            duration=cut.duration,
            storage_type="shar",
            storage_path="",
            storage_key="",
            recording_id=recording_id,
            channels=0,
        )
