"""Words for runs that look dead, while they can still be mended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import lightning.pytorch as pl
from pydantic import TypeAdapter

from asr.console import PlainConsole
from asr.evaluation.wer import Score
from asr.training.module import TrainingModule

NOT_BETTER = 1e-3  # a loss that is lower by less than this share has not improved
SPAN_SHARE, MIN_SPAN = 5, 200

STUCK = (
    "optimizer.lr is too high (try a third of it) or too low (try three times it), the warm-up of the schedule is too "
    "short or too long, transcripts do not belong to their audio, or the encoder leaves fewer frames than there are "
    "tokens (a larger data.vocab_size makes fewer tokens)"
)
EARLY = "Early in CTC that is normal: it gives out blanks, or its commonest tokens, until it finds an alignment"
MISMATCH = (
    "hypotheses and references are written differently (tokenizer, data.text: case, punctuation), or dev is another "
    "language or task than train"
)


@dataclass
class LossTrend:
    """The mean loss of windows of updates, and the best of them.

    Attributes:
        window: updates that a mean is taken over.
        total: sum of the losses of the window that is not full yet.
        num: their number.
        mean: of the last full window.
        best: the lowest mean that was clearly lower than the one before it.
        best_update: the end of its window.
    """

    window: int
    total: float = 0.0
    num: int = 0
    mean: float = math.inf
    best: float = math.inf
    best_update: int = 0

    def add(self, update: int, loss: float) -> None:
        """Take in the loss of an update; one that is not finite belongs to an update that was skipped."""
        if math.isfinite(loss):
            self.total, self.num = self.total + loss, self.num + 1
        if self.num < self.window:
            return
        self.mean, self.total, self.num = self.total / self.num, 0.0, 0
        if self.best == math.inf or self.mean < self.best - NOT_BETTER * abs(self.best):
            self.best, self.best_update = self.mean, update


@dataclass
class Watched:
    """What is remembered between validations, and across a resumption.

    Attributes:
        said: topic → what of it was last found, so that nothing is said twice.
        high_wer: mean losses at the last validations in a row with a WER of at least 100 %.
        trend: of the loss; None before training starts.
        update: the last one that was looked at.
    """

    said: dict[str, str] = field(default_factory=dict)
    high_wer: list[float] = field(default_factory=list)
    trend: LossTrend | None = None
    update: int = 0


class DeadRuns(pl.Callback):
    """Says when the output is constant, the WER stays at 100 % or the loss stands still, with likely causes.

    Each is said when it begins, and again only if it had passed. It never stops a run.

    Args:
        alignment_updates: by then CTC has usually found an alignment; output that is all blank is normal before.
        num_validations: in a row with a WER of at least 100 % before that is said.
        loss_span_updates: without a better loss before that is said; null: a fifth of the budget, at least 200.
    """

    def __init__(
        self, alignment_updates: int = 1000, num_validations: int = 3, loss_span_updates: int | None = None
    ) -> None:
        for name, value in (
            ("alignment_updates", alignment_updates),
            ("num_validations", num_validations),
            ("loss_span_updates", 1 if loss_span_updates is None else loss_span_updates),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, given {value}")
        self.alignment_updates, self.num_validations = alignment_updates, num_validations
        self.loss_span_updates = loss_span_updates
        self.console = PlainConsole()
        self.watched = Watched()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Follow the loss of every update."""
        update, watched = trainer.global_step, self.watched
        if not trainer.is_global_zero or update == watched.update or "train/loss" not in trainer.callback_metrics:
            return
        watched.update = update
        span = self.loss_span_updates or max(MIN_SPAN, trainer.max_steps // SPAN_SHARE)
        watched.trend = watched.trend or LossTrend(window=max(1, span // 10))
        watched.trend.add(update, float(trainer.callback_metrics["train/loss"]))
        self._judge_loss(update, span, float(trainer.callback_metrics["train/lr"]))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the hypotheses and the error rates."""
        assert isinstance(pl_module, TrainingModule)
        if not trainer.is_global_zero or trainer.sanity_checking or not pl_module.scores:
            return
        for name, result in pl_module.scores.items():
            self._judge_output(name, result, trainer.global_step)
        self._judge_wer(pl_module.scores, trainer.global_step)

    def _judge_loss(self, update: int, span: int, lr: float) -> None:
        trend = self.watched.trend
        assert trend is not None
        num_worse = update - trend.best_update if math.isfinite(trend.best) else 0
        self._say(
            "loss",
            "stuck" if num_worse >= span else "",
            f"update {update}: the loss has not improved for {num_worse} updates (mean {trend.mean:.3f}, best "
            f"{trend.best:.3f} by update {trend.best_update}; lr now {lr:.3g}). With a good WER, near the end, that "
            f"is normal. Otherwise likely: {STUCK}.",
        )

    def _judge_output(self, name: str, result: Score, update: int) -> None:
        hypotheses = {item.utterance.hypothesis for item in result.utterances}
        references = {item.utterance.reference for item in result.utterances}
        if len(hypotheses) > 1 or len(references) == 1:
            return self._say(f"output of {name}", "", "")
        (hypothesis,) = hypotheses
        output = f"the same, {hypothesis!r}" if hypothesis else "empty"
        if update < self.alignment_updates:
            age = "early"
            why = f"{EARLY}, usually by about update {self.alignment_updates}"
        else:
            age, why = "late", f"By now an alignment is usually found. Likely: {STUCK}"
        text = f"update {update}: all {len(result.utterances)} hypotheses of {name} are {output}. {why}."
        self._say(f"output of {name}", f"{age}, {'the same' if hypothesis else 'empty'}", text)

    def _judge_wer(self, scores: Mapping[str, Score], update: int) -> None:
        watched, wer = self.watched, sum(result.wer for result in scores.values()) / len(scores)
        loss = watched.trend.mean if watched.trend else math.inf
        watched.high_wer = [*watched.high_wer, loss][-self.num_validations :] if wer >= 1 else []
        if len(watched.high_wer) < self.num_validations:
            return self._say("wer", "", "")
        first, age = watched.high_wer[0], "early" if update < self.alignment_updates else "late"
        falls = loss < first - NOT_BETTER * abs(first)
        trend = f"though the loss falls ({first:.3f} to {loss:.3f})" if falls else "and the loss does not fall"
        normal = f"no alignment is found yet (normal until about update {self.alignment_updates}), or "
        causes = f"{normal if age == 'early' else ''}{MISMATCH if falls else STUCK}"
        self._say(
            "wer",
            age,
            f"update {update}: the WER on dev is {100 * wer:.0f} %, and was at least 100 % at {self.num_validations} "
            f"validations in a row, {trend}. Likely: {causes}.",
        )

    def _say(self, topic: str, found: str, text: str) -> None:
        """Say what was found, unless it was what had been found before."""
        if found and self.watched.said.get(topic) != found:
            self.console.print(text, soft_wrap=True)
        self.watched.said[topic] = found

    def state_dict(self) -> dict[str, Any]:
        """Return what was said and seen."""
        return asdict(self.watched)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on watching."""
        self.watched = TypeAdapter(Watched).validate_python(state_dict)
