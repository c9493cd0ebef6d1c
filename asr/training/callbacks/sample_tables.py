"""Tables of references and hypotheses, for trackers that show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import lightning.pytorch as pl

from asr.data.waveform import PLAYED_HZ, read_audio
from asr.evaluation.wer import Score, ScoredUtterance
from asr.training.module import TrainingModule

NUM_FIXED_SAMPLES = 10
NUM_WORST_SAMPLES = 10


class SampleTables(pl.Callback):
    """Sends references, hypotheses and numbers of errors to the loggers after every validation."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log one table per development set."""
        assert isinstance(pl_module, TrainingModule)
        for name, result in pl_module.scores.items():
            log_samples(trainer.loggers, f"val/{name}", result, trainer.global_step)


def log_samples(loggers: Sequence[Any], name: str, result: Score, step: int, cuts: Iterable[Any] = ()) -> None:
    """Send the samples of a set to those loggers that show tables, with the audio of those that are among ``cuts``."""
    for logger in loggers:
        if hasattr(logger, "log_samples"):  # metrics.csv holds numbers only
            shown = samples(result)
            audio = read_audio(cuts, {utterance.utterance.id for utterance in shown})
            logger.log_samples(name, shown, step, audio, PLAYED_HZ)


def samples(result: Score) -> list[ScoredUtterance]:
    """Return utterances to look at: always the same ones, then the worst."""
    ordered = sorted(result.utterances, key=lambda item: item.utterance.id)
    fixed = ordered[:: max(1, len(ordered) // NUM_FIXED_SAMPLES)][:NUM_FIXED_SAMPLES]
    worst = sorted(ordered, key=lambda item: -item.words.errors)[:NUM_WORST_SAMPLES]
    return list({item.utterance.id: item for item in (*fixed, *worst)}.values())
