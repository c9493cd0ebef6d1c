"""Loads batches in order: worker processes, which only their parent ends, read, augment and pad the cuts."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.context
import multiprocessing.queues
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from lhotse.cut import Cut
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, get_worker_info

from asr.data.features import Features, LogMel, LogMelFilterbank, read_features, refuse_infinite
from asr.data.loading.augmentation import AudioAugmentation
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler, Mixing, seed_for
from asr.data.manifests.audio import audio_problem, cause
from asr.data.parallel import one_thread
from asr.features.log_mel import LogMelOptions
from asr.processes import ENDING, die_with_parent
from asr.text.tokenizer import Tokenizer
from werdict.console import printable
from werdict.errors import MORE_MEMORY, RunFailed, first_line, raise_if_out_of_resources, too_many_open_files
from werdict.scoring import Unit

MOST_WORKERS = 8  # that are started without being asked for
MAX_SOCKET_PATH = 107  # bytes, on Linux; workers send tensors through a socket
SOCKET_NAME = "/pymp-12345678/listener-12345678"  # its name in TMPDIR, chosen by multiprocessing
CANNOT_SEND = 3  # exit code of a worker
Augmentation = Callable[[Cut, random.Random], Cut]
FEWER_WORKERS = (
    "lower data.workers.num_workers or .prefetch (num_workers when decoding; 0 needs no worker), then resume the run"
)
MORE_ROOM = (
    "raise the limits of the shell (ulimit -n, the number of open files; ulimit -f, the size of a file), make room in "
    f"/dev/shm, or {FEWER_WORKERS}"
)


@dataclass(frozen=True)
class Workers:
    """Worker processes that load batches, and how far ahead.

    Attributes:
        num_workers: worker processes; 0 loads in the training process. None: 1; with GPUs as many as each has cores,
            without one that trains, and at most ``MOST_WORKERS``.
        prefetch: micro-batches that each worker loads ahead.
    """

    num_workers: NonNegativeInt | None = None
    prefetch: PositiveInt = 4

    def __post_init__(self) -> None:
        folder, max_bytes = tempfile.gettempdir(), MAX_SOCKET_PATH - len(SOCKET_NAME)
        if self.count and len(os.fsencode(folder)) > max_bytes:
            raise ValueError(
                f"TMPDIR={folder}: processes that read data need a path of at most {max_bytes} bytes; choose a folder "
                "with a shorter path, as in TMPDIR=/tmp"
            )

    @property
    def count(self) -> int:
        """Number of worker processes."""
        if self.num_workers is not None:
            return self.num_workers
        num_gpus = torch.cuda.device_count()
        return max(1, min(len(os.sched_getaffinity(0)) // num_gpus - 1, MOST_WORKERS)) if num_gpus else 1


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
    """One micro-batch of utterances, as audio; moving it, also to the CPU, computes its features.

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


class MicroBatch(NamedTuple):
    """What a batch is made of: the seed of its augmentation, and cuts, of each of which it holds some copies."""

    seed: int
    cuts: Iterable[Cut]
    num_copies: int = 1


@dataclass(eq=False)
class SpeechDataset(Dataset):
    """Reads the cuts of a micro-batch; the result depends on the cuts, the seed and the number of copies alone.

    Copies of a cut are augmented differently; they stand one batch of all cuts after the other.

    A cut that cannot be read is skipped and named in ``Batch.skipped``; if none can be read, the batch is empty. With
    features that are computed on the device, a batch holds audio until it is moved there, by ``to``.

    Attributes:
        features: cut → features.
        tokenizer: transcript → tokens.
        augmentation: of the audio in training, or None.
    """

    features: Features
    tokenizer: Tokenizer
    augmentation: Augmentation | None = None

    def __getitem__(self, item: tuple[int, Iterable[Cut]] | MicroBatch) -> Batch:
        """Return the batch of an item: a `MicroBatch`, or its seed and cuts, as the sampler yields them."""
        seed, cuts, num_copies = MicroBatch(*item)
        copies: list[list[tuple[Cut, Tensor]]] = [[] for _ in range(num_copies)]
        skipped: list[tuple[str, str]] = []
        for cut in cuts:
            try:
                with one_thread():
                    # without augmentation of audio all copies are equal here
                    distinct = [self._read(cut, seed, i) for i in range(num_copies if self.augmentation else 1)]
                for i, of_batch in enumerate(copies):
                    of_batch.append((cut, distinct[i % len(distinct)]))
            except Exception as error:  # a decoder may raise anything on a broken file
                raise_if_out_of_resources(error, cut.id, FEWER_WORKERS if get_worker_info() else MORE_MEMORY)
                reason = cause(error)
                # lhotse asks its users to report a file that has changed since it was checked
                is_own = type(error) is ValueError and error.__cause__ is None
                if cut.has_recording and not is_own and (problem := audio_problem(cut.recording, whole=True)):
                    reason = f"its audio has changed since it was prepared: {problem}"
                skipped.append((cut.id, reason))
        read = [pair for of_batch in copies for pair in of_batch]
        if not (self.features.on_device and read):
            return self._collated(read, seed, skipped)
        assert isinstance(self.features, LogMel)
        options = self.features.options
        # without features yet, but with their lengths
        lengths = [(cut, torch.empty(options.num_frames(len(samples)), 0)) for cut, samples in read]
        audio = [torch.from_numpy(options.mirrored(samples.numpy())) for _, samples in read]
        return AudioBatch(**vars(self._collated(lengths, seed, skipped)), audio=_padded(audio), options=options)

    def _read(self, cut: Cut, seed: int, copy: int) -> Tensor:
        if self.augmentation is not None:
            rate_hz = self.features.sampling_rate_hz
            # perturbing the speed at a rate that is no multiple of 100 Hz takes filters of gigabytes
            cut = cut.resample(rate_hz) if rate_hz and not self.features.precomputed else cut
            key = ("perturb", seed, cut.id) if copy == 0 else ("perturb", seed, cut.id, copy)
            cut = self.augmentation(cut, random.Random(seed_for(*key)))
        if self.features.on_device:
            assert isinstance(self.features, LogMel)
            samples = self.features.audio(cut)
            refuse_infinite(samples)
            return torch.from_numpy(samples)
        return torch.from_numpy(read_features(self.features, cut))

    def _collated(self, read: Sequence[tuple[Cut, Tensor]], seed: int, skipped: Sequence[tuple[str, str]]) -> Batch:
        cuts, features = [cut for cut, _ in read], [matrix for _, matrix in read]
        texts = tuple(" ".join(supervision.text or "" for supervision in cut.supervisions) for cut in cuts)
        tokens = [torch.tensor(self.tokenizer.encode(text), dtype=torch.int64) for text in texts]
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
            skipped=tuple(skipped),
        )


def _padded(sequences: list[Tensor]) -> Tensor:
    # pad_sequence refuses an empty list
    return pad_sequence(sequences, batch_first=True) if sequences else torch.empty(0, 0)


def load_batches(dataset: SpeechDataset, plan: Iterable, workers: Workers) -> Iterator[Batch]:
    """Yield the batches of a plan: (seed, cuts) pairs in order.

    Raises:
        RunFailed: a worker cannot be started or reached; `UnusableFile`: a shard is missing or has changed, or a
            recording of noise cannot be used.
        RuntimeError: a worker has ended (raised by torch), which ``explaining_lost_workers`` explains.
    """
    _silence_freed_workers()
    loader: DataLoader = DataLoader(
        dataset,
        sampler=plan,
        batch_size=None,
        num_workers=workers.count,
        prefetch_factor=workers.prefetch if workers.count else None,
        worker_init_fn=partial(ignore_signals_except_parents, os.getpid()),
        multiprocessing_context=WorkerContext() if workers.count else None,
        pin_memory=torch.cuda.is_available(),
    )
    return _received(_started(loader)) if workers.count else iter(loader)


def _started(loader: DataLoader) -> Iterator[Batch]:
    # torch's half-initialized iterator raises again in __del__, which Python would print
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        return iter(loader)
    except OSError as error:
        traceback.clear_frames(error.__traceback__)
        raise RunFailed(f"a worker that reads data could not be started: {error}; {MORE_ROOM}") from error
    finally:
        sys.unraisablehook = hook


def _received(batches: Iterator[Batch]) -> Iterator[Batch]:
    try:
        yield from batches
    except RunFailed as error:
        # torch puts the traceback of the worker in front
        raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None
    except (OSError, EOFError, RuntimeError) as error:
        # torch raises what a worker, or the thread that pins memory, has raised; the rest is of the connection
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if _lost_worker() or (innermost.f_code.co_name == "reraise" and not too_many_open_files(error)):
            raise
        why = str(error) or type(error).__name__
        raise RunFailed(f"a batch of a worker that reads data could not be received: {why}; {MORE_ROOM}") from error


@contextlib.contextmanager
def explaining_lost_workers() -> Iterator[None]:
    """Turn torch's error about a lost worker into one line.

    Torch (2.13) has no type for it, and raises it in a signal handler, so from any line of the block: workers that have
    ended by themselves tell it from others.

    Raises:
        RunFailed: a worker has ended.
    """
    try:
        yield
    except RuntimeError as error:
        lost = _lost_worker()
        if lost is None or isinstance(error, RunFailed):
            raise
        _workers.clear()
        code = lost.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        advice = "the kernel does this when memory runs out: " * (code == -signal.SIGKILL)
        advice += FEWER_WORKERS if code == -signal.SIGKILL else MORE_ROOM
        raise RunFailed(f"a worker that reads data was lost, {how}; {advice}") from error


def _lost_worker() -> _WorkerProcess | None:
    return next((worker for worker in _workers if worker.exitcode), None)


@functools.cache
def _silence_freed_workers() -> None:
    """Print no traceback when torch notices a lost worker while it frees other workers.

    Torch raises that error in a signal handler, and so in finalizers too: Python prints it there, and nobody can catch
    it. The code that waits for the lost worker gets the same error.
    """
    printed = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and _lost_worker()):
            printed(unraisable)

    sys.unraisablehook = hook


@dataclass(eq=False)
class EvaluationLoader:
    """Loads every cut once, always in the same order.

    Attributes:
        dataset: cuts → batch.
        cut_sampler: made with ``shuffle=False``. Lightning 2.6 takes an object with an attribute ``sampler`` for a
            DataLoader.
        workers: how to load.
        rank: of this process.
        world_size: number of processes; each loads another part.
    """

    dataset: SpeechDataset
    cut_sampler: DurationBucketSampler
    workers: Workers
    rank: int = 0
    world_size: int = 1

    def __iter__(self) -> Iterator[Batch]:
        own = islice(self.cut_sampler.epoch(0), self.rank, None, self.world_size)
        return load_batches(self.dataset, own, self.workers)


@dataclass(frozen=True)
class LoaderFactory:
    """Makes the datasets, samplers and loaders of any cuts, all with the same features, tokenizer and workers."""

    features: Features
    tokenizer: Tokenizer
    batch: BucketingConfig
    workers: Workers
    mixing: Mixing | None = None
    unit: Unit = "word"  # that is scored, and has times

    def training_data(
        self, cuts: Sequence[Cut], seed: int, augmentation: Augmentation | None
    ) -> tuple[SpeechDataset, DurationBucketSampler]:
        """Return dataset and sampler of training cuts.

        Raises:
            ValueError: a file that the augmentation needs cannot be used.
        """
        augmentation = augmentation.of_corpus(cuts) if isinstance(augmentation, AudioAugmentation) else augmentation
        sampler = DurationBucketSampler(cuts, self.batch, seed, mixing=self.mixing)
        return SpeechDataset(self.features, self.tokenizer, augmentation), sampler

    def evaluation_loader(self, cuts: Iterable[Cut]) -> EvaluationLoader:
        """Return a loader that reads every cut once."""
        dataset = SpeechDataset(self.features, self.tokenizer)
        return EvaluationLoader(dataset, DurationBucketSampler(cuts, self.batch, shuffle=False), self.workers)


def ignore_signals_except_parents(parent: int, worker: int) -> None:
    """Ignore signals except a SIGTERM of the parent process, and end together with it.

    A scheduler that preempts a job signals all of its processes. A worker that ended then would end the run with an
    error before its checkpoint is written. A worker that outlived a killed run would keep the run's folder locked:
    PyTorch's do for some seconds, and forever if they were just being started.

    Args:
        parent: process id of the parent, which has forked this process.
        worker: number of the worker; DataLoader passes it to a ``worker_init_fn``.
    """
    die_with_parent(parent)
    # Ctrl-C signals the whole process group; the parent ends its workers after its own clean-up
    for number in {signal.SIGINT, *ENDING} - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = lambda failed: _end_unless_connection_lost(failed.exc_type, failed.exc_value, None)
    sys.excepthook = _end_unless_connection_lost  # called by multiprocessing's thread that shares tensors
    threading.Thread(target=_wait_for_parent, args=(parent,), daemon=True).start()


class _WorkerProcess(multiprocessing.context.ForkProcess):
    def start(self) -> None:
        # inherited by all threads of the worker: one that a library starts before ours could be killed by the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _workers[:] = [*(worker for worker in _workers if worker.is_alive()), self]


_workers: list[_WorkerProcess] = []  # that this process has started, and that had not ended by then


class WorkerContext(multiprocessing.context.ForkContext):
    """Makes worker processes by fork: a spawned one would import torch and lhotse again, in every epoch."""

    Process = _WorkerProcess

    def Queue(self, maxsize: int = 0) -> multiprocessing.queues.Queue:
        """Return a queue through which a worker sends its batches, or ends."""
        return _EndingQueue(maxsize, ctx=self.get_context())


class _EndingQueue(multiprocessing.queues.Queue):
    """Ends the process whose thread cannot send: its error would only be printed, and the parent would wait forever."""

    @staticmethod
    def _on_queue_feeder_error(error: BaseException, batch: object) -> None:
        _end(error)


def _end_unless_connection_lost(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    # a parent that is ending no longer receives tensors
    if not issubclass(kind, ConnectionError | EOFError):
        _end(error or kind())


def _end(error: BaseException) -> None:
    """End this process; the parent notices."""
    os.write(2, f"a worker that reads data cannot send a batch: {printable(first_line(error))}\n".encode())
    os._exit(CANNOT_SEND)


def _wait_for_parent(parent: int) -> None:
    # a handler of Python does not get the sender of a signal
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
