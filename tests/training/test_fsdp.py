"""Two processes that hold a model together train as two that hold it whole."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from asr.run.trainer import build_trainer
from asr.training.checkpoints import load_checkpoint
from tests.configs import composed
from werdict.errors import ConfigError

MODELS = ("owners", "weights for evaluation", "zipformer", "zapformer", "two views")


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


def test_a_checkpoint_stays_whole_while_another_of_its_update_is_written(ranks):
    parts = ranks[0].left["with_a_checkpoint_written_twice"]
    assert parts == ["update-000001.1.parts", "update-000001.parts"]


def test_no_process_leaves_after_a_signal_before_the_checkpoint_is_written(ranks):
    for rank in ranks:
        left = rank.left["with_a_signal_while_a_checkpoint_is_written"]
        assert left == ["last.ckpt", "update-000003.ckpt"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("trainer.cuda_graphs=true", "trainer.cuda_graphs=True"),
        ("trainer.step_in_backward=true", "trainer.step_in_backward=True"),
        ("trainer.compile=true", "trainer.compile=True"),
        ("trainer.deterministic=true", "trainer.deterministic=True"),
        ("trainer.precision=16-mixed", "trainer.precision=16-mixed"),
        ("trainer.devices=4 trainer.replicate=3", "trainer.replicate=3 × trainer.shard=1"),
        ("trainer.devices=4 trainer.shard=3", "trainer.replicate=1 × trainer.shard=3"),
        ("trainer.strategy=ddp trainer.replicate=2", "trainer.replicate=2"),
    ],
)
def test_what_cannot_work_with_parts_is_refused_by_its_key(words, key):
    with pytest.raises(ConfigError, match=re.escape(key)):
        build_trainer(composed("trainer=fsdp", "trainer.accelerator=cpu", *words.split()).options.trainer, [], [])


def test_a_file_of_parts_that_names_other_classes_is_not_opened(tmp_path):
    path, folder = tmp_path / "update-000001.ckpt", tmp_path / "update-000001.parts"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(os.system))
    digest = hashlib.blake2b((folder / ".metadata").read_bytes()).hexdigest()
    torch.save({"parts": {"folder": folder.name, "files": {".metadata": digest}}}, path)
    with pytest.raises(ValueError, match="more than tensors"):
        load_checkpoint(path)
    (folder / ".metadata").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(path)
