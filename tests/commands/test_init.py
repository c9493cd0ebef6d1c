"""Runs that start from the weights of another one."""

import shutil
from pathlib import Path

import pytest
import torch

from asr.run.restore import restore_text
from asr.text.tokenizer import tokenizer_from_state
from asr.training.checkpoints import checkpoint_file, load_checkpoint
from tests.small_runs import TINY
from tests.text.cases import own_model

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

UNMOVED = ("optimizer.lr=1e-30", "trainer.max_steps=1", "trainer.val_check_interval=1", "decode=[last]")


def train(small_run, tmp_path, *words: str, code: int = 0):
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path}/new", f"init={small_run.run_dir}", *words, code=code)
    return ended.printed


def weights(run) -> dict[str, torch.Tensor]:
    return load_checkpoint(checkpoint_file(str(run))).weights


def table(tmp_path) -> dict[str, tuple[str, str]]:
    rows = [line.split("\t") for line in (tmp_path / "new" / "init.tsv").read_text().splitlines()[1:]]
    return {name: (fate, reason) for name, _, fate, reason in rows}


def test_a_run_that_does_not_move_decodes_as_its_source(small_run, tmp_path):
    printed = train(small_run, tmp_path, "init.keep_tokenizer=true", *UNMOVED)
    source, found = weights(small_run.run_dir), weights(tmp_path / "new")
    assert f"{len(source)} of {len(source)} tensors taken" in printed
    assert {fate for fate, _ in table(tmp_path).values()} == {"taken"}
    assert source.keys() == found.keys()
    assert all(torch.equal(source[name], found[name]) for name in source)
    for run in (small_run.run_dir, tmp_path / "new"):
        small_run.run("evaluate", f"run={run}", f"output_dir={tmp_path}/decoded-{run.name}", "num_workers=0")
    theirs, ours = (tmp_path / f"decoded-{run}" / "test.hyp.txt" for run in (small_run.run_dir.name, "new"))
    assert theirs.read_text() == ours.read_text()


def test_another_vocabulary_and_more_layers_leave_new_tensors(small_run, tmp_path):
    words = ("tokenizer=bpe", "tokenizer.vocab_size=30", "encoder.num_layers=2", "init.weights=average")
    printed = train(small_run, tmp_path, *words, *UNMOVED)
    assert "(average of updates" in printed
    found = table(tmp_path)
    assert found["head.project.weight"] == ("new", "another vocabulary")
    assert found["encoder.layers.0.attention_norm.weight"] == ("taken", "")
    assert found["encoder.layers.1.attention_norm.weight"] == ("new", "not in the source")


def test_rates_are_those_of_the_source_unless_they_are_given(small_run, tmp_path):
    source = f"run_dir={tmp_path}/source"
    rates = ("encoder.subsampling_factor=2", "data.sampling_rate_hz=8000")
    small_run.run("train", *TINY, *UNMOVED, *rates, source, "decode_test=false")
    words = (f"init={tmp_path}/source", "decode_test=false", *UNMOVED)
    printed = train(small_run, tmp_path, *words)
    assert "chosen: encoder.subsampling_factor=2 " in printed
    config = load_checkpoint(checkpoint_file(f"{tmp_path}/new")).config
    assert (config["encoder"]["subsampling_factor"], config["features"]["sampling_rate_hz"]) == (2, 8000)
    printed = train(small_run, tmp_path, *words, f"run_dir={tmp_path}/other", "data.sampling_rate_hz=16000", code=2)
    assert "sampling_rate_hz 8000" in printed
    assert not (tmp_path / "other").exists()


KEPT, SMALLER = "chosen: init.keep_tokenizer=true ", "chosen: optimizer.lr=0.00075 "
OTHERS_TEXTS = ("data.text.case=upper",)  # which the source cannot spell
NOT_KEPT = "chosen: init.keep_tokenizer=false "


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ((), {KEPT, SMALLER}),
        (("optimizer=muon",), {KEPT, SMALLER}),
        (("optimizer.lr=0.01",), {KEPT}),
        (("+best_lr.adamw=0.01",), {KEPT}),
        (("init.keep_tokenizer=true",), {SMALLER}),
        (("init.keep_tokenizer=false",), set()),
        (("data.vocab_size=40",), set()),
        (OTHERS_TEXTS, {NOT_KEPT}),
    ],
)
def test_tokenizer_and_learning_rate_follow_the_source_unless_they_are_given(small_run, words, chosen):
    options = [word for word in TINY if word != "tokenizer=char"]
    ended = small_run.run("prepare", *options, f"init={small_run.run_dir}", *words)
    lines = [line for line in ended.printed.splitlines() if line.startswith("chosen: ")]
    assert {f"{line.partition('  (')[0]} " for line in lines} == chosen
    assert ("data.text.case=lower" in ended.printed) == (words == OTHERS_TEXTS)


def test_what_is_frozen_stays_and_a_resumed_run_needs_no_source(small_run, tmp_path):
    source = small_run.copy(tmp_path / "source")
    words = (f"init={source}", "init.freeze=['^encoder']", "trainer.max_steps=3")
    ended = small_run.run("train", *TINY, f"run_dir={tmp_path}/new", "init.keep_tokenizer=true", *words)
    assert "of them frozen" in ended.printed
    before, after = weights(source), weights(tmp_path / "new")
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"head"}
    shutil.rmtree(source)
    resume = f"resume={tmp_path}/new"
    ended = small_run.run("train", resume, "trainer.max_steps=6", "allow_changes=true")
    assert "resuming from update 3" in ended.printed
    later = weights(tmp_path / "new" / "checkpoints" / "last.ckpt")
    assert {name.partition(".")[0] for name in before if not torch.equal(after[name], later[name])} <= {"head"}
    ended = small_run.run("train", resume, f"init={small_run.run_dir}", code=2)
    assert ended.printed.startswith("asr-train: init")


def test_a_tokenizer_of_ones_own_is_in_the_checkpoints_so_that_a_resumed_run_needs_no_file(small_run, tmp_path):
    own = tmp_path / "own.model"
    options = {"vocab_size": 300, "byte_fallback": True, "user_defined_symbols": ["<laugh>"]}
    own.write_bytes(own_model(NUMBERS, normalization_rule_name="nmt_nfkc_cf", **options))
    words = (*(word for word in TINY if word != "tokenizer=char"), "tokenizer=file", f"tokenizer.path={own}")
    small_run.run("train", *words, "data.text.case=upper", f"run_dir={tmp_path}/new", "trainer.max_steps=3")
    own.unlink()
    small_run.run("train", f"resume={tmp_path}/new", "trainer.max_steps=6", "allow_changes=true")
    pieces = tokenizer_from_state(load_checkpoint(checkpoint_file(f"{tmp_path}/new")).tokenizer).pieces
    assert {"<0xFF>", "<laugh>"} < {*pieces}
    # the model folds case
    written = (tmp_path / "new" / "decode" / "test.alignments.txt").read_text()
    assert any(number in written for number in NUMBERS)
    assert not any(number.upper() in written for number in NUMBERS)
    assert restore_text(tmp_path / "new").normalize("SIX") == "six"


def test_a_run_that_was_killed_before_its_first_checkpoint_is_resumed_from_its_source(small_run, tmp_path):
    run, latest = tmp_path / "new", tmp_path / "latest"
    latest.symlink_to(small_run.run_dir)
    train(small_run, tmp_path, f"init={latest}", "init.keep_tokenizer=true", "trainer.max_steps=3")
    latest.unlink()
    latest.symlink_to(run)  # as runs/latest does
    for name in ("report", "decode"):
        shutil.rmtree(run / name)
    shutil.move(run / "checkpoints", tmp_path / "finished")
    (run / "checkpoints").mkdir()
    small_run.run("train", f"resume={run}")
    whole, resumed = weights(tmp_path / "finished" / "last.ckpt"), weights(run / "checkpoints" / "last.ckpt")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["init=nowhere"], "init: 'nowhere'"),
        (["init='~/nowhere.pt'"], f"{Path.home()}/nowhere.pt"),
        (["encoder.d_model=24"], "encoder.subsampling.project.weight is [24, 40] here"),
        (["features.num_mels=40"], "features"),
        (["init.freeze=[nothing]"], "init.freeze: 'nothing'"),
        (["init.freeze=[encoder,nothing]"], "init.freeze: 'nothing'"),
        (["++best_lr.adamww=1e-3"], "best_lr.adamww"),
        (["init.keep_tokenizer=true", "init.path=null"], "init=PATH"),
        (["init.keep_tokenizer=true", "data.text.case=upper"], "data.text.case=lower"),
    ],
)
def test_what_cannot_start_a_run_is_said_before_it_begins(small_run, tmp_path, words, said):
    assert said in train(small_run, tmp_path, *words, code=2)
    assert not (tmp_path / "new").exists()
