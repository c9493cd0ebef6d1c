"""How fast batches are read, alone and while training: audio seconds per CPU second, and the trainer's waiting.

    python scripts/bench data [OVERRIDE …]        the overrides of asr-train, such as recipe=fsdd/transformer_ctc
    python scripts/bench data [OVERRIDE …] --versus OVERRIDE …

Alone: epochs through the loader with its workers, nothing else running; the median. While training: how much of the
time the trainer waits for the next batch, over 100 updates.

With --versus: epochs of the loader alone with the first overrides, and with the others beside them, in turns, such as
of files and of shards: --versus data.storage.kind=shar data.storage.dir=DIR.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from asr.data.loading.loader import LoaderFactory, load_batches
from asr.data.preparation.prepared import PreparedData
from asr.run.options import RunOptions
from asr.run.parts import build_recognizer, build_update_parts, num_threads
from bench.configs import loader, options_from
from bench.measure import Row, Setting, cpu_seconds, in_turns, ratio

NUM_REPEATS = 5
NUM_UPDATES = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is read."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of asr-train")
    parser.add_argument("--versus", nargs="+", default=[], metavar="OVERRIDE", help="further ones, to compare with")


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield how fast data are read, and how long updates wait for them, or how two ways to read them compare."""
    first, more = setting.options.overrides, setting.options.versus
    ways = [first, [*first, *more]] if more else [first]
    readers = [loader(options_from(*overrides)) for overrides in ways]
    rates = in_turns([epochs(*reader) for reader in readers], setting.options.repeats)
    for overrides, speeds in zip(ways, rates, strict=True):
        text = f"{statistics.median(speeds):.0f} audio seconds per CPU second ({min(speeds):.0f}–{max(speeds):.0f})"
        yield Row(f"loader alone, {' '.join(overrides) or 'default'}", text)
    if more:
        yield Row(f"with {' '.join(more)}, times as fast", ratio(rates[1], rates[0]))
        return
    waited, total = waiting(options_from(*first), setting.device, 3 if setting.small else NUM_UPDATES)
    yield Row("training", f"waited {waited:.2f} s of {total:.1f} s for batches: {100 * waited / total:.1f} %")


def epochs(loaders: LoaderFactory, prepared: PreparedData, perturb: Any) -> Callable[[], float]:
    """Return what reads one whole epoch after another, and returns audio seconds per CPU second."""
    (dataset, order), count = loaders.training_data(prepared.cuts("train"), 1, perturb), itertools.count()

    def read() -> float:
        start = cpu_seconds()
        audio_s = sum(batch.audio_s for batch in load_batches(dataset, order.epoch(next(count)), loaders.workers))
        return audio_s / (cpu_seconds() - start)

    return read


def endless(dataset: Any, order: Any, loaders: LoaderFactory) -> Iterator[Any]:
    """Yield batches of one epoch after another."""
    for epoch in range(1_000):
        yield from load_batches(dataset, order.epoch(epoch), loaders.workers)


def waiting(options: RunOptions, device: str, num_updates: int) -> tuple[float, float]:
    """Return the seconds that training steps wait for batches, and those that they take in all."""
    loaders, prepared, perturb = loader(options)
    torch.set_num_threads(num_threads(options.torch_threads, loaders.workers.count))
    recognizer = build_recognizer(options, prepared.tokenizer.vocab_size, prepared.mean, prepared.std).to(device)
    optimizer = build_update_parts(options).optimizer_factory(recognizer.named_parameters())
    batches = endless(*loaders.training_data(prepared.cuts("train"), 1, perturb), loaders)
    next(batches)  # starting the workers is not waiting
    waited, start = 0.0, time.monotonic()
    for _ in range(num_updates):
        if device != "cpu":
            torch.cuda.synchronize()  # what the device still does is no waiting for batches
        before = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - before
        batch = batch.to(device)
        generator = torch.Generator().manual_seed(batch.seed)
        losses = recognizer.losses(batch.features, batch.num_frames, batch.tokens, batch.num_tokens, generator)
        optimizer.zero_grad()
        (losses.total.sum() / batch.num_tokens.sum()).backward()
        optimizer.step()
    return waited, time.monotonic() - start
