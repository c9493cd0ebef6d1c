"""Batches, and the dataset whose workers read, augment and pad them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from lhotse.cut import Cut
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, get_worker_info

from asr.data.features import Features, LogMel, cause, read_features, refuse_infinite
from asr.data.loading.sampling import seed_for
from asr.data.manifests.audio import audio_problem
from asr.data.parallel import one_thread
from asr.features.log_mel import LogMelFilterbank, LogMelOptions
from asr.text.tokenizer import Tokenizer
from werdict.errors import MORE_MEMORY, raise_if_out_of_resources


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


Perturb = Callable[[Cut, random.Random], Cut]

FEWER_WORKERS = (
    "lower data.workers.num_workers or .prefetch (num_workers when decoding; 0 needs no worker), then resume the run"
)


class SpeechDataset(Dataset):
    """Reads the cuts of a micro-batch; the result depends on the cuts and the seed alone.

    A cut that cannot be read is skipped and named in ``Batch.skipped``; if none can be read, the batch is empty. With
    features that are computed on the device, a batch holds audio until it is moved there, by ``to``.

    Args:
        features: cut → features.
        tokenizer: transcript → tokens.
        perturb: augmentation of the audio in training, or None.
    """

    def __init__(self, features: Features, tokenizer: Tokenizer, perturb: Perturb | None = None) -> None:
        self.features, self.tokenizer, self.perturb = features, tokenizer, perturb

    def __getitem__(self, item: tuple[int, Iterable[Cut]]) -> Batch:
        """Return the batch of an item: the seed of a micro-batch and its cuts, as the sampler yields them."""
        seed, cuts = item
        read: list[tuple[Cut, Tensor]] = []
        skipped: list[tuple[str, str]] = []
        for cut in cuts:
            try:
                with one_thread():
                    read.append((cut, self._read(cut, seed)))
            except Exception as error:  # a decoder may raise anything on a broken file
                raise_if_out_of_resources(error, cut.id, FEWER_WORKERS if get_worker_info() else MORE_MEMORY)
                reason = cause(error)
                # lhotse asks its users to report a file that has changed since it was checked
                is_own = type(error) is ValueError and error.__cause__ is None
                if cut.has_recording and not is_own and (problem := audio_problem(cut.recording, whole=True)):
                    reason = f"its audio has changed since it was prepared: {problem}"
                skipped.append((cut.id, reason))
        if self.features.on_device and read:
            return self._audio_batch(read, seed, tuple(skipped))
        return _collate(read, self.tokenizer, seed, tuple(skipped))

    def _audio_batch(
        self, read: Sequence[tuple[Cut, Tensor]], seed: int, skipped: tuple[tuple[str, str], ...]
    ) -> AudioBatch:
        assert isinstance(self.features, LogMel)
        options = self.features.options
        # without features yet, but with their lengths
        lengths = [(cut, torch.empty(options.num_frames(len(samples)), 0)) for cut, samples in read]
        audio = [torch.from_numpy(options.mirrored(samples.numpy())) for _, samples in read]
        batch = _collate(lengths, self.tokenizer, seed, skipped)
        return AudioBatch(**vars(batch), audio=_padded(audio), options=options)

    def _read(self, cut: Cut, seed: int) -> Tensor:
        if self.perturb is not None:
            rate_hz = self.features.sampling_rate_hz
            # perturbing the speed at a rate that is no multiple of 100 Hz takes filters of gigabytes
            cut = cut.resample(rate_hz) if rate_hz and not self.features.precomputed else cut
            cut = self.perturb(cut, random.Random(seed_for("perturb", seed, cut.id)))
        if self.features.on_device:
            assert isinstance(self.features, LogMel)
            samples = self.features.audio(cut)
            refuse_infinite(samples)
            return torch.from_numpy(samples)
        return torch.from_numpy(read_features(self.features, cut))


def _collate(
    read: Sequence[tuple[Cut, Tensor]], tokenizer: Tokenizer, seed: int, skipped: tuple[tuple[str, str], ...]
) -> Batch:
    cuts = [cut for cut, _ in read]
    features = [matrix for _, matrix in read]
    texts = tuple(" ".join(supervision.text or "" for supervision in cut.supervisions) for cut in cuts)
    tokens = [torch.tensor(tokenizer.encode(text), dtype=torch.int64) for text in texts]
    return Batch(
        features=_padded(features),
        num_frames=torch.tensor([len(matrix) for matrix in features], dtype=torch.int64),
        tokens=_padded(tokens),
        num_tokens=torch.tensor([len(ids) for ids in tokens], dtype=torch.int64),
        ids=tuple(cut.id for cut in cuts),
        texts=texts,
        speakers=tuple(cut.supervisions[0].speaker if cut.supervisions else None for cut in cuts),
        audio_s=float(sum(cut.duration for cut in cuts)),
        seed=seed,
        skipped=skipped,
    )


def _padded(sequences: list[Tensor]) -> Tensor:
    # pad_sequence refuses an empty list
    return pad_sequence(sequences, batch_first=True) if sequences else torch.empty(0, 0)
