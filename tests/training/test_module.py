"""What an update is: nats per token whatever the accumulation."""

from dataclasses import replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from asr.data.loading.loader import Batch
from asr.tracking.metrics_csv import MetricsCsv
from asr.training.callbacks.checkpoints import CheckpointCallback, Preempted, Preemption
from asr.training.module import TrainingModule
from optim import Eden
from tests.training import runs
from tests.training.heads import module_with, share_of
from tests.training.test_preemption import Signalled
from tests.training.test_unreadable import unread
from tests.training.tiny import Metrics, batch_of, batches_loader, sgd, tiny_module, tiny_trainer, trained


def half(batch: Batch, rows: slice) -> Batch:
    tensors = ("features", "num_frames", "tokens", "num_tokens", "ids", "texts", "speakers")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in tensors}, audio_s=batch.audio_s / 2)


def train(
    batches: list[Batch], accumulate: int = 1, clip: float | None = None, lr: float = 0.05, **options: Any
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Train in double precision with SGD: Adam turns the rounding of a gradient near zero into a whole step."""
    batches = [replace(batch, features=batch.features.double()) for batch in batches]
    module = tiny_module(partial(sgd, lr=lr)).double()
    _, _, seen = trained(batches, module, accumulate=accumulate, gradient_clip_val=clip, **options)
    return [p.detach() for p in module.recognizer.parameters()], seen


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulating_parts_of_a_batch_is_the_whole_batch(clip):
    whole = [batch_of(60, 52, 40, 33, 21, seed=seed) for seed in range(4)]
    # unequal parts: an average of averages would differ
    parts = [half(batch, rows) for batch in whole for rows in (slice(0, 1), slice(1, 5))]
    one, seen = train(whole, clip=clip)
    two, seen_parts = train(parts, accumulate=2, clip=clip)
    assert largest_difference(one, two) < 1e-12
    assert seen[-1]["train/loss"] == pytest.approx(seen_parts[-1]["train/loss"], rel=1e-6)
    assert seen[-1]["train/gradient_norm"] == pytest.approx(seen_parts[-1]["train/gradient_norm"], rel=1e-6)
    assert seen_parts[-1]["train/utterances"] == 5


def test_gradients_take_no_memory_in_the_next_forward_pass():
    module, num = tiny_module(), list[int]()
    encoder = module.recognizer.encoder
    encoder.register_forward_pre_hook(lambda *_: num.append(sum(p.grad is not None for p in encoder.parameters())))
    trained([batch_of(60, seed=seed) for seed in range(4)], module, accumulate=2)
    assert num[0] == num[2] == 0 < num[1] == num[3]


def test_the_loss_is_per_token_and_impossible_transcripts_do_not_count():
    possible = batch_of(60, 52)
    # three equal tokens need five frames; eleven input frames leave two
    impossible = batch_of(60, 52, 11)
    impossible.tokens[:2], impossible.num_tokens[:2] = possible.tokens, possible.num_tokens
    impossible.features[:2] = possible.features
    impossible.tokens[2], impossible.num_tokens[2] = 2, 3
    alone, seen = train([possible])
    together, seen_together = train([impossible])
    assert seen_together[0]["train/loss"] == pytest.approx(seen[0]["train/loss"], rel=1e-6)
    assert largest_difference(alone, together) < 1e-12


def plain_gradient(batches: list[Batch]) -> tuple[list[torch.Tensor], float]:
    """Return gradient and value of the summed loss of the batches divided by their tokens, without a trainer."""
    module = tiny_module().double()
    losses = [
        module.recognizer.losses(b.features.double(), b.num_frames, b.tokens, b.num_tokens).total for b in batches
    ]
    loss = torch.cat(losses).sum()
    loss.backward()
    # divided after backward: heads compute in single precision, which rounds a divided loss
    num_tokens = sum(int(b.num_tokens.sum()) for b in batches)
    gradient = [p.grad / num_tokens for p in module.recognizer.parameters() if p.grad is not None]
    return gradient, float(loss) / num_tokens


def norm_of(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def gradient_applied(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradient of the one SGD update with lr=1 that left these weights."""
    starts = tiny_module().double().recognizer.parameters()
    return [start.detach() - weight for start, weight in zip(starts, weights, strict=True)]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_is_the_gradient_of_the_summed_loss_divided_by_the_tokens(accumulate):
    # the first has a single token
    batches = [batch_of(33, seed=1), batch_of(60, 52, 40)][:accumulate]
    weights, metrics = train(batches, accumulate, lr=1.0)
    gradient, loss = plain_gradient(batches)
    assert largest_difference(gradient_applied(weights), gradient) < 1e-12
    logged = metrics[-1]
    assert logged["train/gradient_norm"] == pytest.approx(norm_of(gradient), rel=1e-6)
    assert logged["train/loss"] == pytest.approx(loss, rel=1e-6)
    assert logged["train/lr"] == 1.0
    assert logged["train/audio_s"] == pytest.approx(sum(batch.audio_s for batch in batches))


@pytest.mark.slow
def test_an_update_of_two_processes_is_that_of_their_batches_together(ranks):
    gradient, _ = plain_gradient([batch for rank in range(2) for batch in share_of(rank)[:1]])
    for rank in ranks:
        assert largest_difference(gradient_applied(rank.left["with_one_sgd_update"]), gradient) < 1e-12


def test_clipping_by_norm_or_value_acts_on_the_gradient_per_token():
    batch = batch_of(60, 52, 40)
    gradient, _ = plain_gradient([batch])
    by_norm, metrics = train([batch], clip=0.5, lr=1.0)
    # torch adds 1e-6 to the norm
    assert norm_of(gradient_applied(by_norm)) == pytest.approx(0.5, rel=1e-5)
    assert metrics[-1]["train/gradient_norm"] == pytest.approx(norm_of(gradient), rel=1e-6)
    by_value, _ = train([batch], clip=0.01, lr=1.0, gradient_clip_algorithm="value")
    assert largest_difference(gradient_applied(by_value), [g.clamp(-0.01, 0.01) for g in gradient]) < 1e-12


def test_masks_depend_on_the_batch_alone():
    batch = batch_of(60, 52, seed=1)
    weights = []
    for seed, given in ((1, batch), (2, batch), (2, replace(batch, seed=2))):
        module = module_with("two views", dropout=0.2)
        torch.manual_seed(seed)
        tiny_trainer(1).fit(module, train_dataloaders=batches_loader([given]))
        weights.append([p.detach() for p in module.recognizer.parameters()])
    assert largest_difference(weights[0], weights[1]) == 0
    assert largest_difference(weights[0], weights[2]) > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_edens_rate_follows_the_updates_and_the_epochs(accumulate):
    module, metrics = tiny_module(), Metrics()
    module.schedule_factory = lambda optimizer: Eden(optimizer, lr_batches=3, lr_epochs=1.5)
    batches = [batch_of(60, 52, seed=seed) for seed in range(2 * accumulate)]
    trainer = tiny_trainer(8, [metrics], accumulate_grad_batches=accumulate)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    updates = metrics.seen[accumulate - 1 :: accumulate]
    # two updates per epoch
    assert [logged["train/epoch"] for logged in updates] == [0, 0, 1, 1, 2, 2, 3, 3]
    rates = [0.01 * (1 + (b / 3) ** 2) ** -0.25 * (1 + (b // 2 / 1.5) ** 2) ** -0.25 for b in range(8)]
    assert [logged["train/lr"] for logged in updates] == pytest.approx(rates, rel=1e-6)


class Listener(torch.nn.Module):
    """An encoder that keeps what it was told about the course of training."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.told = encoder, list[float]()

    def set_trained_seconds(self, audio_s: float) -> None:
        self.told.append(audio_s)

    def forward(self, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.encoder(features, num_frames)


def test_an_empty_update_under_a_gradient_scaler_moves_nothing():
    weights = []
    for batches in ([batch_of(60)], [unread("lost"), batch_of(60)], [batch_of(60), unread("lost")]):
        module, plugin = tiny_module(), MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
        trainer = tiny_trainer(len(batches), plugins=[plugin], gradient_clip_val=1.0)
        trainer.fit(module, train_dataloaders=batches_loader(batches))
        weights.append([p.detach() for p in module.recognizer.parameters()])
    assert largest_difference(weights[0], weights[1]) == largest_difference(weights[0], weights[2]) == 0


def test_updates_of_another_size_do_not_change_how_much_the_ones_before_may_have_held(tmp_path, monkeypatch):
    listeners = []

    def listening() -> TrainingModule:
        module = tiny_module()
        module.recognizer.encoder = Listener(module.recognizer.encoder)
        listeners.append(module.recognizer.encoder)
        return module

    monkeypatch.setattr(runs, "tiny_module", listening)
    for max_steps, accumulate in ((4, 1), (6, 2), (8, 2), (9, 1)):
        runs.run(tmp_path, max_steps, validate_every=None, accumulate_grad_batches=accumulate)
    told = [sorted(set(listener.told)) for listener in listeners]
    assert told == [[0.0, 10.0, 20.0, 30.0], [40.0, 60.0], [80.0, 100.0], [120.0]]


class ToldInValidation(pl.Callback):
    """Keeps what a `Listener` was told last before each validation, by update."""

    def __init__(self) -> None:
        self.told: dict[int, list[float]] = {}

    def on_validation_batch_start(self, trainer, pl_module, *_):
        self.told[trainer.global_step] = pl_module.recognizer.encoder.told[-1:]


def test_a_validation_counts_all_updates_before_it_also_after_a_resumption(tmp_path, monkeypatch):
    def listening() -> TrainingModule:
        module = tiny_module()
        module.recognizer.encoder = Listener(module.recognizer.encoder)
        return module

    monkeypatch.setattr(runs, "tiny_module", listening)
    stopped, resumed = ToldInValidation(), ToldInValidation()
    stop = Signalled("on_validation_batch_start", 6)
    with pytest.raises(Preempted):
        runs.run(tmp_path, 9, [stop, stopped, CheckpointCallback(tmp_path), Preemption()])
    runs.run(tmp_path, 9, [resumed])
    assert stopped.told == {3: [30.0], 6: [60.0]}
    assert resumed.told == {6: [60.0], 9: [90.0]}


def test_callbacks_see_the_numbers_of_every_update_and_loggers_those_of_the_logged_ones(tmp_path):
    logger = MetricsCsv(tmp_path)
    *_, seen = trained([batch_of(60, seed=seed) for seed in range(5)], logger=logger, log_every_n_steps=2)
    losses = [row["train/loss"] for row in seen]
    assert len(set(losses)) == 5
    rows = (line.split(",") for line in logger.path.read_text().splitlines())
    logged = {int(step): float(value) for step, name, value in rows if name == "train/loss"}
    # counted from 0; the last update is logged always
    assert logged == pytest.approx({1: losses[1], 3: losses[3], 4: losses[4]})
