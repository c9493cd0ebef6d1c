"""What more processes bring: updates and audio per second, where the time goes, and memory, with DDP and FSDP2.

    python scripts/bench scale --device cuda         on whatever is there, 1, 2, 4 and 8 processes

One thread per process on a CPU, and as much audio per process whatever their number. The share of communication is the
time that as many processes without any would save. A rank's parameters, gradients and state are counted, and its peak
memory is measured. torchrun starts this file too, as ``scale.py KIND DEVICE UPDATES FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from asr.features.log_mel import GlobalNorm
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer
from bench.distributed import run_ranks
from bench.measure import Row, Setting, peak_mb
from bench.output import positive
from optim import AdamW

KINDS = {"none": "no communication", "ddp": "DDP", "fsdp": "FSDP2"}
BATCH, FRAMES, NUM_FEATURES, VOCABULARY, WIDTH, LAYERS = 8, 800, 80, 500, 192, 6


class Loss(nn.Module):
    """The loss of a recognizer, which DDP and FSDP2 wrap."""

    def __init__(self) -> None:
        super().__init__()
        encoder = TransformerEncoder(NUM_FEATURES, WIDTH, LAYERS, 4, 4 * WIDTH, dropout=0.0)
        norm = GlobalNorm([0.0] * NUM_FEATURES, [1.0] * NUM_FEATURES)
        head: Any = CtcHead(WIDTH, VOCABULARY)
        self.recognizer = Recognizer(encoder, head, norm)

    def forward(self, features: Tensor, num_frames: Tensor, tokens: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return self.recognizer.losses(features, num_frames, tokens, num_tokens).total.sum()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the numbers."""
    parser.add_argument("--processes", type=positive, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--updates", type=positive, default=10, help="that are timed")


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield a row for each number of processes and kind."""
    numbers = [1, 2] if setting.small else setting.options.processes
    if setting.on_gpu:
        numbers = [number for number in numbers if number <= torch.cuda.device_count()]
    updates = 2 if setting.small else setting.options.updates
    single = 0.0
    for number in numbers:
        idle = _run("none", number, updates, setting)
        single = single or idle["seconds"]
        for kind in ("ddp", "fsdp") if number > 1 else ("none",):
            measurements = idle if kind == "none" else _run(kind, number, updates, setting)
            seconds = measurements["seconds"]
            value = {
                "updates/s": f"{1 / seconds:.2f}",
                "audio s/s": f"{number * BATCH * FRAMES / 100 / seconds:.0f}",
                "efficiency": f"{single / seconds:.0%}",
                "communication": f"{max(0.0, 1 - idle['seconds'] / seconds):.0%}",
                "data": f"{measurements['data'] / seconds:.0%}",
                "optimizer": f"{measurements['optimizer'] / seconds:.0%}",
                "parameters, gradients, state, MB": f"{measurements['held_mb']:.1f}",
                "peak MB": f"{measurements['mb']:.0f}",
            }
            yield Row(f"{number} process{'es' * (number > 1)}{', ' + KINDS[kind] if number > 1 else ''}", value)


def _run(kind: str, number: int, updates: int, setting: Setting) -> dict[str, float]:
    """Return what the slowest process has measured, in processes of their own."""
    file = setting.work / f"{kind}-{number}.json"
    words = __file__, kind, setting.device, str(updates), str(file)
    done = run_ranks(number, *words, OMP_NUM_THREADS="1")
    if done.returncode:
        raise SystemExit(f"{number} processes, {KINDS[kind]}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(file.read_text())
    return found


def measured(kind: str, device: str, num_updates: int) -> dict[str, float]:
    """Train on made-up batches; return seconds per update, of them for data and optimizer, and peak memory."""
    torch.manual_seed(0)
    model: Any = Loss().to(device)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        for layer in model.recognizer.encoder.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    spent = {"data": 0.0, "model": 0.0, "optimizer": 0.0}
    for update in range(-2, num_updates):  # the first two are not timed
        if update == 0:
            spent = dict.fromkeys(spent, 0.0)
        begun = time.perf_counter()
        batch = _batch(update, device)
        loaded = time.perf_counter()
        model(*batch).backward()
        wait()
        derived = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        wait()
        for name, seconds in (("data", loaded - begun), ("model", derived - loaded)):
            spent[name] += seconds
        spent["optimizer"] += time.perf_counter() - derived
    each = {name: seconds / num_updates for name, seconds in spent.items()}
    weights: list[Tensor] = [*model.parameters()]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors = [*weights, *weights, *states]  # gradients are as large as the parameters
    held = sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)
    return {**each, "seconds": sum(each.values()), "held_mb": held / 2**20, "mb": peak_mb()}


def _batch(seed: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed + 100)
    features = torch.randn(BATCH, FRAMES, NUM_FEATURES, generator=generator)
    tokens = torch.randint(1, VOCABULARY, (BATCH, 20), generator=generator)
    numbers = torch.full((BATCH,), FRAMES), tokens, torch.full((BATCH,), 20)
    return [x.to(device) for x in (features, *numbers)]


if __name__ == "__main__":
    kind, device, updates, path = sys.argv[1:]
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, measured(kind, device, int(updates)))
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(max(everyone, key=lambda one: one["seconds"])))
    dist.destroy_process_group()
