"""Two processes that hold a model together train as two that hold it whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

MODELS = ("owners", "weights for evaluation", "zipformer", "two views")


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all tensors and numbers of a checkpoint with their places."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(value, dict | list | tuple):
            yield from leaves(value, f"{path}/{key}")
        else:
            yield f"{path}/{key}", value


@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_of_a_divided_model_that_was_resumed_are_those_of_a_whole_one(name, ranks):
    for rank in ranks:
        left = rank.left["with_divided_models"][name]
        assert left["share"] < 0.6
        whole, divided = dict(leaves(left["whole"])), dict(leaves(left["divided"]))
        assert whole.keys() == divided.keys()
        for place, value in whole.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(divided[place], value, rtol=1e-3, atol=3e-4)
            else:
                assert divided[place] == value, place


def test_a_process_that_reads_nothing_takes_part_in_a_divided_model(ranks):
    for rank in ranks:
        left = rank.left["with_unread_batches_of_a_divided_model"]
        torch.testing.assert_close(left["divided"], left["whole"], rtol=1e-3, atol=3e-4)
