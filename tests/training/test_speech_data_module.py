"""Where a resumed run continues in an epoch, on any number of processes; copies of utterances in micro-batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asr.data.loading.loader import Workers
from asr.data.loading.sampling import BucketingConfig, DurationBucketSampler
from asr.training.checkpoints import newest_good_checkpoint
from asr.training.speech_data_module import ResumableLoader, num_copies
from tests.data.loading.test_sampling import cuts_of
from tests.training import runs
from tests.training.runs import Validated, same
from werdict.errors import ConfigError

SAMPLER = DurationBucketSampler(cuts_of(60), BucketingConfig(30.0, num_buckets=2), seed=3)
PLAN = list(SAMPLER.epoch(0))
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


class Told:
    """Returns what it is asked for."""

    def __getitem__(self, item: Any) -> Any:
        return item


def micro_batches(copies: Any, max_steps: int, start: int = 0, accumulate: int = 1) -> list[Any]:
    """Return what is read of the first epoch after ``start`` micro-batches."""
    current = SimpleNamespace(current=SimpleNamespace(processed=0))
    trainer: Any = SimpleNamespace(global_rank=0, world_size=1, accumulate_grad_batches=accumulate, max_steps=max_steps)
    trainer.global_step, trainer.fit_loop = start // accumulate, SimpleNamespace(epoch_progress=current)
    loader = ResumableLoader(Told(), SAMPLER, Workers(0), trainer, copies)  # type: ignore[arg-type]
    loader.start = start
    return list(loader)


@pytest.mark.parametrize(
    ("copies", "numbers"),
    [(3, [3] * 8), ([1, 8], [*range(1, 9)]), ([1, 2], [1] * 4 + [2] * 4), ([3, 2], [3] * 4 + [2] * 4)],
)
def test_each_number_of_copies_has_an_equal_share_of_the_run(copies, numbers):
    assert [num_copies(copies, update / 8) for update in range(8)] == numbers
    assert num_copies(copies, 1.5) == numbers[-1]


@pytest.mark.parametrize("copies", [2, 100, [1, 4]])
def test_copies_take_the_place_of_other_utterances(copies):
    read = micro_batches(copies, max_steps=len(PLAN))
    for update, ((seed, cuts), copied) in enumerate(zip(PLAN, read, strict=True)):
        wanted = num_copies(copies, update / len(PLAN))
        assert copied.seed == seed
        assert copied.num_copies == min(wanted, len(cuts))
        assert [cut.id for cut in copied.cuts] == [cut.id for cut in cuts][: max(1, len(cuts) // wanted)]


def test_micro_batches_of_an_update_have_as_many_copies_and_a_resumption_changes_nothing():
    whole = micro_batches([1, 3], max_steps=3, accumulate=2)
    wanted = [min(copies, len(cuts)) for copies, (_, cuts) in zip([1, 1, 2, 2, 3, 3], PLAN, strict=False)]
    assert [read.num_copies for read in whole[:6]] == wanted
    assert micro_batches([1, 3], max_steps=3, accumulate=2, start=2) == whole[2:]


def test_rising_copies_need_the_length_of_the_run():
    with pytest.raises(ConfigError, match=r"augment\.copies.*max_steps"):
        micro_batches([1, 8], max_steps=-1)
    assert micro_batches(2, max_steps=-1)
