"""Warns when a run has stalled: constant output, WER of 100 % or more, or flat loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from pydantic import PositiveInt
from torch import Tensor

from asr.console import console
from asr.evaluation.wer import Score
from asr.models import devices
from asr.training.module import TrainingModule

NOT_BETTER = 1e-3  # a loss that is lower by less than this share has not improved
SPAN_SHARE, MIN_SPAN = 5, 200  # the loss may be flat for a fifth of the updates, and for 200

STUCK = (
    "optimizer.lr is too high (try a third of it) or too low (try three times it), the warm-up of the schedule is too "
    "short or too long, transcripts do not belong to their audio, or the encoder leaves fewer frames than there are "
    "tokens (a larger data.vocab_size makes fewer tokens)"
)
EARLY = "it emits blanks, or the most common tokens, until it finds an alignment, usually by about update"
MISMATCH = (
    "hypotheses and references are written differently (tokenizer, data.text: case, punctuation), or dev is another "
    "language or task than train"
)


@dataclass
class LossTrend:
    """The mean loss of windows of updates, and the best of these means.

    Attributes:
        total: sum of the finite losses in the current window; those of updates that were left out need not be finite.
        num_finite: number of these losses.
        num: number of all losses in it.
        mean: mean loss of the last full window.
        best: the lowest mean that was clearly lower than the one before it.
        best_update: last update of its window.
    """

    total: Any = 0.0
    num_finite: Any = 0
    num: int = 0
    mean: float = math.inf
    best: float = math.inf
    best_update: int = 0

    def add(self, update: int, loss: Tensor, window: int) -> None:
        """Add the loss () of an update, which is read only at the end of a window: reading it waits for its device."""
        is_finite = loss.isfinite()
        self.total = self.total + loss.where(is_finite, 0.0)
        self.num_finite, self.num = self.num_finite + is_finite, self.num + 1
        if self.num < window:
            return
        total, num_finite = devices.to_host(torch.stack([self.total, self.num_finite]))
        self.total, self.num_finite, self.num = 0.0, 0, 0
        if num_finite:
            self.mean = total / num_finite
        if self.best == math.inf or self.mean < self.best - NOT_BETTER * abs(self.best):
            self.best, self.best_update = self.mean, update


class StallWarning(pl.Callback):
    """Warns of constant output, a WER that stays at 100 % or more, and a flat loss, with likely causes.

    Each warning is printed once, and again only if its cause has disappeared in between. It never stops a run.

    Args:
        alignment_updates: CTC has usually found an alignment by then; before, output that is all blank is normal.
        num_validations: warn after this many consecutive validations with a WER of at least 100 %.
        loss_span_updates: warn after this many updates without a lower loss; null: a fifth of the budget, at least 200.
    """

    def __init__(
        self,
        alignment_updates: PositiveInt = 1000,
        num_validations: PositiveInt = 3,
        loss_span_updates: PositiveInt | None = None,
    ) -> None:
        self.alignment_updates, self.num_validations = alignment_updates, num_validations
        self.loss_span_updates = loss_span_updates
        self.found: dict[str, str] = {}  # the last finding of each topic, so that none is printed twice
        self.high_wer: list[float] = []  # mean losses at the last consecutive validations with a WER of 100 % or more
        self.trend = LossTrend()
        self.update = 0  # the last one that was counted

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Check the loss of every update."""
        update, trend = trainer.global_step, self.trend
        if not trainer.is_global_zero or update == self.update or "train/loss" not in trainer.callback_metrics:
            return
        self.update = update  # Lightning calls this after each micro-batch
        span = self.loss_span_updates or max(MIN_SPAN, trainer.max_steps // SPAN_SHARE)
        trend.add(update, trainer.callback_metrics["train/loss"], window=max(1, span // 10))
        num_worse = update - trend.best_update if math.isfinite(trend.best) else 0
        if num_worse < span:
            self._warn("loss", "", "")
        elif not self.found.get("loss"):  # or reading the rate would wait for the device at every update
            lr = float(trainer.callback_metrics["train/lr"])
            self._warn(
                "loss",
                "stuck",
                f"update {update}: the loss has not improved for {num_worse} updates (mean {trend.mean:.3f}, best "
                f"{trend.best:.3f} by update {trend.best_update}; lr now {lr:.3g}). With a good WER, near the end, "
                f"that is normal. Otherwise likely: {STUCK}.",
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the hypotheses and the error rates."""
        assert isinstance(pl_module, TrainingModule)
        if not trainer.is_global_zero or trainer.sanity_checking or not pl_module.scores:
            return
        for name, result in pl_module.scores.items():
            self._check_output(name, result, trainer.global_step)
        self._check_wer(pl_module.scores, trainer.global_step)

    def _check_output(self, name: str, result: Score, update: int) -> None:
        hypotheses = {item.utterance.hypothesis for item in result.utterances}
        references = {item.utterance.reference for item in result.utterances}
        if len(hypotheses) > 1 or len(references) == 1:  # equal references may have equal hypotheses
            return self._warn(f"output of {name}", "", "")
        (hypothesis,) = hypotheses
        output = f"the same, {hypothesis!r}" if hypothesis else "empty"
        age, why = "late", f"Likely: {STUCK}"
        if update < self.alignment_updates:
            age, why = "early", f"Early in training that is normal: {EARLY} {self.alignment_updates}"
        text = f"update {update}: all {len(result.utterances)} hypotheses of {name} are {output}. {why}."
        self._warn(f"output of {name}", f"{age}, {output.partition(',')[0]}", text)

    def _check_wer(self, scores: Mapping[str, Score], update: int) -> None:
        wer, loss = sum(result.wer for result in scores.values()) / len(scores), self.trend.mean
        rate_name = next(iter(scores.values())).rate_name
        self.high_wer = [*self.high_wer, loss][-self.num_validations :] if wer >= 1 else []
        if len(self.high_wer) < self.num_validations:
            return self._warn("wer", "", "")
        first, is_early = self.high_wer[0], update < self.alignment_updates
        falls = loss < first - NOT_BETTER * abs(first)
        trend = f"though the loss falls ({first:.3f} to {loss:.3f})" if falls else "and the loss does not fall"
        normal = f"no alignment is found yet (normal until about update {self.alignment_updates}), or "
        self._warn(
            "wer",
            "early" if is_early else "late",
            f"update {update}: the {rate_name} on dev is {100 * wer:.0f} %, and was at least 100 % at "
            f"{self.num_validations} validations in a row, {trend}. Likely: {normal if is_early else ''}"
            f"{MISMATCH if falls else STUCK}.",
        )

    def _warn(self, topic: str, finding: str, text: str) -> None:
        """Print a warning if its finding is new; an empty finding means that all is well."""
        if finding and self.found.get(topic) != finding:
            console.print_line(text)
        self.found[topic] = finding

    def state_dict(self) -> dict[str, Any]:
        """Return findings and trends so far."""
        sums = {name: float(getattr(self.trend, name)) for name in ("total", "num_finite")}
        return {
            **{name: getattr(self, name) for name in ("found", "high_wer", "update")},
            "trend": {**asdict(self.trend), **sums},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore findings and trends."""
        self.found, self.high_wer, self.update = (state_dict[name] for name in ("found", "high_wer", "update"))
        self.trend = LossTrend(**state_dict["trend"])
