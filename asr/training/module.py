"""Trains a recognizer: loss, update, validation, and what is counted in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.data.loading.loader import Batch
from asr.data.loading.sampling import seed_for
from asr.decoding.greedy import Decoder
from asr.inference.decode import UnscoredText, decode
from asr.models import devices
from asr.models.heads.protocols import Losses
from asr.models.recognizer import Recognizer, is_pretrained
from asr.text.tokenizer import Tokenizer
from asr.training import optimizer_protocols as protocols
from asr.training.checkpoints import PREFIX
from asr.training.fsdp import average_whole, divide, local_part, total_norm
from asr.training.lightning_internals import number_logged_update
from asr.training.nonfinite_guard import MAX_CONSECUTIVE_SKIPS, NonfiniteGuard, SkippedUpdate, UnreadableCuts
from asr.training.processes import gather
from werdict.errors import Diverged, RunFailed
from werdict.scoring import Score, Unit, Utterance, score

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]

ZERO = torch.zeros(())  # a 0-dim CPU tensor can be added to one of a GPU, and takes its device


def ends_update(trainer: pl.Trainer) -> bool:
    """Return whether the micro-batch that just ended was the last of its update."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    # at the end of an epoch Lightning updates with the micro-batches that it has
    is_last = progress.is_last_batch or progress.current.ready == trainer.num_training_batches
    return is_last or progress.current.ready % trainer.accumulate_grad_batches == 0


class StepStats(NamedTuple):
    """Sums of one rank, as float32 scalars if a device computes them, or of all ranks, all as such scalars; P parts.

    Attributes:
        num_utterances: that were read.
        audio_s: seconds of their audio.
        num_unreadable: utterances that could not be read.
        loss: nats.
        num_tokens: target tokens; those of utterances that are too short do not count.
        num_too_short: utterances too short for their transcript.
        num_nonfinite: ranks whose gradients are not finite.
        parts: (P,) of the loss, in nats, or one 0 for all.
    """

    num_utterances: Any = 0.0
    audio_s: Any = 0.0
    num_unreadable: Any = 0.0
    loss: Any = ZERO
    num_tokens: Any = ZERO
    num_too_short: Any = ZERO
    num_nonfinite: Any = ZERO
    parts: Any = ZERO

    def plus(self, **terms: Tensor | float) -> StepStats:
        """Return the sums with one term more, () or of ``parts`` (P,), for each name; waits for no device."""
        # no item(): reading a sum of a GPU would wait for the whole backward pass
        return self._replace(**{name: getattr(self, name) + term for name, term in terms.items()})

    def over_ranks(self, world_size: int, device: torch.device, num_parts: int) -> StepStats:
        """Return the sums over all ranks on a device, by one reduction for all; waits for no device."""
        counts = torch.tensor([self.num_utterances, self.audio_s, self.num_unreadable])
        computed = self.loss, self.num_tokens, self.num_too_short, self.num_nonfinite
        # of a rank that could read nothing they are zeros on the CPU, one for all parts
        every = counts, *(value.expand(1) for value in computed), self.parts.expand(num_parts)
        sums = torch.cat([value.to(device, non_blocking=True) for value in every])
        if world_size > 1:
            dist.all_reduce(sums)  # Lightning's own reduction waits for the devices of all ranks before it
        return StepStats(*sums[:-num_parts].unbind())._replace(parts=sums[-num_parts:])

    def per_token(self, prefix: str, part_names: Sequence[str]) -> dict[str, Tensor]:
        """Return what sums over all ranks give to log: the loss per target token and, if it has several, its parts.

        They are NaN if there are no tokens.
        """
        # of a loss with one part that is all
        parts = zip(part_names, self.parts, strict=True) if len(part_names) > 1 else ()
        numbers = {f"{prefix}/loss": self.loss, **{f"{prefix}/{name}_loss": part for name, part in parts}}
        return {name: number / self.num_tokens for name, number in numbers.items()}


class NominalAudio:
    """Counts the seconds of audio that updates may hold at most, on all ranks.

    The seconds that they do hold would have to be summed and saved; the maximum follows from the number of updates, as
    long as their size is constant. When the number of processes changes, a new count starts.

    Attributes:
        update: all later updates have the same size.
        audio_s: seconds of audio up to this update.
    """

    def __init__(self) -> None:
        self.update, self.audio_s = 0, 0.0

    def read(self, update: int, update_s: float) -> float:
        """Return the seconds in all updates up to ``update``; those after ``self.update`` hold ``update_s`` each."""
        return self.audio_s + (update - self.update) * update_s

    def state_dict(self, update_s: float) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"update": self.update, "audio_s": self.audio_s, "update_s": update_s}

    def load_state_dict(self, state: Mapping[str, Any], update: int, update_s: float) -> None:
        """Continue after ``update``, with updates of ``update_s`` from now on."""
        self.update, self.audio_s = int(state["update"]), float(state["audio_s"])
        # only if the size has changed: a sum in two parts may differ in its last bit from that of an uninterrupted run
        if update_s != state["update_s"]:
            self.update, self.audio_s = update, self.read(update, state["update_s"])


class TrainingModule(pl.LightningModule):
    """Trains a recognizer by updates of one or more micro-batches.

    The loss of an update is summed over its utterances, on all ranks and in all accumulated micro-batches, and divided
    by the number of their target tokens: neither world size nor accumulation changes it. The seed of dropout and
    augmentation belongs to the micro-batch, so no random state has to be saved.

    Args:
        recognizer: features → encodings and losses.
        tokenizer: tokens → text, for validation.
        decoder: encodings and lengths → tokens.
        optimizer_factory: named parameters → optimizer.
        schedule_factory: optimizer → schedule, stepped once per update.
        dev_names: names of the validation sets, in the order of their loaders.
        max_duration_s: seconds of audio that a micro-batch may hold.
        extra_state: plain data that every checkpoint holds under the key ``werdict``.
        max_unreadable: number of utterances per epoch that may be unreadable; None: any number.
        unit: ``word`` or ``character``, which error rates count.
        optimizer: that the first training takes in the place of a new one, built of parameters of the same names.
        in_backward: optimizer → one that steps in the backward pass; None: after it.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        tokenizer: Tokenizer,
        decoder: Decoder,
        optimizer_factory: OptimizerFactory,
        schedule_factory: ScheduleFactory,
        dev_names: list[str],
        max_duration_s: float,
        extra_state: Mapping[str, Any],
        max_unreadable: int | None = None,
        unit: Unit = "word",
        optimizer: protocols.ReplacesParams | None = None,
        in_backward: Callable[[Any], Optimizer] | None = None,
    ) -> None:
        super().__init__()
        self.recognizer, self.tokenizer, self.decoder = recognizer, tokenizer, decoder
        self.optimizer_factory, self.schedule_factory = optimizer_factory, schedule_factory
        self.optimizer, self.wrap_in_backward = optimizer, in_backward
        self.dev_names, self.max_duration_s, self.extra_state = dev_names, max_duration_s, extra_state
        # what this rank has decoded, and could not read, by development set
        self.decoded: defaultdict[str, list[Utterance]] = defaultdict(list)
        self.num_unread: Counter[str] = Counter()
        self.dev_sums: defaultdict[str, StepStats] = defaultdict(StepStats)
        self.scores: dict[str, Score] = {}
        self.unit: Unit = unit
        self.sums, self.numbers = StepStats(), dict[str, Tensor]()  # numbers: the newest to be logged
        self.gradient_norm = torch.zeros(())  # of the last update, before clipping
        self.guard, self.nominal_audio = NonfiniteGuard(), NominalAudio()
        self.found_inf: Tensor | None = None  # where the device decides: 1 for an update that is skipped
        self.unreadable = UnreadableCuts(max_unreadable)
        self.current_batch: Batch | None = None  # named when memory runs out
        self.in_backward: protocols.GradientsInBackward | None = None
        self.strict_loading = not recognizer.unsaved
        self.all_parameters: list[nn.Parameter] = []  # parameters() walks through all modules each time
        self.graphed_encoder: Any = None  # encodes in training, in the place of the encoder

    def configure_model(self) -> None:
        """Divide the recognizer over processes, if the trainer's strategy does so."""
        divide(self, self.recognizer)

    @property
    def is_divided(self) -> bool:
        """Whether each process holds a part of the recognizer."""
        return self.device_mesh is not None

    def build_updates(self) -> tuple[Optimizer, LRScheduler]:
        """Return the optimizer of the recognizer's parameters, as new, and its schedule."""
        optimizer = self.take_optimizer()
        if self.wrap_in_backward is not None:
            optimizer = self.wrap_in_backward(optimizer)
        return optimizer, self.schedule_factory(optimizer)

    def take_optimizer(self) -> Any:
        """Return the optimizer that was built before, if it is not taken yet, or a new one, of the parameters."""
        optimizer, self.optimizer = self.optimizer, None
        if optimizer is None:
            return self.optimizer_factory(protocols.NamedParameters(self.recognizer))
        optimizer.replace_params(dict(self.recognizer.named_parameters()))
        return optimizer

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the optimizer and its schedule."""
        optimizer, schedule = self.build_updates()
        self.all_parameters = list(self.parameters())
        if type(optimizer).__module__.partition(".")[0] not in ("optim", "torch"):
            with suppress(Exception):  # what fails here fails in its first step too, where it is explained
                trial = self.optimizer_factory(protocols.NamedParameters(self.recognizer, small=True))
                if not protocols.calls_closure(trial):
                    optimizer.register_step_pre_hook(protocols.compute_gradients_first)
        if isinstance(optimizer, protocols.StepsInBackward):
            self.in_backward = optimizer.before_step = protocols.GradientsInBackward()
        # Lightning's default interval, "epoch", would advance the schedule once per epoch
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Go to where gradients are taken: a checkpoint leaves the weights for evaluation in the recognizer."""
        protocols.to_train_mode(self.trainer.optimizers)
        self.sync_guard()  # callbacks find counts from the first update on
        self.found_inf, members = None, protocols.members_of(self.trainer.optimizers[0])
        # a gradient scaler asks the device about every update
        if self._scaler is None and all(
            isinstance(member, protocols.SupportsFoundInf) and member.capturable for member in members
        ):
            self.found_inf = torch.zeros((), device=self.device)
            for member in members:
                member.found_inf = self.found_inf  # type: ignore[attr-defined]

    @property
    def _scaler(self) -> Any:
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def on_train_epoch_start(self) -> None:
        """Pass the epoch to a schedule that depends on it."""
        schedule: Any = self.lr_schedulers()
        if hasattr(schedule, "step_epoch"):
            schedule.step_epoch(self.current_epoch)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the sum of the losses of a micro-batch, in nats."""
        self.current_batch = batch
        self.unreadable.record(batch)
        self.sums = self.sums.plus(num_unreadable=len(batch.skipped))
        self._set_trained_seconds()
        frozen = self._frozen_parameters()
        if len(batch) == 0 and self.is_divided:
            return self._empty_loss()
        if len(batch) == 0:
            # DDP waits for the gradients of every parameter: without this term the other ranks would hang
            return torch.stack([0.0 * p.sum() for p in self.parameters() if p.requires_grad]).sum()
        # a function of the batch: a resumed run draws the same masks although no generator is saved
        devices.seed(seed_for("dropout", batch.seed), self.device)
        generator = torch.Generator().manual_seed(seed_for("augment", batch.seed))
        inputs = batch.features, batch.num_frames, batch.tokens, batch.num_tokens
        losses = self.recognizer.losses(*inputs, generator, self.graphed_encoder)
        self.guard.record(batch.ids, losses)
        loss = losses.total.sum()
        if frozen and self.trainer.world_size > 1 and not self.is_divided:  # DDP waits for their gradients too
            loss = loss + torch.stack([0.0 * parameter.sum() for parameter in frozen]).sum()
        self.sums = self.sums.plus(
            loss=loss.detach(),
            num_utterances=len(batch),
            audio_s=batch.audio_s,
            num_too_short=(~losses.feasible).sum(),
            **self._token_sums(batch, losses),
        )
        if self.in_backward is not None:
            self.in_backward.begin(loss, self.sums.num_tokens)
        return loss

    def _empty_loss(self) -> Tensor:
        """Return a loss of zero by a pass over silence: the other processes gather every layer from this one."""
        encoder: Any = self.recognizer.encoder
        sizes = (2**power for power in range(20))
        size = next(size for size in sizes if encoder.output_frames(torch.tensor([size])).item() >= 4)
        features = torch.zeros(1, size, len(self.recognizer.normalize.mean), device=self.device)
        one = torch.ones(1, dtype=torch.int64, device=self.device)
        return 0.0 * self.recognizer.losses(features, size * one, one[None], one).total.sum()

    def _set_trained_seconds(self) -> None:
        self.recognizer.set_trained_seconds(self.nominal_audio.read(self.global_step, self.max_audio_per_update_s()))

    def _frozen_parameters(self) -> list[nn.Parameter]:
        """Return parameters of a pretrained encoder that this update, one of the first, leaves as they are."""
        encoder: Any = self.recognizer.encoder
        if not is_pretrained(encoder):
            return []
        encoder.is_frozen = self.global_step < encoder.freeze_updates
        return [p for p in encoder.model.parameters() if p.requires_grad] if encoder.is_frozen else []

    def _token_sums(self, batch: Batch, losses: Losses) -> dict[str, Tensor]:
        parts = torch.stack([losses.parts[name].detach().sum() for name in self.recognizer.head.loss_names])
        return {"num_tokens": batch.num_tokens.where(losses.feasible, 0).sum(), "parts": parts}

    def max_audio_per_update_s(self) -> float:
        """Return how many seconds of audio an update may hold at most, on all ranks."""
        return self.trainer.accumulate_grad_batches * self.trainer.world_size * self.max_duration_s

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Log, and stop after the last update by ``should_stop``: at ``max_steps`` Lightning does not validate."""
        number_logged_update(self.trainer)
        if 0 <= self.trainer.max_steps <= self.global_step:  # -1 without a budget
            self.trainer.should_stop = True
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        is_due = every > 0 and (self.global_step % every == 0 or self.trainer.should_stop)
        is_logged = is_due and ends_update(self.trainer)
        if is_logged or len(self.guard.pending) >= MAX_CONSECUTIVE_SKIPS:
            self.sync_guard()
        if is_logged and self.trainer.loggers:
            numbers = {name: number.item() for name, number in self.numbers.items()} | {"epoch": self.current_epoch}
            for logger in self.trainer.loggers:
                logger.log_metrics(metrics=numbers, step=self.global_step - 1)
                logger.save()

    def log_update(self, numbers: Mapping[str, Tensor | float]) -> None:
        """Give scalars of an update to callbacks, and, at its end, to loggers if this update is logged.

        Reading a number that is on a GPU waits for the GPU. Lightning's ``log`` would take ten milliseconds for ten.
        """
        self.numbers |= {name: torch.as_tensor(number) for name, number in numbers.items()}
        self.trainer.callback_metrics.update(self.numbers)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Update, or skip the whole step: with zero gradients an optimizer would still move, and count the step."""
        with suppress(SkippedUpdate):  # raised in the closure that Lightning (2.6) passes to optimizer.step()
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        optimizer.zero_grad()  # Lightning frees gradients after the next forward pass, which could use their memory

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Scale summed gradients to nats per token, and skip an update that is not finite or empty.

        Where optimizers can do so on the device, the host looks only at logged updates; otherwise it looks now, and
        waits.
        """
        for parameter in self._frozen_parameters():
            parameter.grad = None  # zero, as of other processes or an empty batch: optimizers would still decay it
        gradients = [parameter.grad for parameter in self.all_parameters if parameter.grad is not None]
        average_whole(gradients)
        norm = total_norm(gradients) if self.in_backward is None else self.in_backward.end(self.global_step)
        # all ranks should have the same gradients; they must decide the same, or DDP would wait forever
        local, self.sums = self.sums.plus(num_nonfinite=~norm.isfinite()), StepStats()
        loss_names = self.recognizer.head.loss_names
        # the norm of no gradients is on the CPU, where what has not arrived yet would be read
        sums = local.over_ranks(self.trainer.world_size, self.device, len(loss_names))
        # Lightning has divided the loss by the accumulated micro-batches, DDP the gradients by the ranks
        num_tokens = sums.num_tokens.clamp(min=1).to(torch.promote_types(norm.dtype, torch.float32))
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size / num_tokens
        if gradients:
            torch._foreach_mul_([local_part(gradient) for gradient in gradients], scale)
        self.gradient_norm = (norm * scale).to(norm.dtype)
        lr = optimizer.param_groups[0]["lr"]
        numbers: dict[str, Tensor | float] = {
            **sums.per_token("train", loss_names),
            "train/gradient_norm": self.gradient_norm,  # before clipping
            "train/lr": lr.clone() if isinstance(lr, Tensor) else float(lr),  # a schedule fills it in place
            "train/utterances": sums.num_utterances,
            "train/audio_s": sums.audio_s,
            "train/epoch": float(self.current_epoch),  # Lightning's own "epoch" is dropped by the loggers
        }
        self.log_update(numbers)
        is_skipped = ~(sums.loss.isfinite() & (sums.num_nonfinite == 0) & (sums.num_utterances > 0))
        counts = torch.stack([sums.num_unreadable, sums.num_utterances, sums.num_too_short, is_skipped.float()])
        self.guard.end_update(self.global_step, self.current_epoch, counts)
        if self.found_inf is not None:
            self.found_inf.copy_(is_skipped)
        elif self.sync_guard():
            # a gradient scaler skips by itself, and must run to lower its scale after the step
            if self._scaler is None:
                raise SkippedUpdate
            optimizer.zero_grad(set_to_none=True)

    def sync_guard(self) -> bool:
        """Count and name what pending updates skipped; return whether the newest was skipped.

        Raises:
            Diverged: too many updates in a row were skipped.
            RunFailed: too much could not be read.
        """
        is_skipped = self.guard.sync(self.unreadable, self.global_rank)
        self.log_update({"train/unreadable": float(self.unreadable.counts["total"]), **self.guard.metrics()})
        return is_skipped

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the norm that was logged, without computing it again; Lightning clips by value."""
        if gradient_clip_algorithm == "value":  # needs no norm
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            gradients = [local_part(parameter.grad) for parameter in self.all_parameters if parameter.grad is not None]
            if gradients:  # as torch's clip_grads_with_norm_, which takes no parts
                torch._foreach_mul_(gradients, (gradient_clip_val / (self.gradient_norm + 1e-6)).clamp(max=1.0))

    def on_validation_start(self) -> None:
        """Go to where the recognizer is to be evaluated."""
        if self.guard.pending:
            self.sync_guard()
        # a resumed run may begin with a validation
        number_logged_update(self.trainer)
        self._set_trained_seconds()
        protocols.to_eval_mode(self.trainer.optimizers)

    def on_validation_end(self) -> None:
        """Go back to where gradients are taken; the checkpoint of this validation has been saved."""
        protocols.to_train_mode(self.trainer.optimizers)

    def validation_step(self, batch: Batch, batch_index: int, dataloader_idx: int = 0) -> None:
        """Decode a batch, and add up its losses, both from the same encodings.

        Raises:
            Diverged: the scores of the model are not finite.
        """
        name = self.dev_names[dataloader_idx]  # which Lightning does not pass if there is only one loader
        self.unreadable.record(batch)
        self.current_batch = batch
        try:
            utterances = self._decode_with_loss(name, batch) if len(batch) else []
        except UnscoredText as error:
            raise Diverged(
                f"the model has diverged: in the validation of update {self.trainer.global_step} its scores are not "
                "finite; lower optimizer.lr, or warm up longer, and start a new run; earlier checkpoints are unchanged"
            ) from error
        self.decoded[name].extend(utterances)
        self.num_unread[name] += len(batch.skipped)

    @torch.inference_mode()
    def _decode_with_loss(self, name: str, batch: Batch) -> list[Utterance]:
        layers, num_frames = self.recognizer.encode_layers(batch.features, batch.num_frames)
        utterances = decode(self.recognizer, self.decoder, self.tokenizer, batch, layers[-1], num_frames)
        losses = self.recognizer.losses_of(layers, num_frames, batch.tokens, batch.num_tokens)
        self.dev_sums[name] = self.dev_sums[name].plus(loss=losses.total.sum(), **self._token_sums(batch, losses))
        return utterances

    def on_validation_epoch_end(self) -> None:
        """Log loss and error rates of each development set, and the mean WER, which selects the best checkpoint.

        Raises:
            RunFailed: no utterance of a development set could be read.
        """
        # texts, not rates: a mean of the ranks' rates would not be the rate of the set
        ranks = gather((dict(self.decoded), self.num_unread))
        loss_names = self.recognizer.head.loss_names
        for name in self.dev_names:
            utterances = [utterance for decoded, _ in ranks for utterance in decoded.get(name, [])]
            num_unread = sum(unread[name] for _, unread in ranks)
            if num_unread and not utterances:
                raise RunFailed(
                    f"none of the {num_unread} utterances of {name} could be read, so no checkpoint can be chosen by "
                    "it; restore their audio and resume the run, or prepare the data again"
                )
            self.scores[name] = result = score(utterances, self.unit)
            sums = self.dev_sums[name].over_ranks(self.trainer.world_size, self.device, len(loss_names))
            self.log_dict(sums.per_token(f"val/{name}", loss_names))
            self.log_dict({f"val/{name}/wer": result.wer, f"val/{name}/cer": result.cer})
        # the name that CheckpointCallback and EarlyStopping read
        self.log("val/wer", sum(result.wer for result in self.scores.values()) / len(self.scores))

    def on_validation_epoch_start(self) -> None:
        """Drop the texts and losses of the last validation."""
        self.decoded.clear()
        self.dev_sums.clear()
        self.num_unread.clear()
        if isinstance(self.trainer.model, DistributedDataParallel):
            # DDP (torch 2.13) sends buffers to all ranks at the first forward after training, and would wait forever
            # for a rank that has no batch; the buffers of training have no effect on decoding
            self.trainer.model.require_forward_param_sync = False

    def on_train_end(self) -> None:
        """Fail if no utterance of the whole run could be read."""
        self.sync_guard()
        if self.found_inf is not None:
            for member in protocols.members_of(self.trainer.optimizers[0]):
                member.found_inf = None  # type: ignore[attr-defined]
        self.unreadable.end_training()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what decoding needs beside the weights, and the counts of this module."""
        self.sync_guard()
        checkpoint["werdict"] = dict(self.extra_state)
        for name in self.recognizer.unsaved:
            del checkpoint["state_dict"][f"{PREFIX}{name}"]
        checkpoint["guard"] = self.guard.state_dict()
        checkpoint["unreadable"] = self.unreadable.state_dict()
        checkpoint["nominal_audio"] = self.nominal_audio.state_dict(self.max_audio_per_update_s())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counts."""
        for callback in self.trainer.early_stopping_callbacks:
            # Lightning (2.6) would restore the patience that the run was started with
            if callback.state_key in checkpoint["callbacks"]:
                checkpoint["callbacks"][callback.state_key]["patience"] = callback.patience
        self.guard.load_state_dict(checkpoint["guard"])
        self.unreadable.load_state_dict(checkpoint["unreadable"])
        self.nominal_audio.load_state_dict(
            checkpoint["nominal_audio"], checkpoint["global_step"], self.max_audio_per_update_s()
        )
