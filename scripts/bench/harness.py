"""What an update of a run costs beside a bare loop of the same encoder, loss and optimizer, on the same batches.

python scripts/bench harness-checkpoints     how long training stands still for a checkpoint, and what it costs
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from asr.training.callbacks.checkpoints import DurableCheckpointIO
from asr.training.cuda_graphs import GraphedEncoder
from asr.training.module import TrainingModule
from bench.configs import FRAMES_PER_S, NUM_FEATURES, batch_of, build_encoder, options_from, training_module, with_head
from bench.measure import Row, Setting, at_most, in_turns, ratio, until_error
from optim import AdamW

MOST_OVERHEAD = 0.05
MOST_STILL, NUM_MATRICES = 0.25, 100  # of the time of a checkpoint that is written at once; of a million parameters
# encoders, and utterances of ten seconds
SIZES = {"zipformer_m": 32, "transformer_xs": 4}
SMALL_SIZES = {"transformer_xxs": 2}
SEEDS, WARM_UPS, UPDATES = 5, 20, 50
VOCAB_SIZE, NUM_TOKENS = 500, 10


def rows(setting: Setting, what: str) -> Iterator[Row]:
    """Yield for each encoder the time of an update in a run and in a bare loop, with CUDA graphs on a GPU."""
    if what == "checkpoints":
        yield from _checkpoints(setting)
        return
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
    overrides = {"default_root_dir": str(setting.work), "max_steps": len(batches), "limit_val_batches": 0}
    callbacks = [*build_all(factories(options.callbacks, "callbacks"), setting.work, options), clock]
    trainer = build_trainer(options.trainer, [MetricsCsv(setting.work)], callbacks, **overrides)
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]


def _bare(setting: Setting, options: RunOptions, module: TrainingModule, batches: list[Batch], clock: Clock) -> None:
    """Train as a script would that is written for this model alone."""
    model, device = module.recognizer.to(setting.device).train(), torch.device(setting.device)
    optimizer, schedule = module.build_updates()
    encoder = GraphedEncoder(model.encoder) if setting.on_gpu else None

    def backward(batch: Batch) -> None:
        devices.seed(seed_for("dropout", batch.seed), device)  # a Zipformer draws what works in a pass
        inputs = batch.features, batch.num_frames, batch.tokens, batch.num_tokens
        with torch.autocast(device.type, torch.bfloat16, enabled=setting.on_gpu):
            losses = model.losses(*inputs, torch.Generator().manual_seed(batch.seed), encoder).total
        (losses.sum() / batch.num_tokens.sum()).backward()

    for update, batch in enumerate(batches):
        clock.see(update)
        model.set_trained_seconds(update * batch.audio_s)
        optimizer.zero_grad()
        backward(batch.to(device))
        clip_grad_norm_(model.parameters(), options.trainer.gradient_clip_val or torch.inf)
        optimizer.step()
        schedule.step()


def _checkpoints(setting: Setting) -> Iterator[Row]:
    """Yield how long updates by AdamW wait for a checkpoint of all parameters and statistics, and what it costs."""
    num_matrices = 3 if setting.small else NUM_MATRICES
    weights = [torch.nn.Parameter(torch.randn(1000, 1000, device=setting.device)) for _ in range(num_matrices)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = AdamW(weights, lr=1e-5)

    def clock() -> float:
        if setting.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def pace() -> tuple[float, float, int]:
        begin = clock()
        for _ in range(3):
            optimizer.step()
        return 0.0, (clock() - begin) / 3, 1

    def save(io: DurableCheckpointIO) -> tuple[float, float, int]:
        begin, num = clock(), 0
        tensors = {str(place): weight.detach() for place, weight in enumerate(weights)}
        state = {"state_dict": tensors, "optimizer_states": [optimizer.state_dict()]}
        io.save_checkpoint(state, setting.work / "update-000001.ckpt")
        still = time.perf_counter() - begin
        while io.writing is not None and not io.writing.done():
            optimizer.step()
            num += 1
        io.wait()
        return still, clock() - begin, num

    optimizer.step()  # the statistics are new
    kinds = {"at once": DurableCheckpointIO(), "in the background": DurableCheckpointIO(in_background=True)}
    steps: list[Callable[[], tuple[float, float, int]]] = [pace, *(partial(save, io) for io in kinds.values())]
    updates, *saves = in_turns(steps, setting.options.repeats)
    update_s = [seconds for _, seconds, _ in updates]
    at_once_s = [still_s for still_s, _, _ in saves[0]]
    for kind, found in zip(kinds, saves, strict=True):
        yield Row(f"{num_matrices} M parameters, written {kind}", _waiting(found, update_s, at_once_s))
    share = statistics.median(still / other for (still, _, _), other in zip(saves[1], at_once_s, strict=True))
    check = "training stands still in the background, of the time at once"
    yield Row(check, f"{share:.3g}") if setting.small else at_most(check, share, MOST_STILL)


def _waiting(
    saves: Sequence[tuple[float, float, int]], update_s: Sequence[float], at_once_s: Sequence[float]
) -> dict[str, str]:
    """Return what a kind of checkpoint costs, from seconds of standing still, seconds in all, and updates meanwhile."""
    still_s, whole_s, nums = zip(*saves, strict=True)
    lost_s = [whole - num * update for whole, num, update in zip(whole_s, nums, update_s, strict=True)]
    return {
        "stands still, s": f"{statistics.median(still_s):.2f}",
        "of that at once": ratio(still_s, at_once_s),
        "costs in all, s": f"{statistics.median(lost_s):.2f} ({min(lost_s):.2f}–{max(lost_s):.2f})",
        "updates meanwhile": f"{statistics.median(nums):.0f}",
    }
