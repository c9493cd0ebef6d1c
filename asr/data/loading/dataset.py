"""Cuts → a batch.

B utterances, N samples, T frames, F mel bins, U tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from lhotse.cut import Cut
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, get_worker_info

from asr.data.features import Features, LogMel, cause, read_features, refuse_infinite
from asr.data.loading.batch import AudioBatch, Batch
from asr.data.manifests.audio_checks import audio_problem
from asr.data.parallel import one_thread
from asr.data.seeding import seed_for
from asr.errors import MORE_MEMORY, raise_if_out_of_resources
from asr.text.tokenizer import Tokenizer

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
