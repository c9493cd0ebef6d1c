"""What an update of a run costs beside a bare loop of the same encoder, loss and optimizer, on the same batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from asr.data.loading.loader import Batch
from asr.data.loading.sampling import seed_for
from asr.features.specaugment import SpecAugment
from asr.models import devices
from asr.models.heads.ctc import CtcHead
from asr.run.options import RunOptions
from asr.run.parts import build_all, factories
from asr.run.trainer import build_trainer
from asr.tracking.metrics_csv import MetricsCsv
from asr.training.cuda_graphs import GraphedEncoder
from asr.training.module import TrainingModule
from bench.configs import FRAMES_PER_S, NUM_FEATURES, batch_of, build_encoder, options_from, training_module, with_head
from bench.measure import Row, Setting, until_error

MOST_OVERHEAD = 0.05
# encoders, and utterances of ten seconds
SIZES = {"zipformer_m": 32, "transformer_xs": 4}
SMALL_SIZES = {"transformer_xxs": 2}
SEEDS, WARM_UPS, UPDATES = 5, 20, 50
VOCAB_SIZE, NUM_TOKENS = 500, 10


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield for each encoder the time of an update in a run and in a bare loop, with CUDA graphs on a GPU."""
    for name, size in (SMALL_SIZES if setting.small else SIZES).items():
        check = f"{name}, {size} x 10 s: an update of a run"
        yield from until_error(check, _compared(setting, check, name, size), setting)


def _compared(setting: Setting, check: str, name: str, size: int) -> Iterator[Row]:
    options = options_from(setting.trainer, f"encoder={name}")
    length_s, seconds = 2.0 if setting.small else 10.0, []
    features = torch.randn(size, round(length_s * FRAMES_PER_S), NUM_FEATURES)
    batch = batch_of(features, torch.randint(1, VOCAB_SIZE, (size, NUM_TOKENS)), length_s)
    batch = batch.pin_memory() if torch.cuda.is_available() else batch
    for train in (_bare, _run):
        clock = Clock(*((2, 4) if setting.small else (WARM_UPS, UPDATES)), setting.on_gpu)
        # graphs for all that these seeds draw are captured before the clock begins
        batches = [replace(batch, seed=update % SEEDS) for update in range(clock.marks[1] + 1)]
        train(setting, options, _module(name), batches, clock)
        seconds.append(clock.seconds)
    bare, run = seconds
    goal = f"at most {1 + MOST_OVERHEAD:g} of the bare loop" if setting.on_gpu else ""
    value = f"{1e3 * run:.1f} ms, {run / bare:.3f} of the bare loop's {1e3 * bare:.1f} ms"
    yield Row(check, value, goal, run <= (1 + MOST_OVERHEAD) * bare if goal else None)


def _module(name: str) -> TrainingModule:
    encoder = build_encoder(name)
    return training_module(with_head(encoder, CtcHead(encoder.d_model, VOCAB_SIZE), SpecAugment()), 1e-5, 320.0)


class Clock(pl.Callback):
    """Takes the time before the first update that is measured, and after the last.

    Args:
        num_warm_ups: updates before.
        num: updates that are measured.
        on_gpu: whether to wait for a GPU first.
    """

    def __init__(self, num_warm_ups: int, num: int, on_gpu: bool) -> None:
        self.marks, self.num, self.on_gpu = (num_warm_ups, num_warm_ups + num), num, on_gpu
        self.times: list[float] = []

    def see(self, update: int) -> None:
        """Take the time if this many updates have been made."""
        if update in self.marks:
            if self.on_gpu:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Take the time in a run."""
        self.see(trainer.global_step)

    @property
    def seconds(self) -> float:
        """Of an update."""
        begin, end = self.times
        return (end - begin) / self.num


def _run(setting: Setting, options: RunOptions, module: TrainingModule, batches: list[Batch], clock: Clock) -> None:
    own = {"default_root_dir": str(setting.work), "max_steps": len(batches), "limit_val_batches": 0}
    callbacks = [*build_all(factories(options.callbacks, "callbacks"), setting.work, options), clock]
    trainer = build_trainer(options.trainer, [MetricsCsv(setting.work)], callbacks, **own)
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]


def _bare(setting: Setting, options: RunOptions, module: TrainingModule, batches: list[Batch], clock: Clock) -> None:
    """Train as a script would that is written for this model alone."""
    model, device = module.recognizer.to(setting.device).train(), torch.device(setting.device)
    optimizer, schedule = module.build_updates()
    encoder = GraphedEncoder(model.encoder) if setting.on_gpu else None

    def backward(batch: Batch) -> None:
        devices.seed(seed_for("dropout", batch.seed), device)  # a Zipformer draws what works in a pass
        given = batch.features, batch.num_frames, batch.tokens, batch.num_tokens
        with torch.autocast(device.type, torch.bfloat16, enabled=setting.on_gpu):
            losses = model.losses(*given, torch.Generator().manual_seed(batch.seed), encoder).total
        (losses.sum() / batch.num_tokens.sum()).backward()

    for update, batch in enumerate(batches):
        clock.see(update)
        model.set_trained_seconds(update * batch.audio_s)
        optimizer.zero_grad()
        backward(batch.to(device))
        clip_grad_norm_(model.parameters(), options.trainer.gradient_clip_val or torch.inf)
        optimizer.step()
        schedule.step()
