"""The batches that the data side gives to training and decoding, of features or of audio.

B utterances, N samples, T frames, F mel bins, U tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.features.log_mel import LogMelFilterbank, LogMelOptions


@dataclass(frozen=True)
class Batch:
    """One micro-batch of utterances.

    Attributes:
        features: (B, T, F) float32, zero where padded.
        num_frames: (B,) int64 valid frames.
        tokens: (B, U) int64, zero where padded.
        num_tokens: (B,) int64 valid tokens.
        ids: B cut ids.
        texts: B normalized transcripts.
        speakers: B names, None where unknown.
        audio_s: seconds of audio before augmentation.
        seed: of augmentation and dropout of this batch.
        skipped: (cut id, reason) of utterances that could not be read.
    """

    features: Tensor
    num_frames: Tensor
    tokens: Tensor
    num_tokens: Tensor
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    speakers: tuple[str | None, ...]
    audio_s: float
    seed: int
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __getstate__(self) -> dict[str, Any]:
        # a worker sends each tensor through a file and a connection of its own: lengths and tokens go as arrays instead
        tensors = {key: x for key, x in vars(self).items() if isinstance(x, Tensor)}
        small = {k: x.numpy() for k, x in tensors.items() if x.dtype == torch.int64 and x.device.type == "cpu"}
        return {**vars(self), **small}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({key: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for key, x in state.items()})

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Return the batch with its tensors in page-locked memory; DataLoader calls this by name."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **changed)


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
