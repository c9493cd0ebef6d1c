"""What an update is: nats per token whatever the accumulation, and nothing that is not finite."""

from dataclasses import replace

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from asr.data.batch import Batch
from asr.decoding.ctc_greedy import CtcGreedy
from asr.features.normalise import GlobalNorm
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recogniser import Recogniser
from asr.text.character import CharacterTokenizerTrainer
from asr.training.module import TrainingModule

NUM_FEATURES = 8
TOKENIZER = CharacterTokenizerTrainer().train(["abc"])


def batch_of(*lengths: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    size, longest = len(lengths), max(lengths)
    num_tokens = torch.tensor([1 + index % 3 for index in range(size)])
    return Batch(
        features=torch.randn(size, longest, NUM_FEATURES, generator=generator),
        num_frames=torch.tensor(lengths),
        tokens=torch.randint(2, TOKENIZER.vocab_size, (size, 3), generator=generator),
        num_tokens=num_tokens,
        ids=tuple(f"cut{index}" for index in range(size)),
        texts=("abc",) * size,
        speakers=(None,) * size,
        audio_s=longest * size / 100,
        seed=seed,
    )


def half(batch: Batch, rows: slice) -> Batch:
    tensors = ("features", "num_frames", "tokens", "num_tokens", "ids", "texts", "speakers")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in tensors}, audio_s=batch.audio_s / 2)


class Metrics(pl.Callback):
    """Keeps what was logged at every update."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def train(batches: list[Batch], accumulate: int = 1, clip: float | None = None) -> tuple[list[torch.Tensor], Metrics]:
    torch.manual_seed(0)
    encoder = TransformerEncoder(NUM_FEATURES, 12, 1, 2, 16, dropout=0.0, subsampling_channels=2)
    head = CtcHead(12, TOKENIZER.vocab_size)
    recogniser = Recogniser(encoder, head, GlobalNorm([0.0] * NUM_FEATURES, [1.0] * NUM_FEATURES))
    module = TrainingModule(
        recogniser,
        TOKENIZER,
        CtcGreedy(),
        lambda named: torch.optim.AdamW([p for _, p in named], lr=0.01),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0),
        dev_names=[],
        extra_state={},
    )
    metrics = Metrics()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=len(batches) // accumulate,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[metrics],
    )
    trainer.fit(module, train_dataloaders=DataLoader(batches, batch_size=None))
    return [p.detach() for p in recogniser.parameters()], metrics


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulating_parts_of_a_batch_is_the_whole_batch(clip):
    whole = [batch_of(60, 52, 40, 33, 21, seed=seed) for seed in range(4)]
    # unequal parts: an average of averages would differ
    parts = [half(batch, rows) for batch in whole for rows in (slice(0, 1), slice(1, 5))]
    one, seen = train(whole, clip=clip)
    two, seen_parts = train(parts, accumulate=2, clip=clip)
    assert largest_difference(one, two) < 1e-5
    assert seen.seen[-1]["train/loss"] == pytest.approx(seen_parts.seen[-1]["train/loss"], rel=1e-4)
    assert seen.seen[-1]["train/gradient_norm"] == pytest.approx(seen_parts.seen[-1]["train/gradient_norm"], rel=1e-4)
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
    assert seen_together.seen[0]["train/loss"] == pytest.approx(seen.seen[0]["train/loss"], rel=1e-5)
    assert largest_difference(alone, together) < 1e-5


def test_an_update_that_is_not_finite_leaves_weights_and_averages_alone():
    good = [batch_of(60, 40, seed=seed) for seed in range(3)]
    bad = batch_of(60, 40, seed=9)
    bad.features[0, 3, 2] = float("nan")
    clean, _ = train(good)
    skipped, _ = train([good[0], bad, bad, *good[1:]])
    assert largest_difference(clean, skipped) == 0
    assert all(p.isfinite().all() for p in skipped)


def test_many_such_updates_in_a_row_end_the_training():
    bad = batch_of(60, 40)
    bad.features[:] = float("inf")
    with pytest.raises(RuntimeError, match=r"not finite.*optimizer\.lr"):
        train([bad] * 60)
