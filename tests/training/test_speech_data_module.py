"""Where a resumed run continues in an epoch: its micro-batches make the same updates on any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asr.training.checkpoints import newest_good_checkpoint
from tests.training import runs
from tests.training.runs import Validated, same

PER_UPDATE, IN_EPOCH = 4, 16  # micro-batches


def regrouped(run_dir: Path, num_processes: int, accumulate: int) -> None:
    """Let the newest checkpoint be as if processes of this number had written it after the same micro-batches."""
    checkpoint = newest_good_checkpoint(run_dir)
    assert checkpoint is not None
    content: Any = checkpoint.state
    loops = content["loops"]["fit_loop"]
    current = loops["epoch_loop.batch_progress"]["current"]
    of_process = current["processed"] // num_processes
    current.update(dict.fromkeys(current, of_process))
    loops["state_dict"]["combined_loader"][0] = {
        "processed": of_process,
        "world_size": num_processes,
        "accumulate": accumulate,
    }
    torch.save(content, checkpoint.path)


# in the middle of an epoch, at a validation, and at the end of an epoch
@pytest.mark.parametrize(("update", "num_processes", "accumulate"), [(2, 2, 2), (3, 4, 1), (4, 2, 2)])
def test_one_process_continues_where_several_have_stopped(tmp_path, monkeypatch, update, num_processes, accumulate):
    monkeypatch.setattr(runs, "EPOCH", IN_EPOCH)
    options = {"accumulate_grad_batches": PER_UPDATE}
    whole, parts = Validated(), Validated()
    expected = runs.run(tmp_path / "whole", 9, [whole], **options)
    runs.run(tmp_path / "parts", update, [parts], **options)
    regrouped(tmp_path / "parts", num_processes, accumulate)
    found = runs.run(tmp_path / "parts", 9, [parts], **options)
    assert same(expected.recognizer.state_dict(), found.recognizer.state_dict())
    assert sorted({*parts.updates}) == sorted({*whole.updates, update})
    states = [newest_good_checkpoint(tmp_path / name) for name in ("whole", "parts")]
    loops = [state.state["loops"]["fit_loop"] for state in states]  # type: ignore[union-attr,index]
    for name in ("epoch_progress", "epoch_loop.batch_progress", "state_dict"):
        assert loops[0][name] == loops[1][name]


def test_other_numbers_of_micro_batches_begin_the_next_epoch(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(runs, "EPOCH", IN_EPOCH)
    runs.run(tmp_path, 2, accumulate_grad_batches=PER_UPDATE)
    regrouped(tmp_path, 2, 1)
    runs.run(tmp_path, 3, accumulate_grad_batches=PER_UPDATE)
    assert "next epoch" in capfd.readouterr().out
    checkpoint = newest_good_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.state is not None
    loops = checkpoint.state["loops"]["fit_loop"]
    assert loops["epoch_progress"]["current"]["processed"] == 1
    assert loops["state_dict"]["combined_loader"][0]["processed"] == PER_UPDATE
