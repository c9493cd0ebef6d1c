"""Train the same updates with one process that accumulates and with two, and compare the parameters.

    python scripts/compare_ranks.py [--optimizers adamw,eve,adafactor] [--updates 20]

One process with two micro-batches per update, and two processes (gloo) with one each, make the same updates up to the
order in which floating-point numbers are added.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

LIMIT = 1e-5
SMALL = (
    "data.prepare.num_train=60",
    "data.prepare.num_dev=8",
    "data.prepare.num_test=8",
    "data.batch.max_duration_s=10",
    "tokenizer=char",
    "encoder.num_layers=2",
    "encoder.d_model=48",
    "encoder.d_feedforward=64",
    "encoder.subsampling_channels=8",
    "torch_threads=1",
    "logger=csv",
)
WAYS = {"alone": "trainer.accumulate_grad_batches=2", "ranks": "trainer.devices=2"}


def train(folder: Path, name: str, words: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Train once, and return the weights."""
    command = [sys.executable, "-m", "asr.commands", "train", *words, f"run_dir={name}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    state = torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True)
    weights: dict[str, torch.Tensor] = state["state_dict"]
    return weights


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Return the largest difference, relative to the largest magnitude of the same tensor."""
    return max(
        float((value - second[key]).abs().max() / value.abs().max().clamp(min=1e-12)) for key, value in first.items()
    )


def main() -> int:
    """Compare, print, and return 1 if a difference is more than floating-point error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizers", default="adamw,eve,adafactor")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--data-dir", type=Path, help="where the small data is prepared; default: a temporary folder")
    options = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="compare-ranks-") as folder:
        data_dir = (options.data_dir or Path(folder) / "data").resolve()
        for optimizer in options.optimizers.split(","):
            length = (f"trainer.max_steps={options.updates}", f"trainer.val_check_interval={options.updates}")
            words = (*SMALL, *length, f"optimizer={optimizer}", f"data.dir={data_dir}")
            weights = [train(Path(folder), f"{optimizer}-{way}", (*words, word)) for way, word in WAYS.items()]
            difference = largest_difference(*weights)
            worst = max(worst, difference)
            print(
                f"{optimizer}: largest relative difference after {options.updates} updates {difference:.1e}", flush=True
            )
    print(f"{'ok' if worst <= LIMIT else 'FAILED'}: the limit is {LIMIT:.0e}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
