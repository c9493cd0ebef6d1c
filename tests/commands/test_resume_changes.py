"""What is changed for a resumed run is really done, or refused before its folder is touched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from asr.training.checkpoints import update_file
from tests.small_runs import TINY
from werdict.files import read_yaml

REFUSED = {
    "another width": ("encoder.d_model=32", "encoder.d_model: 16 in the run"),
    "another optimizer with the same statistics": ("optimizer=laprop", "optim.AdamW in the run, optim.LaProp now"),
    "an optimizer of a rule": ("parameter_rules=matrices", "parameter_rules: none in the run, optim.AdamW now"),
    "other groups": ("parameter_rules=none", "parameter_rules.rules: "),
    "more statistics": ("optimizer.mars=true", "optimizer.mars: False in the run, True now"),
}


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(("word", "change"), REFUSED.values(), ids=REFUSED)
def test_a_change_that_does_not_fit_leaves_the_folder_as_it_was(small_run, tmp_path, word, change):
    folder = small_run.interrupted(tmp_path / "run")
    before = content(folder)
    ended = small_run.run("train", f"resume={folder}", "allow_changes=true", word, code=2)
    assert change in ended.last_line, ended.printed
    assert content(folder) == before


def groups_after(small_run, folder: Path, *words: str) -> list[dict]:
    small_run.run("train", f"resume={folder}", *words)
    state = torch.load(update_file(folder / "checkpoints", 6), weights_only=True)
    return state["optimizer_states"][0]["param_groups"]


def test_a_rate_that_followed_another_still_does(small_run, tmp_path):
    words = (*TINY, "optimizer=muon", "trainer.max_steps=3", "decode_test=false", f"run_dir={tmp_path}/run")
    small_run.run("train", *words)
    longer = ("trainer.max_steps=6", "optimizer.lr=0.0007", "allow_changes=true")
    groups = groups_after(small_run, tmp_path / "run", *longer)
    assert len(groups) > 1
    assert {group["initial_lr"] for group in groups} == {0.0007}


def test_naming_the_same_optimizer_again_changes_nothing_and_the_run_keeps_its_defaults(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    config = folder / "config.yaml"
    assert read_yaml(config)["optimizer"].items() >= {"eps": 1e-8, "mars_gamma": 0.025, "maximize": False}.items()
    config.write_text(config.read_text().replace("  maximize: false\n", ""))  # of a version that lacked it
    assert groups_after(small_run, folder, "optimizer=adamw", "optimizer.eps=1e-8", "schedule=warmup_cosine")


def test_a_budget_below_what_is_done_is_refused(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    before = content(folder)
    ended = small_run.run("train", f"resume={folder}", "allow_changes=true", "trainer.max_steps=5", code=2)
    assert "trainer.max_steps=5" in ended.last_line, ended.printed
    assert content(folder) == before


def test_what_more_updates_do_to_the_rate_is_said(small_run, tmp_path):
    folder = small_run.copy(tmp_path / "run")
    ended = small_run.run("train", f"resume={folder}", "trainer.max_steps=12", code=2)
    (said,) = [line for line in ended.printed.splitlines() if "learning rate" in line]
    before, now = map(float, re.findall(r"([\d.e-]+) (?:in the run|now)", said))
    assert (before, 0 < now < 0.0015) == (0, True), said
    small_run.run("train", f"resume={folder}", "trainer.max_steps=12", "allow_changes=true")
    rates = [
        float(line.split(",")[2]) for line in (folder / "metrics.csv").read_text().splitlines() if ",train/lr," in line
    ]
    assert rates[6] == pytest.approx(now, rel=0.01)


def test_an_option_that_was_changed_is_that_of_the_restored_optimizer(small_run, tmp_path):
    words = ("allow_changes=true", "optimizer.lr=0.003", "optimizer.weight_decay=0.5", "optimizer.caution=true")
    folder = small_run.interrupted(tmp_path / "run")
    groups = groups_after(small_run, folder, *words)
    assert [group["weight_decay"] for group in groups] == [0.0, 0.5]
    assert all(group["caution"] and group["initial_lr"] == 0.003 for group in groups)
    metrics = [path.read_text().splitlines() for path in (small_run.run_dir / "metrics.csv", folder / "metrics.csv")]
    once, twice = ([float(line.split(",")[2]) for line in lines if ",train/lr," in line] for lines in metrics)
    assert twice == pytest.approx([*once[:3], *(2 * rate for rate in once[3:])])


def test_an_edited_config_is_resumed_only_with_values_that_were_accepted(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    config, accepted = folder / "config.yaml", folder / "accepted.yaml"
    config.write_text(config.read_text().replace("weight_decay: 0.01", "weight_decay: 0.5"))
    change = {"key": "optimizer.weight_decay", "before": 0.01, "now": 0.5}
    for wrong in ([], [change | {"now": 0.7}]):
        accepted.write_text(yaml.safe_dump(wrong))
        edited = small_run.run("train", f"resume={folder}", "logger=csv", code=2)
        assert "optimizer.weight_decay: 0.01 in the run, 0.5 now" in edited.printed
        assert read_yaml(accepted) == wrong
    accepted.write_text(yaml.safe_dump([change, {"key": "seed", "before": 1, "now": 2}]))
    assert [group["weight_decay"] for group in groups_after(small_run, folder)] == [0.0, 0.5]
    assert read_yaml(accepted) == [change]


def test_what_was_accepted_stays_so_until_a_checkpoint_knows_it(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    words = "trainer.max_steps=8", "allow_changes=true", "logger=csv"
    limit = update_file(folder / "checkpoints", 3).stat().st_size // 2
    small_run.run("train", f"resume={folder}", *words, limits={"RLIMIT_FSIZE": limit}, code=1)
    assert not update_file(folder / "checkpoints", 6).exists()
    small_run.run("train", f"resume={folder}")
    assert update_file(folder / "checkpoints", 8).exists()


def test_what_may_change_freely_is_recorded_too(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    words = "weights=average", "callbacks.checkpoints.keep_last=3", "logger=csv", "torch_threads=2"
    first, _ = (small_run.run("train", f"resume={folder}", *words) for _ in range(2))
    assert "torch_threads: 1 in the run, 2 now" in " ".join(first.printed.split()), "sums are rounded otherwise"
    config = read_yaml(folder / "config.yaml")
    assert (config["weights"], config["callbacks"]["checkpoints"]["keep_last"]) == ("average", 3)
    assert {"weights=average", "callbacks.checkpoints.keep_last=3"} <= set(read_yaml(folder / "overrides.yaml"))
    assert len(list(folder.glob("config*"))) == 2, "the former one is kept, and nothing new needs a third"


def test_other_averages_of_weights_are_a_change(small_run, tmp_path):
    word = "callbacks.averaging.ema_decay=0.5"
    folder = small_run.interrupted(tmp_path / "run")
    ended = small_run.run("train", f"resume={folder}", word, code=2)
    assert f"{word.partition('=')[0]}: " in ended.printed
    small_run.run("train", f"resume={folder}", word, "allow_changes=true")


def test_a_folder_that_is_no_run_is_refused(small_run, tmp_path):
    ended = small_run.run("train", f"resume={tmp_path}", code=2)
    assert str(tmp_path) in ended.last_line, ended.printed


def test_a_run_that_is_older_than_an_option_is_resumed_with_its_default(small_run, tmp_path):
    folder = small_run.interrupted(tmp_path / "run")
    older = read_yaml(folder / "config.yaml")
    del older["data"]["max_unreadable"], older["data"]["storage"]["audio"], older["find_batch_size"]
    older["trainer"]["capture"] = older["trainer"].pop("cuda_graphs")  # its former name
    (folder / "config.yaml").write_text(yaml.safe_dump(older))
    checkpoint = update_file(folder / "checkpoints", 3)
    state = torch.load(checkpoint)
    state["werdict"]["config"] = older
    torch.save(state, checkpoint)
    small_run.run("train", f"resume={folder}", "trainer.max_steps=6")
    resumed = read_yaml(folder / "config.yaml")
    assert resumed["data"]["max_unreadable"] == 0.01
    assert (resumed["trainer"]["cuda_graphs"], "capture" in resumed["trainer"]) == (False, False)
