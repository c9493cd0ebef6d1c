"""How a recogniser is trained: the loss, the update, validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.data.loading.batch import Batch
from asr.data.seeding import seed_for
from asr.evaluation.wer import Score, Utterance, score
from asr.models.recogniser import Recogniser
from asr.text.tokenizer import Tokenizer
from asr.training.audio_clock import AudioClock
from asr.training.errors import TrainingFailed
from asr.training.guards import SkippedUpdate, UpdateGuard
from asr.training.processes import gather
from asr.training.resume_checks import check_resumable
from asr.training.unreadable import UnreadableCuts

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]
Decoder = Callable[[Tensor, Tensor], list[list[int]]]


@runtime_checkable
class KnowsEpochs(Protocol):
    """A schedule that wants to be told where an epoch starts."""

    def step_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""


@runtime_checkable
class FollowsTraining(Protocol):
    """An encoder that changes in the course of training."""

    def follow_training(self, audio_s: float) -> None:
        """Take in how many seconds of audio the updates so far were made of."""


class TrainingModule(pl.LightningModule):
    """Trains a recogniser by updates of one or more micro-batches.

    The loss of an update is the sum over its utterances, on all ranks and in all accumulated micro-batches, divided by
    the number of their target tokens: neither world size nor accumulation changes it. Dropout and augmentation are
    keyed by the micro-batch, so that nothing random has to be saved.

    Args:
        recogniser: features → log-probabilities.
        tokenizer: tokens → text, for validation.
        decoder: log-probabilities and lengths → tokens.
        optimizer_factory: named parameters → optimizer.
        schedule_factory: optimizer → schedule, stepped once per update.
        dev_names: of the validation loaders, in order.
        max_duration_s: seconds of audio that a micro-batch may hold.
        extra_state: plain data to put into every checkpoint under the name ``werdict``.
        max_unreadable: utterances of an epoch that may be unreadable; None: any number.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        tokenizer: Tokenizer,
        decoder: Decoder,
        optimizer_factory: OptimizerFactory,
        schedule_factory: ScheduleFactory,
        dev_names: list[str],
        max_duration_s: float,
        extra_state: Mapping[str, Any],
        max_unreadable: int | None = None,
    ) -> None:
        super().__init__()
        self.recogniser, self.tokenizer, self.decoder = recogniser, tokenizer, decoder
        self.optimizer_factory, self.schedule_factory = optimizer_factory, schedule_factory
        self.dev_names, self.max_duration_s, self.extra_state = dev_names, max_duration_s, extra_state
        self.hypotheses: dict[str, list[Utterance]] = {}
        self.scores: dict[str, Score] = {}
        # sums over the micro-batches of an update: loss, tokens, utterances, seconds of audio, utterances too short,
        # utterances that could not be read
        self.sums = torch.zeros(6)
        self.guard, self.audio_clock, self.unreadable = UpdateGuard(), AudioClock(), UnreadableCuts(max_unreadable)
        self.num_unread: dict[str, int] = {}  # of a validation, by development set
        self.in_hand: Batch | None = None

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the optimizer and its schedule."""
        optimizer = self.optimizer_factory(self.recogniser.named_parameters())
        schedule = self.schedule_factory(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: LRScheduler, metric: Any) -> None:
        """Advance the schedule by one update."""
        scheduler.step()

    def on_train_epoch_start(self) -> None:
        """Tell the epoch to a schedule that wants it."""
        schedule = self.lr_schedulers()
        if isinstance(schedule, KnowsEpochs):
            schedule.step_epoch(self.current_epoch)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the sum of the losses of a micro-batch, in nats."""
        self.in_hand = batch
        self.unreadable.see(batch)
        if len(batch) == 0:
            return self._nothing(batch)
        if isinstance(self.recogniser.encoder, FollowsTraining):
            self.recogniser.encoder.follow_training(self.trained_audio_s())
        torch.manual_seed(seed_for("dropout", batch.seed))
        generator = torch.Generator().manual_seed(seed_for("augment", batch.seed))
        losses = self.recogniser.losses(batch.features, batch.num_frames, batch.tokens, batch.num_tokens, generator)
        too_short = self.guard.see(batch, losses)
        tokens = batch.num_tokens.where(~too_short, 0).sum()
        loss = losses.sum()
        seen = torch.tensor([len(batch), batch.audio_s], device=loss.device)
        unread = torch.tensor([len(batch.skipped)], device=loss.device)
        added = torch.cat((loss.detach().view(1), tokens.view(1), seen, too_short.sum().view(1), unread))
        self.sums = self.sums.to(loss.device) + added
        return loss

    def _nothing(self, batch: Batch) -> Tensor:
        """Return a loss of zero that leaves all gradients as they are, for a micro-batch that could not be read."""
        self.sums[5] += len(batch.skipped)
        # every parameter takes part, because DDP waits for the gradients of all
        return torch.stack([0.0 * p.sum() for p in self.parameters() if p.requires_grad]).sum()

    def trained_audio_s(self) -> float:
        """Return how many seconds of audio the updates so far may have held, on all ranks."""
        return self.audio_clock.read(self.global_step, self.update_s())

    def update_s(self) -> float:
        """Return how many seconds of audio an update may hold, on all ranks."""
        return self.trainer.accumulate_grad_batches * self.trainer.world_size * self.max_duration_s

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Ask for a last validation once the budget is used up; Lightning validates where it is told to stop."""
        if self.global_step >= self.trainer.max_steps:
            self.trainer.should_stop = True

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Make an update, or none at all: an optimizer would move on zero gradients, and count the step."""
        with suppress(SkippedUpdate):
            super().optimizer_step(*args, **kwargs)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Turn summed gradients into nats per token, and drop an update that is not finite."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        # the gradients of all ranks should be the same; what is done about them must be
        sums = torch.cat((self.sums, (~norm.isfinite()).to(self.sums).view(1)))
        self.sums = torch.zeros(6)
        loss, tokens, utterances, audio_s, num_too_short, num_unread, num_bad = self.trainer.strategy.reduce(
            sums, reduce_op="sum"
        ).tolist()
        self.unreadable.end_update(self.current_epoch, int(num_unread), int(utterances))
        if num_unread and not utterances:
            self.gradient_norm = norm
            self.guard.end_empty_update(self.global_step)
            self._skip(optimizer)
            return
        # lightning divides by the accumulated micro-batches, DDP by the ranks
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size / max(1, tokens)
        for gradient in gradients:
            gradient.mul_(scale)
        self.gradient_norm = norm * scale
        finite = math.isfinite(loss) and num_bad == 0
        skipped = self.guard.end_update(self.global_step, finite, int(num_too_short), self.global_rank)
        self.log_dict(
            {
                "train/loss": loss / max(1, tokens),
                "train/gradient_norm": self.gradient_norm,
                "train/lr": float(optimizer.param_groups[0]["lr"]),
                "train/utterances": utterances,
                "train/audio_s": audio_s,
                "train/epoch": float(self.current_epoch),
                "train/unreadable": float(self.unreadable.counts["total"]),
                **self.guard.metrics(),
            }
        )
        if skipped:
            self._skip(optimizer)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm that was logged (the algorithm "value" is left to Lightning)."""
        if gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            clip_grads_with_norm_(self.parameters(), gradient_clip_val, self.gradient_norm)

    def _skip(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)
        # a gradient scaler skips by itself, and lowers its scale behind the step
        if getattr(self.trainer.precision_plugin, "scaler", None) is None:
            raise SkippedUpdate

    def validation_step(self, batch: Batch, batch_index: int, dataloader_idx: int = 0) -> None:
        """Decode a batch."""
        name = self.dev_names[dataloader_idx]
        self.unreadable.see(batch)
        self.num_unread[name] = self.num_unread.get(name, 0) + len(batch.skipped)
        if len(batch) == 0:
            return
        self.in_hand = batch
        found = decode(self.recogniser, self.decoder, self.tokenizer, batch)
        self.hypotheses.setdefault(name, []).extend(found)

    def on_validation_epoch_end(self) -> None:
        """Log the error rates of every development set, and their mean, which chooses the best checkpoint.

        Raises:
            TrainingFailed: nothing of a development set could be read.
        """
        parts = gather((self.hypotheses, self.num_unread))
        found = {name: [u for part, _ in parts for u in part.get(name, [])] for name in self.dev_names}
        for name, utterances in found.items():
            num_unread = sum(part.get(name, 0) for _, part in parts)
            if num_unread and not utterances:
                raise TrainingFailed(
                    f"none of the {num_unread} utterances of {name} could be read, so that no checkpoint can be chosen "
                    "by it; put their audio back and resume the run, or prepare the data again"
                )
        self.scores = {name: score(utterances) for name, utterances in found.items()}
        for name, result in self.scores.items():
            self.log_dict({f"val/{name}/wer": result.wer, f"val/{name}/cer": result.cer})
        self.log("val/wer", sum(result.wer for result in self.scores.values()) / len(self.scores))

    def on_validation_epoch_start(self) -> None:
        """Forget the hypotheses of the last validation."""
        self.hypotheses, self.num_unread = {}, {}

    def on_train_end(self) -> None:
        """Refuse an end at which nothing was learned."""
        self.unreadable.end_training()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what makes one file enough to decode with."""
        checkpoint["werdict"] = dict(self.extra_state)
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["unreadable"] = self.unreadable.state_dict()
        checkpoint["audio_clock"] = self.audio_clock.state_dict(self.update_s())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on counting what is left out, and what was heard."""
        check_resumable(checkpoint)
        if "guard" in checkpoint:
            self.guard.load_state_dict(checkpoint["guard"])
        if "unreadable" in checkpoint:
            self.unreadable.load_state_dict(checkpoint["unreadable"])
        if "audio_clock" in checkpoint:
            self.audio_clock.load_state_dict(checkpoint["audio_clock"], checkpoint["global_step"], self.update_s())


def decode(recogniser: Recogniser, decoder: Decoder, tokenizer: Tokenizer, batch: Batch) -> list[Utterance]:
    """Return reference and hypothesis of every utterance of a batch."""
    with torch.inference_mode():
        tokens = decoder(*recogniser(batch.features, batch.num_frames))
    return [
        Utterance(id=cut, reference=text, hypothesis=tokenizer.decode(ids), speaker=speaker)
        for cut, text, ids, speaker in zip(batch.ids, batch.texts, tokens, batch.speakers, strict=True)
    ]
