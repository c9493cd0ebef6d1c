"""What an update is: nats per token whatever the accumulation."""

from dataclasses import replace

import pytest
import torch

from asr.data.loading.batch import Batch
from asr.training.module import TrainingModule
from tests.training import runs
from tests.training.tiny import Metrics, batch_of, batches_loader, tiny_module, tiny_trainer


def half(batch: Batch, rows: slice) -> Batch:
    tensors = ("features", "num_frames", "tokens", "num_tokens", "ids", "texts", "speakers")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in tensors}, audio_s=batch.audio_s / 2)


def sgd(named) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named], lr=0.05)


def train(batches: list[Batch], accumulate: int = 1, clip: float | None = None) -> tuple[list[torch.Tensor], Metrics]:
    """Train in double precision with SGD: Adam turns the rounding of a gradient near zero into a whole step."""
    module, metrics = tiny_module(sgd).double(), Metrics()
    batches = [replace(batch, features=batch.features.double()) for batch in batches]
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    trainer = tiny_trainer(len(batches) // accumulate, [metrics], **options)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    return [p.detach() for p in module.recognizer.parameters()], metrics


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
    assert seen.seen[-1]["train/loss"] == pytest.approx(seen_parts.seen[-1]["train/loss"], rel=1e-6)
    assert seen.seen[-1]["train/gradient_norm"] == pytest.approx(seen_parts.seen[-1]["train/gradient_norm"], rel=1e-6)
    assert seen_parts.seen[-1]["train/utterances"] == 5


def test_the_loss_is_per_token_and_impossible_transcripts_do_not_count():
    possible = batch_of(60, 52)
    # three equal tokens need five frames; eleven input frames leave two
    impossible = batch_of(60, 52, 11)
    impossible.tokens[:2], impossible.num_tokens[:2] = possible.tokens, possible.num_tokens
    impossible.features[:2] = possible.features
    impossible.tokens[2], impossible.num_tokens[2] = 2, 3
    alone, seen = train([possible])
    together, seen_together = train([impossible])
    assert seen_together.seen[0]["train/loss"] == pytest.approx(seen.seen[0]["train/loss"], rel=1e-6)
    assert largest_difference(alone, together) < 1e-12


class Listener(torch.nn.Module):
    """An encoder that keeps what it was told about the course of training."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.told = encoder, list[float]()

    def set_batch_count(self, audio_s: float) -> None:
        self.told.append(audio_s)

    def forward(self, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.encoder(features, num_frames)


def test_an_encoder_is_told_how_much_audio_the_updates_so_far_may_have_held():
    module = tiny_module()
    module.recognizer.encoder = listener = Listener(module.recognizer.encoder)
    trainer = tiny_trainer(3, accumulate_grad_batches=2)
    trainer.fit(module, train_dataloaders=batches_loader([batch_of(60, 52, seed=seed) for seed in range(6)]))
    assert listener.told == [0.0, 0.0, 20.0, 20.0, 40.0, 40.0]


def test_updates_of_another_size_do_not_change_how_much_the_ones_before_may_have_held(tmp_path, monkeypatch):
    listeners = []

    def listening() -> TrainingModule:
        module = tiny_module()
        module.recognizer.encoder = Listener(module.recognizer.encoder)
        listeners.append(module.recognizer.encoder)
        return module

    monkeypatch.setattr(runs, "tiny_module", listening)
    for max_steps, accumulate in ((4, 1), (6, 2), (8, 2), (9, 1)):
        runs.run(tmp_path, max_steps, accumulate_grad_batches=accumulate)
    told = [sorted(set(listener.told)) for listener in listeners]
    assert told == [[0.0, 10.0, 20.0, 30.0], [40.0, 60.0], [80.0, 100.0], [120.0]]
