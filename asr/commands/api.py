"""Training and decoding from Python, with the options of the command line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf.errors import OmegaConfBaseException

from asr.commands.app import explain_error, quieten
from asr.data.manifests.audio_files import Audio, as_file, as_list
from asr.inference.streaming import StreamingRecognizer
from asr.inference.transcripts import Transcript
from asr.run import build
from asr.run.command_line import config_folder
from asr.run.compose import Composed, composed_from
from asr.run.options import OfRun, Target
from asr.run.restore import Restored, restore, stream_of, transcriber_of
from asr.run.train import train as train_run
from asr.training.module import TrainingModule
from asr.training.speech_data_module import SpeechDataModule
from werdict.errors import ConfigError
from werdict.files import trust


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where its files are.
    """

    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """What ``report/summary.json`` says: error rates by set, seconds, memory, versions."""
        summary: dict[str, Any] = json.loads((self.folder / "report" / "summary.json").read_text(encoding="utf-8"))
        return summary

    def load(self) -> SpeechRecognizer:
        """Return what decodes with the run's best checkpoint."""
        return load(self.folder)


@dataclass(frozen=True)
class SpeechRecognizer:
    """A trained recognizer with its features, tokenizer and decoder; `load` makes it."""

    restored: Restored

    def __repr__(self) -> str:
        checkpoint = self.restored.checkpoint
        return f"SpeechRecognizer({str(checkpoint.path)!r}, update={checkpoint.update})"

    def transcribe(
        self, audio: Audio | Iterable[Audio], max_segment_s: float | None = None, rate_hz: int | None = None
    ) -> list[Transcript]:
        """Return the transcripts of recordings, in order.

        Args:
            audio: one recording or several, of any length: paths, files opened to read bytes, and arrays or tensors of
                samples, (N,), (C, N) or (N, C), of which the first channel is used.
            max_segment_s: longer recordings are cut in pauses; None: a length that 95 % of the training utterances had.
            rate_hz: of samples; files have their own.

        Raises:
            ValueError: a recording cannot be read.

        Examples:
            >>> recognizer = asr.load("runs/latest")
            >>> import soundfile
            >>> samples, rate_hz = soundfile.read("talk.flac")
            >>> of_file, of_samples = recognizer.transcribe(["talk.flac", samples], rate_hz=rate_hz)
            >>> of_file.text == of_samples.text
            True
        """
        items = as_list(audio)
        names: dict[str, str] = {}  # of what is in memory
        with tempfile.TemporaryDirectory() as folder:
            files = [as_file(item, rate_hz, Path(folder, str(number))) for number, item in enumerate(items)]
            for number, (item, file) in enumerate(zip(items, files, strict=True)):
                if file.parent == Path(folder):
                    names[str(file)] = str(getattr(item, "name", f"audio[{number}]"))
            transcripts, unreadable = transcriber_of(self.restored, max_segment_s)(files)
        if unreadable:
            raise ValueError("; ".join(f"{names.get(path, path)}: {reason}" for path, reason in unreadable))
        return [replace(result, path=Path(names.get(str(result.path), result.path))) for result in transcripts]

    def stream(self, rate_hz: int = 16_000, endpoint_s: float = 0.8) -> StreamingRecognizer:
        """Return what recognizes one stream of samples, piece by piece.

        Args:
            rate_hz: of the samples.
            endpoint_s: seconds without a token after which a text is final.

        Raises:
            ValueError: the encoder is not a causal Zipformer.

        Examples:
            >>> import torch
            >>> stream = asr.load("runs/causal").stream(rate_hz=16_000)
            >>> partial = stream.accept(torch.zeros(4_000))
            >>> partial.text, stream.finish().is_final
            ('', True)
        """
        return stream_of(self.restored, rate_hz, endpoint_s)


def train(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> Run:
    """Train as ``asr-train`` does: data are prepared, the test sets decoded, the report written.

    Within an application of Hydra of your own, its config and what it composes later stay as they are.
    Several processes (``trainer.devices=2``) are started as ``python -m asr.commands train``: classes of the calling
    script have to be importable there. Sweeps are for the command line.

    Args:
        overrides: as on the command line, such as ``optimizer=eve`` or ``encoder._target_=mypkg.MyEncoder``.
        config_dir: further choices of groups, as ``--config-dir``.

    Raises:
        ConfigError: an option is wrong.
        RunFailed: the machine or the training cannot continue.

    Examples:
        >>> run = asr.train(["recipe=digits/transformer_ctc", "optimizer=eve", "trainer.max_steps=12"])
        >>> wer = run.summary["test"]["test"]["wer"]
    """
    with composed_run(overrides, config_dir) as composed:
        if composed.options.find_batch_size:
            raise ConfigError("find_batch_size: it measures instead of training; give it to asr-train")
        return Run(train_run(build.Run.build(composed)))


def training_parts(
    overrides: Sequence[str] = (), config_dir: str | Path | None = None
) -> tuple[TrainingModule, SpeechDataModule]:
    """Return the module and the data of a run, for your own Lightning trainer; missing data are prepared.

    Such a trainer makes the updates of ``asr-train``. `SpeechDataModule` says what it does not promise.

    Args:
        overrides: as of `train`; of ``trainer`` only what schedules read counts, such as ``trainer.max_steps``.
        config_dir: as of `train`.

    Raises:
        ConfigError: an option is wrong.

    Examples:
        >>> module, data = asr.training_parts(["optimizer=eve", "trainer.max_steps=12"])
        >>> import lightning.pytorch as pl
        >>> pl.Trainer(max_steps=12).fit(module, data)
    """
    with composed_run(overrides, config_dir) as composed:
        run = build.Run.build(composed)
        return run.module, run.data


def load(
    run: str | Path,
    weights: str = "raw",
    decoder: Mapping[str, Any] | None = None,
    encoder_model: str | Path | None = None,
) -> SpeechRecognizer:
    """Return what decodes with a run, on a GPU if there is one.

    Args:
        run: folder of a run, or a checkpoint.
        weights: ``raw``, ``average`` or ``ema``.
        decoder: config of a decoder; None: that of the run.
        encoder_model: folder of the run's pretrained model, if it is elsewhere now.

    Raises:
        ConfigError: there is no such run, or it names classes of packages that are not trusted (``WERDICT_TRUST``).

    Examples:
        >>> recognizer = asr.load("runs/latest", decoder={"_target_": "asr.decoding.beam.CtcBeam", "beam_size": 8})
        >>> transcripts = recognizer.transcribe("talk.flac")
    """
    options = OfRun.of(
        {
            "run": str(run),
            "trust": [],
            "encoder": {"model": None if encoder_model is None else str(encoder_model)},
            "weights": weights,
            "average_since": None,
        },
    )
    quieten()
    return SpeechRecognizer(restore(options, decoder=None if decoder is None else Target.model_validate(dict(decoder))))


@contextmanager
def _other_hydra() -> Iterator[None]:
    """Let this process compose anew, and put back what an application of the caller's is composed by.

    Training composes too, so that all of it is within.
    """
    singletons = (GlobalHydra, VersionBase)
    before = [{**vars(singleton.instance())} for singleton in singletons]
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        for singleton, attributes in zip(singletons, before, strict=True):
            vars(singleton.instance()).update(attributes)  # Hydra may have replaced the instance


@contextmanager
def composed_run(overrides: Sequence[str], config_dir: str | Path | None = None) -> Iterator[Composed]:
    """Compose overrides as ``asr-train`` does, whatever else of Hydra the process uses.

    Args:
        overrides: as of `train`.
        config_dir: as of `train`.

    Raises:
        ConfigError: they cannot be composed.
        TypeError: they are one text.
    """
    if isinstance(overrides, str):
        raise TypeError(f"overrides are a list, such as ['optimizer=muon'], not a text: {overrides!r}")
    folder = config_folder("train")
    with _other_hydra(), initialize_config_dir(str(folder), version_base="1.3"):
        primary, hydra_overrides = composed_from("train", list(overrides), folder)
        if config_dir is not None:
            hydra_overrides.append(f"hydra.searchpath=['file://{Path(config_dir).resolve()}']")
        try:
            composed = Composed.of("train", compose(primary, hydra_overrides, return_hydra_config=True))
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(explain_error(error, "train")[0][0]) from error
        trust(composed.options.trust)
        quieten()
        yield composed
