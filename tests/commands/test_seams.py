"""Options that cross several parts: recipes from elsewhere, stored features, precision, two processes at once."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.commands.conftest import TINY, Workplace

PREPARE = '''
from pathlib import Path
import numpy as np, soundfile
from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet
from asr.data.manifests.corpus import Corpus, Manifests

def prepare_beeps(output_dir: Path, *, source: str | None = None, count: int = 20) -> Corpus:
    """High and low beeps."""
    splits = {}
    for split in ("train", "dev", "test"):
        pairs = []
        for index in range(count):
            name, word = f"{split}{index}", ("low", "high")[index % 2]
            path = output_dir / f"{name}.wav"
            soundfile.write(path, 0.3 * np.sin(np.arange(8000) * (0.1 + 0.4 * (index % 2))), 16000)
            recording = Recording.from_file(path, recording_id=name)
            pairs.append((recording, SupervisionSegment(name, name, 0, recording.duration, text=word)))
        splits[split] = Manifests(
            RecordingSet.from_recordings(r for r, _ in pairs), SupervisionSet.from_segments(s for _, s in pairs)
        )
    return Corpus(splits)
'''
RECIPE = """# @package _global_
# beeps, to show that recipes may come from elsewhere
defaults:
  - override /encoder: transformer_xs
  - override /tokenizer: char
data:
  corpus: beeps
  prepare:
    _target_: asr.recipes.beeps.prepare.prepare_beeps
    _partial_: true
    count: 20
"""
MODEL = tuple(word for word in TINY if not word.startswith("data.prepare"))


@pytest.fixture
def recipes(tmp_path) -> Path:
    folder = tmp_path / "my recipes"
    (folder / "beeps").mkdir(parents=True)
    (folder / "beeps" / "prepare.py").write_text(PREPARE)
    (folder / "beeps" / "tiny.yaml").write_text(RECIPE)
    return folder


def test_a_recipe_outside_the_repository_trains_and_is_found_by_its_name(recipes, tmp_path):
    place = Workplace(tmp_path)
    where = f"recipes_dir='{recipes}'"
    printed = place.run("train", where, "recipe=beeps/tiny", *MODEL, "logger=none", "run_dir=run")
    assert "WER" in printed
    place.run("train", "-m", where, "recipe=beeps/tiny", *MODEL, "logger=none", "seed=1,2", "sweep.name=both")
    assert len(list((tmp_path / "runs" / "both").glob("*/decode/test.hyp.txt"))) == 2
    said = place.run("train", where, "recipe=beeps/tinny", code=2)
    assert "beeps/tiny" in said
    assert "digits/transformer_ctc" in said
    # decoding needs the checkpoint alone, not the recipe
    assert "WER" in place.run("evaluate", "run=run")


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


def test_changed_options_get_data_of_their_own(trained):
    """Another tokenizer shares the audio; another corpus size shares nothing."""
    trained.run("prepare", *TINY, "tokenizer=bpe", "data.vocab_size=30")
    trained.run("prepare", *TINY, "data.prepare.num_dev=9")
    corpora = {}
    for index in trained.folder.glob("data/digits/*/*/prepared.json"):
        corpora.setdefault(index.parent.parent.name, []).append(json.loads(index.read_text())["tokenizer"]["kind"])
    assert len(corpora) == 2
    assert "sentencepiece" in max(corpora.values(), key=len)


def test_hydras_own_flags_work(tmp_path):
    place = Workplace(tmp_path)
    config = yaml.safe_load(place.run("train", "--cfg", "job", "--resolve", "optimizer=eve"))
    assert config["optimizer"]["_target_"] == "optim.Eve"
    assert config["schedule"]["max_steps"] == config["trainer"]["max_steps"]
    assert list(tmp_path.iterdir()) == []
