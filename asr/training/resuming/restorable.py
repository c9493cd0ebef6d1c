"""Whether a run can continue from a checkpoint, tried before anything of the run is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.error_text import first_line, is_out_of_memory
from asr.text.tokenizer import tokenizer_from_state
from asr.training.checkpoints.loading import PREFIX
from asr.training.module import TrainingModule
from asr.training.resuming.resume_checks import check_optimizer, check_options, check_resumable, check_schedule
from asr.training.weights import misfit


class Misfit(ValueError):
    """A part of a checkpoint that does not fit the run.

    Attributes:
        part: ``weights``, ``optimizer``, ``schedule`` or ``counts``.
    """

    def __init__(self, part: str, why: str) -> None:
        super().__init__(why)
        self.part = part


def check_restorable(module: TrainingModule, path: Path) -> None:
    """Restore the states of a checkpoint into the parts of a module, which cannot be used for training after that.

    Args:
        module: as it would continue.
        path: of the checkpoint, which has been read before.

    Raises:
        Misfit: a part does not fit.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    weights = {name.removeprefix(PREFIX): weight for name, weight in state["state_dict"].items()}
    problem = misfit(module.recognizer.state_dict(), weights)
    if problem:
        raise Misfit("weights", problem)
    saved_pieces, pieces = tokenizer_from_state(state["werdict"]["tokenizer"]).pieces, module.tokenizer.pieces
    if saved_pieces != pieces:
        other = next((piece for piece in pieces if piece not in saved_pieces), "their order")
        raise Misfit("weights", f"the tokenizer has other pieces than its own, such as {other!r}")
    part = "counts"
    try:
        check_resumable(state)
        part = "optimizer"
        if module.changed_updates is not None:
            module.changed_updates.carry_into(state, module.recognizer.named_parameters())
        optimizer, schedule = module.build_updates()
        saved, rates = state["optimizer_states"][0], state["lr_schedulers"][0]
        check_options(saved, optimizer, schedule)
        fresh = schedule.state_dict()  # before it takes rates from what is loaded into the optimizer
        optimizer.load_state_dict(saved)
        check_optimizer(optimizer)
        if module.changed_updates is not None:
            # an option may change what statistics are stored in: loading would round, or widen them
            for key, dtype in Counter(_dtypes(saved["state"])) - Counter(_dtypes(optimizer.state)):
                raise ValueError(f"the optimizer's {key} was saved as {dtype}, and would be kept as another type")
        part = "schedule"
        check_schedule(rates, fresh)
        schedule.load_state_dict(rates)
    # what the loaders of optimizers and schedules raise for states of others differs from one to the next
    except Exception as error:
        if is_out_of_memory(error):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise Misfit(part, kind + first_line(error, 600)) from error


def _dtypes(states: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[str, torch.dtype]]:
    for statistics in states.values():
        for key, value in statistics.items():
            if isinstance(value, Tensor) and key != "step":
                yield key, value.dtype
