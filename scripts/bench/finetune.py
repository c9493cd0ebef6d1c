"""Compare an update of fine-tuning with one of Hugging Face's Trainer: time, CPU seconds and memory.

    python scripts/bench finetune [--updates 8] [--utterances 4] [--seconds 4] [--model FOLDER|base]

Both train CTC on the same model and batches with AdamW, with frozen convolutions and clipped gradients, in turns, each
time in a new process: in 32 bits, or with --device cuda in bf16. Medians of all updates but the first two; memory is
the peak of the process, or of its tensors on the GPU, and what training adds to it. Without --model, the model is a
small wav2vec2 with random weights; ``base`` has the size of wav2vec2-base.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.measure import Row, Setting, alone, in_turns, peak_mb, ratio
from bench.output import positive

VOCAB, TOKENS_PER_S, RATE_HZ, LR, NUM_WARM_UPS = 32, 12, 16_000, 1e-4, 2


class Clock:
    """Wall and CPU seconds of updates, and what training adds to memory."""

    def __init__(self) -> None:
        self.start_mb = peak_mb()
        self.times: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Note the end of an update."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.times.append((time.perf_counter(), time.process_time()))

    def numbers(self) -> dict[str, float]:
        """Return medians."""
        steps = [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(self.times[NUM_WARM_UPS:])]
        wall, cpu = (statistics.median(column) for column in zip(*steps, strict=True))
        return {"wall s": wall, "CPU s": cpu, "peak MB": peak_mb(), "added MB": peak_mb() - self.start_mb}


def data(options: argparse.Namespace) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return audio (B, N) and tokens (B, U) of each update."""
    torch.manual_seed(0)
    audio = (options.utterances, options.seconds * RATE_HZ)
    tokens = (options.utterances, options.seconds * TOKENS_PER_S)
    return [(torch.randn(audio), torch.randint(2, VOCAB, tokens)) for _ in range(options.updates + NUM_WARM_UPS + 1)]


def ours(options: argparse.Namespace) -> dict[str, float]:
    """Train with the updates of asr-train."""
    import lightning.pytorch as pl

    from asr.models.encoders.pretrained import PretrainedEncoder
    from asr.models.heads.ctc import CtcHead
    from bench.configs import batch_of, training_module, with_head

    frame = RATE_HZ // 100
    encoder = PretrainedEncoder(frame, options.model)
    recognizer = with_head(encoder, CtcHead(encoder.d_model, VOCAB, dropout=0.1), num_features=frame)
    module = training_module(recognizer, LR, 1e9)
    batches = [
        batch_of(audio.unflatten(1, (-1, frame)), tokens, options.seconds, seed)
        for seed, (audio, tokens) in enumerate(data(options))
    ]
    clock = Clock()
    callback = pl.Callback()
    callback.on_train_batch_end = lambda *args: clock.tick()  # type: ignore[method-assign]
    silent: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = pl.Trainer(
        accelerator="gpu" if options.device == "cuda" else "cpu",
        precision="bf16-mixed" if options.device == "cuda" else "32-true",
        max_steps=len(batches),
        gradient_clip_val=1.0,
        callbacks=[callback],
        enable_model_summary=False,
        **silent,
    )
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return clock.numbers()


def theirs(options: argparse.Namespace) -> dict[str, float]:
    """Train with transformers.Trainer."""
    from transformers import AutoModelForCTC, Trainer, TrainerCallback, TrainingArguments

    fixed = {"vocab_size": VOCAB, "pad_token_id": 0, "layerdrop": 0.0, "mask_time_prob": 0.0}
    model = AutoModelForCTC.from_pretrained(options.model, **fixed)
    model.freeze_feature_encoder()
    batches = data(options)
    examples = [(audio[i], tokens[i]) for audio, tokens in batches for i in range(options.utterances)]

    class OnStepEnd(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    def collate(chosen: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        audio, labels = map(torch.stack, zip(*chosen, strict=True))
        return {"input_values": audio, "labels": labels}

    arguments = TrainingArguments(
        output_dir=options.scratch,
        per_device_train_batch_size=options.utterances,
        max_steps=len(batches),
        learning_rate=LR,
        max_grad_norm=1.0,
        use_cpu=options.device == "cpu",
        bf16=options.device == "cuda",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    clock = Clock()
    with contextlib.redirect_stdout(sys.stderr):
        Trainer(model, arguments, collate, examples, callbacks=[OnStepEnd()]).train()
    return clock.numbers()


def random_model(folder: str, is_base: bool) -> None:
    """Write a wav2vec2 of the base model's size, or of a quarter of its width and half of its layers."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    small: dict[str, Any] = {
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "conv_dim": [128] * 7,
    }
    Wav2Vec2Model(Wav2Vec2Config(**({} if is_base else small))).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is trained on what."""
    for name, default in (("updates", 8), ("utterances", 4), ("seconds", 4)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--model", help="a folder, or base (default: a small one)")


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield medians and ratios of updates of both."""
    options = setting.options
    options.scratch = str(setting.work)
    if options.model in (None, "base"):
        alone(random_model, f"{setting.work}/model", options.model == "base")
        options.model = f"{setting.work}/model"
    mine, others = in_turns([partial(alone, train, options) for train in (ours, theirs)], options.repeats)
    for name in mine[0]:
        columns = [[found[name] for found in side] for side in (mine, others)]
        medians = (f"{statistics.median(column):.3f}" for column in columns)
        yield Row(name, dict(zip(("ours", "theirs", "ratio"), (*medians, ratio(*columns)), strict=True)))
