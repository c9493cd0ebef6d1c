"""How much memory an update takes if parameters step within the backward pass, next to stepping after it.

    python scripts/bench_in_backward.py [--layers 24] [--width 1024] [--device cuda]

Each way runs in a process of its own: updates of a deep perceptron by torch's fused AdamW and by SGD, whose state is
smaller. Measured are the most bytes that gradients held at once, counted at every gradient, and the peak of the process
(on a CPU its resident memory, which is approximate) during an update, above what it had before the model was built.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import optim
from asr.training.batch_size_search import memory_of

FACTORIES: dict[str, Any] = {"AdamW": partial(torch.optim.AdamW, fused=True), "SGD": torch.optim.SGD}
NUM_WARM_UPS = 2  # the first update creates the state


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the peaks of an update, in MB."""
    torch.set_num_threads(1)
    device = torch.device(options.device)
    memory = memory_of(device)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
    model = nn.Sequential(*layers).to(device)
    params, x, most = list(model.parameters()), torch.randn(16, options.width, device=device), 0
    factory = FACTORIES[options.optimizer]

    def count(_: Any) -> None:
        nonlocal most
        most = max(most, sum(param.grad.nbytes for param in params if param.grad is not None))

    for param in params:
        param.register_post_accumulate_grad_hook(count)  # before the hook that steps
    optimizer: Any = optim.step_in_backward(model, factory) if options.within else factory(params)
    for number in range(NUM_WARM_UPS + 1):
        if number == NUM_WARM_UPS:
            memory.start()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    size = sum(param.nbytes for param in params)
    return {"parameters": size / 2**20, "gradients": most / 2**20, "peak": memory.peak() / 2**20}


def main() -> None:
    """Measure in one process, or start one for each row and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--optimizer", choices=FACTORIES, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.optimizer:
        print(json.dumps(measure(options)))
        return
    for optimizer in FACTORIES:
        for ways in ([], ["--within"]):
            command = [sys.executable, __file__, *sys.argv[1:], "--optimizer", optimizer, *ways]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            way = "in" if ways else "after"
            numbers = ", ".join(f"{name} {value:.0f} MB" for name, value in found.items())
            print(f"{optimizer} {way} the backward pass: {numbers}")


if __name__ == "__main__":
    main()
