"""A file that is being written is the old one or the new one, at any moment."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from asr.training import checkpoints as checkpoint_files
from asr.training.checkpoints import (
    duplicate,
    point_link,
    prune_checkpoints,
    remove_temporary,
    update_file,
    update_files,
    write,
)
from werdict import files


def write_forever(folder: Path, done: Connection) -> None:
    torch.set_num_threads(1)
    for number in itertools.count():
        path = folder / f"update-{number % 2}.ckpt"
        write({"number": number, "weights": torch.full((200, 1000), float(number))}, path)
        point_link(folder / "last.ckpt", path)
        done.send(number)


def test_a_writer_killed_at_any_moment_leaves_whole_files(tmp_path):
    for delay_s in (0.0, 0.001, 0.003, 0.005, 0.01, 0.015, 0.02):
        heard, told = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=write_forever, args=(tmp_path, told))
        process.start()
        told.close()
        done = heard.recv()
        time.sleep(delay_s)
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                done = heard.recv()
        for path in tmp_path.glob("*.ckpt"):
            state = torch.load(path, weights_only=True)
            assert (state["weights"] == state["number"]).all()
        # what was reported as written is there
        assert torch.load(tmp_path / "last.ckpt", weights_only=True)["number"] >= done
        remove_temporary(tmp_path)
        assert {path.suffix for path in tmp_path.iterdir()} == {".ckpt"}


def test_the_new_file_and_its_name_are_on_the_disk_in_this_order(tmp_path, monkeypatch):
    steps = []
    for module in (checkpoint_files, files):
        monkeypatch.setattr(module, "sync", lambda path: steps.append(path.name))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, other: (steps.append("rename"), replace(path, other)))
    write({}, tmp_path / "a.ckpt")
    assert steps == ["a.ckpt.tmp", "rename", tmp_path.name]


def test_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    write({"old": 1}, tmp_path / "a.ckpt")
    with pytest.raises(AttributeError):
        write({"new": lambda: None}, tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt", weights_only=True) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_a_link_is_relative_and_a_copy_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(path: Path, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    (tmp_path / "last.ckpt").write_text("a file of before")
    for name in ("one", "two", "three"):
        if name == "three":
            monkeypatch.setattr(Path, "symlink_to", refuse)
        (tmp_path / name).write_text(name)
        point_link(tmp_path / "last.ckpt", tmp_path / name)
        assert (tmp_path / "last.ckpt").read_text() == name
        assert name == "three" or os.readlink(tmp_path / "last.ckpt") == name


@pytest.mark.parametrize("has_links", [True, False])
def test_the_best_outlives_the_file_that_it_was(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", lambda path, target: (_ for _ in ()).throw(OSError("no links here")))
    for name in ("one", "two", "two"):
        (tmp_path / name).write_text(name)
        duplicate(tmp_path / name, tmp_path / "best.ckpt")
        assert (tmp_path / "best.ckpt").samefile(tmp_path / name) == has_links
    (tmp_path / "two").unlink()
    assert (tmp_path / "best.ckpt").read_text() == "two"
    assert {path.name for path in tmp_path.iterdir()} == {"one", "best.ckpt"}


def test_the_newest_are_kept_and_an_abandoned_future_is_not(tmp_path):
    for number in (999_999, 1_000_000, 2, 1_500, 1_000_001):
        update_file(tmp_path, number).touch()
    (tmp_path / "update-best.ckpt").touch()
    prune_checkpoints(tmp_path, newest=1_000_000, keep=2)
    assert list(update_files(tmp_path)) == [1_000_000, 999_999]
