"""Whether processes together do what one does: NCCL, gloo on one GPU, torchrun's rendezvous.

torchrun starts this file too, as ``distributed.py DEVICE BACKEND FILE``: the first rank writes the weights.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.measure import Row, Setting, at_most, lacking, left_out, until_error
from bench.runs import TINY, largest_difference, last_checkpoint, train
from optim import AdamW

ROOT = Path(__file__).parents[2]
LIMIT = 1e-5
NUM_UPDATES, SIZE, WIDTH = 5, 8, 32


def rows(setting: Setting, _: str) -> Iterator[Row]:
    """Yield all checks."""
    alone = trained(setting.device, rank=0, world_size=1)
    num_gpus = min(2, torch.cuda.device_count())
    cases = [("gloo", 2)] + ([("nccl", num_gpus)] if setting.on_gpu else [])
    for backend, num in cases:
        file = setting.work / f"{backend}.pt"
        done = run_ranks(num, __file__, setting.device, backend, str(file))
        devices = f"{num_gpus} GPU(s)" if backend == "nccl" else "one device"
        check = f"{num} process(es), {backend}, {devices}, started by torchrun: weights, to those of one process"
        if done.returncode:
            yield Row(check, (done.stderr.strip().splitlines() or ["no output"])[-1][:300], "equal", met=False)
            continue
        yield at_most(check, largest_difference(alone, torch.load(file, weights_only=True)), LIMIT)
    yield from until_error("asr-train with ranks", _runs(setting, num_gpus if setting.on_gpu else 2), setting)


def run_ranks(num: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a file of a bench with its arguments in as many processes, with further variables of the environment."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    return subprocess.run([*torchrun(num), *words], env=environment, capture_output=True, text=True)


def torchrun(num: int) -> list[str]:
    """Return what starts processes that find each other through a rendezvous on this machine."""
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num}", *rendezvous]


def _runs(setting: Setting, num: int) -> Iterator[Row]:
    """Yield whether asr-train with ranks makes the updates of a run without, that accumulates as many micro-batches."""
    if why := lacking("espeakng_loader"):
        yield left_out("asr-train: the corpus is spoken on the spot", why, "as one process")
        return
    length = ("trainer.max_steps=6", "trainer.val_check_interval=6", "data.batch.max_duration_s=10")
    words = (*TINY, setting.trainer, *length, "trainer.precision=32-true")
    train(setting.work, *words, f"trainer.accumulate_grad_batches={num}", "run_dir=alone")
    for capture in ("false", "true") if setting.on_gpu else ("false",):
        options = ("+trainer.strategy=ddp", f"trainer.devices={num}", "trainer.num_nodes=1")
        option, name = f"trainer.cuda_graphs={capture}", f"ranks-{capture}"
        train(setting.work, *words, *options, option, f"run_dir={name}", launcher=torchrun(num))
        weights = [last_checkpoint(setting.work / folder)["state_dict"] for folder in ("alone", name)]
        check = f"asr-train with {num} rank(s) under torchrun, {option}: weights, to those of one process"
        yield at_most(check, largest_difference(*weights), LIMIT)


def trained(device: str, rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """Return the weights after updates on batches of which each rank has its share."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(device)
    model = DistributedDataParallel(plain) if dist.is_initialized() else plain
    optimizer = AdamW(plain.parameters(), lr=0.01)
    for update in range(NUM_UPDATES):
        batch = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(update))
        optimizer.zero_grad()
        model(batch[rank::world_size].to(device)).square().mean().backward()
        optimizer.step()
    return {name: value.cpu() for name, value in plain.state_dict().items()}


if __name__ == "__main__":
    chosen, backend, file = sys.argv[1:]
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # each rank has a GPU of its own; with gloo they share one
    dist.init_process_group(backend)
    weights = trained(chosen, dist.get_rank(), dist.get_world_size())
    if dist.get_rank() == 0:
        torch.save(weights, file)
    dist.destroy_process_group()
