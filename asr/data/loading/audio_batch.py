"""A batch of audio that becomes a batch of features on the device of the recognizer.

B utterances, N samples, T frames.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from asr.data.loading.batch import Batch
from asr.features.log_mel import LogMelFilterbank, LogMelOptions


@dataclass(frozen=True, kw_only=True)
class AudioBatch(Batch):
    """One micro-batch of utterances, as audio; to move it, also to the CPU, is to compute its features.

    Attributes:
        features: (B, T, 0) before it is moved.
        audio: (B, N) float32, each utterance mirrored at its ends, then zeros.
        options: of the features.
    """

    audio: Tensor
    options: LogMelOptions

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors, and with features, on ``device``."""
        moved = super().to(device)
        assert isinstance(moved, AudioBatch)
        features = _filterbank(self.options, torch.device(device))(moved.audio, moved.num_frames)
        return Batch(**{field.name: getattr(moved, field.name) for field in fields(Batch)} | {"features": features})


@lru_cache(maxsize=8)
def _filterbank(options: LogMelOptions, device: torch.device) -> LogMelFilterbank:
    return LogMelFilterbank(options).to(device)
