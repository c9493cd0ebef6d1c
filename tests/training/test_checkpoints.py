"""No damaged checkpoint is taken for a good one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from asr.models.icefall_weights import icefall_state
from asr.training.checkpoints import (
    checkpoint_file,
    duplicate,
    load_checkpoint,
    newest_good_checkpoint,
    point_link,
    update_file,
    write,
)
from tests.training.runs import EXTRA


def make(path: Path, update: int, **extra) -> Path:
    weights = torch.arange(1000, dtype=torch.float32) + update
    write({"state_dict": {"recognizer.w": weights}, "global_step": update, "werdict": {**EXTRA, **extra}}, path)
    return path


def truncated(good: bytes) -> bytes:
    return good[: len(good) // 2]


def with_a_flipped_bit(good: bytes) -> bytes:
    # the last of the numbers, so that nothing but the checksum can tell
    at = good.index(torch.tensor([999.0]).numpy().tobytes())
    return good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]


@pytest.mark.parametrize("damaged", [truncated, with_a_flipped_bit, lambda good: b""])
def test_a_damaged_file_is_refused_by_its_name(tmp_path, damaged):
    path = make(tmp_path / "a.ckpt", 0)
    assert load_checkpoint(path).weights["w"][-1] == 999
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.ckpt is damaged"):
        load_checkpoint(path)


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path):
    state = {"state_dict": {"recognizer.w": torch.arange(6.0)}, "global_step": 1, "werdict": EXTRA}
    write(state, tmp_path / "a.ckpt")
    good, flipped = (tmp_path / "a.ckpt").read_bytes(), tmp_path / "b.ckpt"
    for at in range(0, len(good), 3):
        flipped.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        try:
            loaded = load_checkpoint(flipped)
        except ValueError:
            continue
        assert torch.equal(loaded.weights["w"], torch.arange(6.0))
        assert (loaded.update, loaded.config) == (1, {})


def test_a_file_of_another_program_is_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"a\.ckpt is not a checkpoint"):
        load_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="format 99"):
        load_checkpoint(make(tmp_path / "b.ckpt", 0, format=99))


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """A run that was killed after update 4, before last.ckpt was moved; the best was update 1."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    duplicate(make(update_file(folder, 1), 1), folder / "best.ckpt")
    update_file(folder, 1).unlink()
    for update in (2, 3, 4):
        make(update_file(folder, update), update)
    point_link(folder / "last.ckpt", update_file(folder, 3))
    return tmp_path / "run"


def cut(path: Path) -> None:
    path.write_bytes(truncated(path.read_bytes()))


def test_the_newest_is_what_last_leads_to_then_other_updates_then_the_best(run_dir, tmp_path):
    assert newest_good_checkpoint(tmp_path) is None
    for num_rejected, update in enumerate((3, 4, 2, 1)):
        loaded = newest_good_checkpoint(run_dir)
        assert (loaded.update, len(loaded.rejected)) == (update, num_rejected)
        assert all("is damaged" in problem for problem in loaded.rejected)
        cut(loaded.path)
    with pytest.raises(ValueError, match=r"(?s)every checkpoint.*-000003.*-000004.*-000002.*best"):
        newest_good_checkpoint(run_dir)


def test_a_run_is_decoded_with_its_best(run_dir):
    assert checkpoint_file(str(run_dir)).name == "best.ckpt"
    (run_dir / "checkpoints" / "best.ckpt").unlink()
    assert checkpoint_file(str(run_dir)).name == "last.ckpt"
    with pytest.raises(ValueError, match="neither a checkpoint nor a run folder"):
        checkpoint_file(str(run_dir / "elsewhere"))


class Calls:
    """Pickled as a call of the shell."""

    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("read", [load_checkpoint, icefall_state])
def test_code_in_a_checkpoint_is_refused_and_does_not_run(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    torch.save({"werdict": EXTRA, "state_dict": {}, "model": Calls()}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"a\.ckpt"):
        read(tmp_path / "a.ckpt")
    assert not (tmp_path / "ran").exists()
