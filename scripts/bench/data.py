"""How fast batches are read, alone and while training: audio seconds per CPU second, and the trainer's waiting.

    python scripts/bench_data.py [OVERRIDE …]        the overrides of asr-train, such as recipe=fsdd/transformer_ctc
    python scripts/bench_data.py [OVERRIDE …] --versus OVERRIDE …

With --versus: epochs of the loader alone with the first overrides, and with the others beside them, in turns, such as
of files and of shards: --versus data.storage.kind=shar data.storage.dir=DIR.

Alone: one epoch through the loader with its workers, nothing else running; three times, the median. While training: how
much of the time the trainer waits for the next batch, over 100 updates.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from asr.commands.app import quieten
from asr.config.build import build_data_parts, build_recognizer, build_update_parts, num_threads, plain
from asr.config.data import data_for_run
from asr.config.help import CONFIGS
from asr.data.loading.loader import DataModule, load_batches
from asr.data.preparation.prepared import PreparedData

NUM_REPEATS = 3
NUM_PAIRS = 7
NUM_UPDATES = 100


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of its finished workers."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def loader_alone(data_module: DataModule, prepared: PreparedData, perturb: Any, epoch: int) -> float:
    """Print, and return, audio seconds per CPU second of a whole epoch."""
    dataset, order = data_module.training_data(prepared.cuts("train"), 1, perturb)
    start_cpu, start = cpu_seconds(), time.monotonic()
    audio_s = sum(batch.audio_s for batch in load_batches(dataset, order.epoch(epoch), data_module.workers))
    cpu, wall = cpu_seconds() - start_cpu, time.monotonic() - start
    print(f"loader alone: {audio_s:.0f} s of audio in {cpu:.1f} CPU s, {wall:.1f} s: {audio_s / cpu:.0f} per CPU s")
    return audio_s / cpu


def versus(first: list[str], more: list[str]) -> None:
    """Print how the loader alone compares with more overrides, from epochs in turns."""
    readers = []
    for overrides in (first, [*first, *more]):
        config = composed(overrides)
        prepared, parts = data_for_run(config), build_data_parts(config)
        data_module = DataModule(parts.features, prepared.tokenizer, parts.batch, parts.workers)
        readers.append((data_module, prepared, parts.perturb))
    pairs = [[loader_alone(*reader, epoch) for reader in readers] for epoch in range(NUM_PAIRS)]
    ratios = sorted(other / base for base, other in pairs)
    base, other = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    print(
        f"{' '.join(more)}: {other:.0f} audio seconds per CPU second, {base:.0f} without: "
        f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f} to {ratios[-1]:.2f}, {NUM_PAIRS} pairs)"
    )


def endless(dataset: Any, order: Any, data_module: DataModule) -> Iterator[Any]:
    """Yield batches of one epoch after another."""
    for epoch in range(1_000):
        yield from load_batches(dataset, order.epoch(epoch), data_module.workers)


def waiting(
    config: dict[str, Any],
    data_module: DataModule,
    prepared: PreparedData,
    perturb: Any,
    device: str = "cpu",
    num_updates: int = NUM_UPDATES,
) -> tuple[float, float]:
    """Return the seconds that training steps wait for batches, and those that they take in all."""
    torch.set_num_threads(num_threads(config["torch_threads"], build_data_parts(config).workers.count))
    recognizer = build_recognizer(config, prepared.tokenizer.vocab_size, prepared.mean, prepared.std).to(device)
    optimizer = build_update_parts(config).optimizer_factory(recognizer.named_parameters())
    batches = endless(*data_module.training_data(prepared.cuts("train"), 1, perturb), data_module)
    next(batches)  # starting the workers is not waiting
    waited, start = 0.0, time.monotonic()
    for _ in range(num_updates):
        if device != "cpu":
            torch.cuda.synchronize()  # what the device still does is no waiting for batches
        asked = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - asked
        batch = batch.to(device)
        generator = torch.Generator().manual_seed(batch.seed)
        losses = recognizer.losses(batch.features, batch.num_frames, batch.tokens, batch.num_tokens, generator)
        optimizer.zero_grad()
        (losses.total.sum() / batch.num_tokens.sum()).backward()
        optimizer.step()
    return waited, time.monotonic() - start


def composed(overrides: list[str]) -> dict[str, Any]:
    """Return the config of asr-train with overrides."""
    quieten()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return plain(compose("train", overrides=overrides))


def main(overrides: list[str]) -> None:
    """Run both measurements on the data of a composed config, or compare two."""
    if "--versus" in overrides:
        place = overrides.index("--versus")
        versus(overrides[:place], overrides[place + 1 :])
        return
    config = composed(overrides)
    prepared, parts = data_for_run(config), build_data_parts(config)
    data_module = DataModule(parts.features, prepared.tokenizer, parts.batch, parts.workers)
    rates = [loader_alone(data_module, prepared, parts.perturb, epoch) for epoch in range(NUM_REPEATS)]
    print(f"loader alone, median of {NUM_REPEATS}: {statistics.median(rates):.0f} audio seconds per CPU second")
    waited, total = waiting(config, data_module, prepared, parts.perturb)
    print(f"training: waited {waited:.2f} s of {total:.1f} s for batches: {100 * waited / total:.1f} %")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit()
    main(sys.argv[1:])
