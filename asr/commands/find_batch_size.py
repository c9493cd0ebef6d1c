"""``asr-train find_batch_size=true``: measures how many seconds of audio fit into memory, instead of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from rich.table import Table

from asr.config.build import num_threads
from asr.config.trainer import build_trainer
from asr.console import PlainConsole
from asr.data.loading.data_module import DataModule
from asr.data.preparation.prepared import PreparedData
from asr.subprocesses import is_first_process
from asr.training.batch_size_search import USABLE, BatchSizeSearch, search_batch_size
from asr.training.module import TrainingModule

FAR = 2.0  # a proposal of more than this times what was measured must be measured itself
# one device stands for all, every micro-batch is an update, and nothing is written
ALONE: dict[str, Any] = {
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "accumulate_grad_batches": 1,
    "enable_checkpointing": False,
    "limit_val_batches": 0,
}

console = PlainConsole(quiet=not is_first_process())


def find_batch_size(
    config: Mapping[str, Any],
    prepared: PreparedData,
    data_module: DataModule,
    perturb: Any,
    module: TrainingModule,
    trainer: pl.Trainer,
) -> None:
    """Measure, print a table, and propose ``data.batch.max_duration_s``.

    ``perturb`` is the augmentation of the audio: its slowest speed is measured, which makes the longest cuts.
    ``trainer`` knows the processes of the run.
    """
    if not is_first_process():
        return
    torch.set_num_threads(num_threads(config.get("torch_threads"), data_module.workers.count))
    slowest = perturb.slowest() if hasattr(perturb, "slowest") else perturb
    dataset, sampler = data_module.training_data(prepared.cuts("train"), config["seed"], slowest)

    def make_trainer(callbacks: list[pl.Callback], num_updates: int) -> pl.Trainer:
        return build_trainer(config, [], callbacks, **ALONE, max_steps=num_updates)

    # DDP keeps a second copy of the gradients in its buckets
    copies = 0
    if trainer.world_size > 1:
        copies = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    console.print_line("measuring updates on the largest micro-batch of every duration bucket")
    text_lengths = prepared.ctc_lengths("train").num_ctc_frames
    found = search_batch_size(module, dataset, sampler, text_lengths, make_trainer, copies, trainer.num_devices)
    console.print(_table(found))
    for line in _conclusion(found, data_module.batch.max_duration_s):
        console.print_line(line)


def _table(found: BatchSizeSearch) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for column in ("utterances", "longest s", "counted s", "peak MB", "s per update"):
        table.add_column(column, justify="right")
    for bucket in found.buckets:
        whole = bucket.sizes[-1]
        peak = "does not fit" if whole.peak is None else f"{whole.peak / 2**20:.0f}"
        seconds = "" if math.isnan(whole.seconds) else f"{whole.seconds:.3f}"
        table.add_row(str(whole.num_cuts), f"{whole.longest_s:.1f}", f"{whole.counted_s:.1f}", peak, seconds)
    return table


def _conclusion(found: BatchSizeSearch, now_s: float) -> list[str]:
    """Return the conclusions from the table, as sentences."""
    base = max(bucket.base for bucket in found.buckets) / 2**20
    lines = [
        f"measured on {found.device}: {found.available / 2**20:.0f} MB for this process, {100 * USABLE:.0f} % of it to "
        f"be used; weights, gradients and optimizer take {base:.0f} MB"
    ]
    proposed = found.proposed_s
    if proposed == math.inf:
        again = f"memory did not grow measurably: raise data.batch.max_duration_s (now {now_s:g}) and search again"
        return [*lines, again]
    if proposed == 0:
        smaller = "choose a smaller encoder, or lower data.limits.max_duration_s"
        return [*lines, f"not even the smallest micro-batch fits: {smaller}"]
    lines.append(f"proposed: data.batch.max_duration_s={proposed:g} (now {now_s:g}), the largest that fits")
    longest = max(size.counted_s / size.num_cuts for bucket in found.buckets for size in bucket.sizes)
    if proposed < longest:
        limit = "lower data.limits.max_duration_s"
        lines.append(f"the longest utterances count {longest:.1f} s each, and do not fit: {limit}")
    if proposed > FAR * max(size.counted_s for bucket in found.buckets for size in bucket.sizes):
        lines.append("that is far beyond what was measured: search again with it before you train with it")
    if proposed > now_s:
        lines.append("larger micro-batches make larger, and fewer, updates: another learning rate may suit them")
    return lines
