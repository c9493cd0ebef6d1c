"""Audio that is other than when it was prepared: nothing that was made of the old one is taken for it."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.data.preparation.shards.audio import AudioField
from asr.data.preparation.shards.writing import ShardStorage
from tests.data.corpora import PRECOMPUTED, SPEC, Recipe, run

TINY_TABLE = "audio\ttext\tsplit\n" + "".join(f"{split}.wav\tone\t{split}\n" for split in ("train", "dev", "test"))


def audio_of(prepared) -> Path:
    return Path(next(iter(prepared.cuts("train"))).recording.sources[0].source)


def reversed_in_time(path: Path) -> None:
    samples, rate_hz = soundfile.read(path, dtype="int16")
    soundfile.write(path, samples[::-1], rate_hz)


def test_features_of_other_audio_are_refused(tmp_path):
    recipe = Recipe()
    path = audio_of(run(tmp_path, recipe, PRECOMPUTED))
    run(tmp_path, recipe, PRECOMPUTED)
    kept = path.read_bytes()
    reversed_in_time(path)
    with pytest.raises(ValueError, match=f"{path.name} has changed since the data in .*; restore it"):
        run(tmp_path, recipe, PRECOMPUTED)
    path.write_bytes(kept)
    run(tmp_path, recipe, PRECOMPUTED)
    path.unlink()  # features are all that is needed
    run(tmp_path, recipe, PRECOMPUTED)


def test_shards_of_other_audio_are_refused(tmp_path):
    recipe = Recipe()
    path = audio_of(run(tmp_path / "files", recipe))
    spec = replace(SPEC, shards=ShardStorage(tmp_path / "shards", AudioField()))
    run(tmp_path / "sharded", recipe, spec)
    (there,) = [one for one in (tmp_path / "sharded").rglob(path.name) if one.suffix == path.suffix]
    reversed_in_time(there)
    with pytest.raises(ValueError, match=f"{there.name} has changed since the data in"):
        run(tmp_path / "sharded", recipe, spec)


@pytest.fixture
def twins(tmp_path) -> list[Path]:
    """Return two folders with the same table, and with other audio of the same names."""
    folders = [tmp_path / "clean", tmp_path / "noisy"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        (folder / "table.tsv").write_text(TINY_TABLE)
        for number, split in enumerate(("train", "dev", "test")):
            samples = np.random.default_rng([seed, number]).normal(size=16_000) * 0.1
            soundfile.write(folder / f"{split}.wav", samples, 16_000)
    return folders


def prepared_from(programs, tmp_path, *words: str) -> str:
    ended = programs.run("prepare", "recipe=custom/transformer_ctc", *words, cwd=tmp_path)
    assert ended.code == 0, ended.printed
    (folder,) = [line.split(": ", 1)[1] for line in ended.printed.splitlines() if line.startswith("prepared data: ")]
    return folder


def test_two_tables_of_one_text_have_audio_of_their_own(programs, twins, tmp_path):
    found = [prepared_from(programs, tmp_path, f"data.source={folder}/table.tsv") for folder in twins]
    assert found[0] != found[1]
    assert prepared_from(programs, tmp_path, f"data.source={twins[0]}/table.tsv") == found[0]
    entries = [f"{{recipe: custom/transformer_ctc, name: {one.name}, source: {one}/table.tsv}}" for one in twins]
    mixture = prepared_from(programs, tmp_path, f"data.sources=[{','.join(entries)}]")
    manifests = b"".join(path.read_bytes() for path in Path(mixture).glob("cuts_*.jsonl"))
    assert all(str(folder / "train.wav").encode() in manifests for folder in twins)


def test_a_corpus_that_was_moved_is_prepared_from_where_it_is(programs, twins, tmp_path):
    before = prepared_from(programs, tmp_path, f"data.source={twins[0]}/table.tsv")
    shutil.move(twins[0], tmp_path / "moved")
    after = prepared_from(programs, tmp_path, f"data.source={tmp_path}/moved/table.tsv")
    assert before != after
    manifests = b"".join(path.read_bytes() for path in Path(after).glob("cuts_*.jsonl"))
    assert str(tmp_path / "moved" / "train.wav").encode() in manifests
