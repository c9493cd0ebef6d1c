"""A recognizer of a few hundred weights and its training, small enough for a test of one update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from asr.data.loading.loader import Batch
from asr.decoding.greedy import CtcGreedy
from asr.features.log_mel import GlobalNorm
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizerTrainer
from asr.training.module import TrainingModule

NUM_FEATURES = 8
TOKENIZER = CharacterTokenizerTrainer().train(["abc"])


def batch_of(*lengths: int, seed: int = 0, num_features: int = NUM_FEATURES) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    size, longest = len(lengths), max(lengths)
    num_tokens = torch.tensor([1 + index % 3 for index in range(size)])
    return Batch(
        features=torch.randn(size, longest, num_features, generator=generator),
        num_frames=torch.tensor(lengths),
        tokens=torch.randint(2, TOKENIZER.vocab_size, (size, 3), generator=generator),
        num_tokens=num_tokens,
        ids=tuple(f"cut{index}" for index in range(size)),
        texts=("abc",) * size,
        speakers=(None,) * size,
        audio_s=longest * size / 100,
        seed=seed,
    )


class Metrics(pl.Callback):
    """Keeps what was logged at every update."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def adamw(named) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in named], lr=0.01)


def sgd(named, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named], lr=lr)


def tiny_module(optimizer_factory: Callable[[Any], torch.optim.Optimizer] = adamw) -> TrainingModule:
    torch.manual_seed(0)
    encoder = TransformerEncoder(NUM_FEATURES, 12, 1, 2, 16, dropout=0.0, subsampling_channels=2)
    head = CtcHead(12, TOKENIZER.vocab_size)
    return TrainingModule(
        Recognizer(encoder, head, GlobalNorm([0.0] * NUM_FEATURES, [1.0] * NUM_FEATURES)),
        TOKENIZER,
        CtcGreedy(),
        optimizer_factory,
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0),
        dev_names=[],
        max_duration_s=10.0,
        extra_state={},
    )


def tiny_trainer(max_steps: int, callbacks: Sequence[pl.Callback] = (), **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_steps=max_steps,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False, **options},
    )


def batches_loader(batches: Sequence[Batch]) -> DataLoader:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def trained(
    batches: Sequence[Batch],
    module: TrainingModule | None = None,
    callbacks: Sequence[pl.Callback] = (),
    accumulate: int = 1,
    **options: Any,
) -> tuple[TrainingModule, pl.Trainer, list[dict[str, float]]]:
    """Train on all batches; return the module, its trainer, and what was logged after each micro-batch."""
    module, metrics = module or tiny_module(), Metrics()
    options["accumulate_grad_batches"] = accumulate
    trainer = tiny_trainer(len(batches) // accumulate, [metrics, *callbacks], **options)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    return module, trainer, metrics.seen


class GivenData(pl.LightningDataModule):
    """Batches as they are given."""

    def __init__(self, train: Sequence[Batch], dev: Sequence[Batch] = ()) -> None:
        super().__init__()
        self.train, self.dev = train, dev

    def train_dataloader(self) -> DataLoader:
        return batches_loader(self.train)

    def val_dataloader(self) -> list[DataLoader]:
        return [batches_loader(self.dev)] if self.dev else []


class Unsized:
    """Batches without a length, like those of `EvaluationLoader`: Lightning skips a validation of length 0."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)
