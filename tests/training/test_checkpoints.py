"""No damaged checkpoint is taken for a good one; files are replaced whole; averages are those of the weights."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from asr.models.icefall_weights import icefall_state
from asr.training import checkpoints as checkpoint_files
from asr.training.callbacks.checkpoints import CheckpointCallback, WeightAveraging
from asr.training.checkpoints import (
    LoadedCheckpoint,
    RunningAverages,
    checkpoint_file,
    choose_weights,
    duplicate,
    load_checkpoint,
    newest_good_checkpoint,
    point_link,
    prune_checkpoints,
    update_file,
    update_files,
    write,
)
from tests.training.runs import EXTRA, run, same
from tests.training.tiny import batch_of, batches_loader, tiny_module, tiny_trainer
from werdict import files


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


def weights_of(update: int) -> dict[str, torch.Tensor]:
    """An endless walk: large numbers beside small ones, so that rounding would show."""
    generator = torch.Generator().manual_seed(update)
    noise = torch.randn(2, 3, generator=generator)
    return {"large": 1e4 + noise, "small": 1e-4 * noise + 1e-3 * update}


def averages_after(updates: int, decay: float | None = 0.9) -> RunningAverages:
    averages = RunningAverages(weights_of(0))
    for update in range(1, updates + 1):
        averages.add(update, weights_of(update), decay)
    return averages


def mean(updates) -> dict[str, torch.Tensor]:
    seen = [weights_of(update) for update in updates]
    return {name: torch.stack([one[name].double() for one in seen]).mean(0) for name in seen[0]}


@pytest.mark.parametrize(("a", "b"), [(0, 1), (150, 300), (299, 300)])
def test_two_checkpoints_give_the_mean_over_the_updates_in_between(a, b):
    found = averages_after(b).mean_after(averages_after(a))
    torch.testing.assert_close(found, mean(range(a + 1, b + 1)), rtol=1e-11, atol=0)


def test_the_older_mark_has_between_a_quarter_and_44_percent_of_all_updates_after_it():
    averages = RunningAverages(weights_of(0))
    for update in range(1, 500):
        averages.add(update, weights_of(0), None)
        if update > 50:
            assert 0.25 <= (update - averages.marks[0].update) / update <= 0.44
    assert len(averages.marks) == 2


def test_the_moving_average_is_the_recursion_with_its_lower_decay_at_the_beginning():
    expected = weights_of(1)["small"].double()
    decays = []
    for update in range(2, 101):
        decays.append(min(0.9, update / (update + 9)))
        expected = decays[-1] * expected + (1 - decays[-1]) * weights_of(update)["small"].double()
    torch.testing.assert_close(averages_after(100).ema["small"].double(), expected, rtol=1e-6, atol=0)
    assert decays[0] < 0.2
    assert decays[-1] == 0.9


def test_weights_that_stand_for_several_updates_move_the_moving_average_as_far():
    averages = RunningAverages({"w": torch.zeros(1)})
    averages.ema, averages.ema_updates = {"w": torch.zeros(1)}, 1000
    averages.add(10, {"w": torch.ones(1)}, 0.9, num_updates=10)
    torch.testing.assert_close(averages.ema["w"], torch.tensor([1 - 0.9**10]))
    assert averages.ema_updates == 1010


def test_without_a_decay_there_is_no_moving_average():
    averages = averages_after(3)
    averages.add(4, weights_of(4), None)
    assert averages.ema is None
    averages.add(5, weights_of(5), 0.9)
    assert same(averages.ema, weights_of(5))


class Weights(pl.Callback):
    """Keeps the parameters after every update."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        named = pl_module.recognizer.named_parameters()
        self.seen[trainer.global_step] = {name: p.detach().clone() for name, p in named}

    def mean(self, updates) -> dict[str, torch.Tensor]:
        first, *_ = self.seen.values()
        return {name: torch.stack([self.seen[u][name].double() for u in updates]).mean(0).float() for name in first}


def saving(folder: Path) -> CheckpointCallback:
    return CheckpointCallback(folder, keep_last=99, every_n_updates=1)


def loaded(folder: Path, update: int) -> LoadedCheckpoint:
    return load_checkpoint(update_file(folder / "checkpoints", update))


def assert_holds(checkpoint: LoadedCheckpoint, expected: dict[str, torch.Tensor], atol: float = 1e-12) -> None:
    """Compare to the last place of float32."""
    found = {name: checkpoint.weights[name] for name in expected}
    torch.testing.assert_close(found, expected, rtol=1.2e-7, atol=atol)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_of_any_span_is_the_mean_of_the_weights_after_its_updates(tmp_path, accumulate):
    weights = Weights()
    run(tmp_path, 12, [weights, WeightAveraging(), saving(tmp_path)], accumulate_grad_batches=accumulate)
    for a, b in [(0, 12), (0, 5), (3, 12), (4, 5), (11, 12)]:
        checkpoint = choose_weights(loaded(tmp_path, b), "average", a)
        assert_holds(checkpoint, weights.mean(range(a + 1, b + 1)))
        assert checkpoint.described == f"average of updates {a + 1} to {b}"
    alone = tmp_path / "elsewhere" / "any.ckpt"
    alone.parent.mkdir()
    duplicate(update_file(tmp_path / "checkpoints", 12), alone)
    newest = choose_weights(load_checkpoint(alone), "average")
    assert newest.described == "average of updates 9 to 12"
    largest = max(float(value.abs().max()) for value in weights.seen[12].values())
    assert_holds(newest, weights.mean(range(9, 13)), atol=2e-7 * largest)
    assert same(newest.weights, choose_weights(load_checkpoint(alone), "average", 8).weights)


def test_a_checkpoint_without_averages_begins_them(tmp_path, capsys):
    run(tmp_path, 4)
    capsys.readouterr()
    weights = Weights()
    run(tmp_path, 8, [weights, WeightAveraging(), saving(tmp_path)])
    assert "no averages of weights: they start after update 4" in capsys.readouterr().out
    assert_holds(choose_weights(loaded(tmp_path, 8), "average", 4), weights.mean(range(5, 9)))
    for since in (2, 3):
        with pytest.raises(ValueError, match=rf"average_since={since}: .*allowed: 4, 5, 6, 7, or null for 6"):
            choose_weights(loaded(tmp_path, 8), "average", since)


def test_an_update_that_is_skipped_counts_with_the_weights_that_it_left(tmp_path):
    bad = batch_of(60, 40, seed=9)
    bad.features[0, 3, 2] = math.nan
    batches = [batch_of(60, 40, seed=0), bad, batch_of(60, 40, seed=1)]
    weights, averaging = Weights(), WeightAveraging()
    tiny_trainer(3, [weights, averaging]).fit(tiny_module(), batches_loader(batches))
    assert same(weights.seen[1], weights.seen[2])
    averages = averaging.averages
    assert (averages.num_averaged, averages.update) == (3, 3)
    expected = {name: sum(weights.seen[update][name].double() for update in (1, 2, 3)) for name in weights.seen[1]}
    assert same(averages.sum, expected)


def test_one_update_in_so_many_is_averaged_by_its_number(tmp_path):
    weights = Weights()
    run(tmp_path, 7, [weights, WeightAveraging(every=3), saving(tmp_path)])
    assert_holds(choose_weights(loaded(tmp_path, 7), "average", 0), weights.mean([3, 6]))
    assert loaded(tmp_path, 7).averages.ema_updates == 6
    with pytest.raises(ValueError, match=r"callbacks\.averaging\.every"):
        choose_weights(loaded(tmp_path, 2), "average")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("averaged")
    run(folder, 4, [WeightAveraging(ema_decay=0.5), saving(folder)])
    return folder


def test_buffers_and_the_raw_weights_are_those_of_the_checkpoint(folder):
    checkpoint = loaded(folder, 4)
    averages = checkpoint.averages
    assert "normalize.mean" not in averages.sum
    for kind in ("raw", "average", "ema"):
        assert same(choose_weights(checkpoint, kind).weights["normalize.mean"], checkpoint.weights["normalize.mean"])
    assert choose_weights(checkpoint, "raw") is checkpoint
    chosen = choose_weights(checkpoint, "ema")
    assert chosen.described == "exponential moving average of update 4"
    assert same(chosen.weights["head.project.bias"], averages.ema["head.project.bias"])


def without_ema(checkpoint: LoadedCheckpoint) -> LoadedCheckpoint:
    checkpoint.averages.ema = None
    return checkpoint


@pytest.mark.parametrize(
    ("change", "kind", "since", "said"),
    [
        (lambda one: replace(one, averages=None), "average", None, r"callbacks\.averaging"),
        (without_ema, "ema", None, "ema_decay=null"),
        (lambda one: one, "average", 4, "average_since=4: .*allowed: 0, 1, 2, 3, or null for 3"),
        (lambda one: one, "ema", 2, "average_since=2"),
    ],
)
def test_weights_that_a_checkpoint_does_not_have_are_refused_with_what_it_has(folder, change, kind, since, said):
    with pytest.raises(ValueError, match=said):
        choose_weights(change(loaded(folder, 4)), kind, since)
