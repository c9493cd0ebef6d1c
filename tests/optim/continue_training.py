"""Continues every checkpoint `<optimizer>.pt` of a folder for four steps, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from tests.optim.cases import CASES
from tests.optim.training import run, values


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for case in CASES:
        saved = torch.load(folder / f"{case.name}.pt", weights_only=True)
        params = [nn.Parameter(value) for value in saved["params"]]
        optimizer = case.factory([{"params": params[:9]}, {"params": params[9:]}])
        optimizer.load_state_dict(saved["optimizer"])
        run(optimizer, params, range(3, 7))
        torch.save(values(params), folder / f"{case.name}.done.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
