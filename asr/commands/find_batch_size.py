"""``asr-train find_batch_size=true``: measures how many seconds of audio fit into a GPU, instead of training."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from asr.models.recognizer import is_pretrained
from asr.processes import is_first_process
from asr.run.build import Run
from asr.run.parts import num_threads
from asr.run.trainer import build_trainer
from asr.training.batch_size_search import search_batch_size
from werdict.console import PlainConsole

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


def find_batch_size(run: Run) -> None:
    """Measure, print a table, and propose ``data.batch.max_duration_s``."""
    if not is_first_process():
        return
    options, loaders, module = run.options, run.loaders, run.module
    torch.set_num_threads(num_threads(options.torch_threads, loaders.workers.count))
    augmentation: Any = run.outline.data.augmentation
    # which makes the longest cuts
    slowest = augmentation.slowest() if hasattr(augmentation, "slowest") else augmentation
    dataset, sampler = loaders.training_data(run.prepared.cuts("train"), options.seed, slowest)

    encoder: Any = module.recognizer.encoder
    if is_pretrained(encoder):
        encoder.freeze_updates = 0  # later updates take more memory

    def make_trainer(num_updates: int) -> pl.Trainer:
        return build_trainer(options.trainer, [], [], **ALONE, max_steps=num_updates)

    # DDP keeps a second copy of the gradients in its buckets
    copies = 0
    if run.outline.trainer.world_size > 1:
        copies = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    console.print_line("trying updates on the largest micro-batches of several sizes")
    text_lengths = run.prepared.ctc_lengths("train").num_ctc_frames
    result = search_batch_size(module, dataset, sampler, text_lengths, make_trainer, copies)
    console.print(result.table())
    for line in result.conclusions(loaders.batch.max_duration_s):
        console.print_line(line)
