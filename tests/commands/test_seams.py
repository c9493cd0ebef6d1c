"""Options that cross several parts: recipes from elsewhere, stored features, precision, two processes at once."""

import re
import subprocess
import sys

import yaml

from tests.commands.conftest import TINY, Workplace
from tests.small_runs import TINY_MODEL

PREPARE = """
from asr.recipes.digits.prepare import prepare_digits

def prepare_beeps(output_dir, *, source=None, count: int = 4):
    return prepare_digits(output_dir, num_train=3 * count, num_dev=count, num_test=count)
"""
RECIPE = """# @package _global_
# beeps, to show that recipes may come from elsewhere
data:
  corpus: beeps
  prepare:
    _target_: asr.recipes.beeps.prepare.prepare_beeps
    _partial_: true
    count: 4
"""


def test_a_recipe_outside_the_repository_trains_and_is_found_by_its_name(programs, tmp_path):
    folder = tmp_path / "my recipes" / "beeps"
    folder.mkdir(parents=True)
    (folder / "prepare.py").write_text(PREPARE)
    (folder / "tiny.yaml").write_text(RECIPE)
    where = f"recipes_dir='{tmp_path}/my recipes'"
    words = ("-m", where, "recipe=beeps/tiny", *TINY_MODEL, "seed=1,2", "sweep.name=both")
    programs.run("train", *words, cwd=tmp_path, timeout_s=300)
    first, _ = tmp_path.glob("runs/both/*/decode/test.hyp.txt")
    programs.run("evaluate", f"run={first.parents[1].relative_to(tmp_path)}", "num_workers=0", cwd=tmp_path)
    ended = programs.run("train", where, "recipe=beeps/tinny", cwd=tmp_path, code=2)
    assert "beeps/tiny" in ended.last_line, ended.printed


def test_stored_features_give_the_numbers_of_computed_ones(trained):
    printed = trained.run("train", *TINY, "features=log_mel_precomputed", "run_dir=stored", "logger=none")
    assert "WER" in printed
    hypotheses = [(trained.folder / run / "decode" / "test.hyp.txt").read_text() for run in ("first", "stored")]
    assert hypotheses[0] == hypotheses[1]
    assert list(trained.folder.glob("data/digits/*/*/features"))


def test_mixed_precision_trains(trained):
    printed = trained.run("train", *TINY, "trainer.precision=bf16-mixed", "run_dir=mixed", "logger=none")
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]
    assert losses
    assert losses[-1] < losses[0]


def test_two_processes_prepare_once(tmp_path):
    command = [sys.executable, "-m", "asr.commands", "prepare", *TINY]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert sum("speaking train" in text for text in printed) == 1
    assert len(list(tmp_path.glob("data/digits/*/*/prepared.json"))) == 1


def test_hydras_own_flags_work(tmp_path):
    place = Workplace(tmp_path)
    config = yaml.safe_load(place.run("train", "--cfg", "job", "--resolve", "optimizer=eve"))
    assert config["optimizer"]["_target_"] == "optim.Eve"
    assert config["schedule"]["max_steps"] == config["trainer"]["max_steps"]
    assert list(tmp_path.iterdir()) == []
