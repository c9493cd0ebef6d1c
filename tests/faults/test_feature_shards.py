"""Training from shards of features: the same numbers as from files of features, also after kills."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lhotse import SupervisionSegment
from lhotse.cut import MonoCut
from lhotse.shar import SharWriter

from tests.data.feature_corpora import matrix, store, stored_utterance, write_folder
from tests.faults.spoken_corpus import SIZES, TINY, write_corpus
from tests.faults.test_shards import SHARDS, metrics, same_run

OF_NONE = tuple(word for word in TINY if not word.startswith("data.source"))
COMPUTED = ("data.source=my.tsv", "features=log_mel_precomputed")
BROUGHT = ("data.source=manifests", "features=precomputed", "data.num_features=5")
COMMON = (*OF_NONE, "augment=specaugment", "augment.features.max_feature_bins=1", "data.transcripts_lm=0")
KINDS = {"log-mel of audio": (COMPUTED, 80), "features without audio": (BROUGHT, 5)}
kinds = pytest.mark.parametrize(("words", "width"), KINDS.values(), ids=KINDS.keys())
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-1 </s>\n-0.5 a\n-0.5 b\n\n\\end\\\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Return a folder with a corpus of audio, and one of features."""
    folder = write_corpus(tmp_path_factory.mktemp("feature-shards") / "corpus")
    for split, size in SIZES.items():
        pairs = [
            stored_utterance(folder / "manifests", f"{split}{'x' * number}", text="ab"[number % 2])
            for number in range(size)
        ]
        write_folder(folder / "manifests", *pairs, split=f"_{split}")
    return folder


@pytest.fixture
def folder(place, tmp_path) -> Path:
    shutil.copytree(place, tmp_path / "here", symlinks=True)
    return tmp_path / "here"


def run(programs, folder: Path, *words: str, command: str = "train", code: int = 0) -> str:
    ended = programs.run(command, *words, cwd=folder)
    assert ended.code == code, ended.printed
    assert "Traceback" not in ended.printed
    return ended.last_line


@kinds
def test_a_run_from_shards_is_a_run_from_files_to_the_last_digit(programs, folder, words, width):
    run(programs, folder, *COMMON, *words, "run_dir=files")
    run(programs, folder, *COMMON, *words, *SHARDS, "data.workers.num_workers=2", "run_dir=run")
    assert same_run(folder / "files", folder / "run")
    assert metrics(folder / "files") == metrics(folder / "run")
    for file in (*folder.glob("*.wav"), *(folder / "manifests").rglob("*.npy"), *folder.glob("data/**/*.npy")):
        file.unlink()
    from_shards = ("data.source=shards", "features=precomputed", f"data.num_features={width}")
    run(programs, folder, *COMMON, *from_shards, "run_dir=again")
    assert same_run(folder / "files", folder / "again")
    assert metrics(folder / "files") == metrics(folder / "again")
    run(programs, folder, "run=run", "output_dir=one", command="evaluate")
    run(programs, folder, "run=again", "manifest=shards/test", "output_dir=two", command="evaluate")
    texts = [path.read_text() for name in ("one", "two") for path in sorted((folder / name).glob("*.hyp.txt"))]
    assert len(texts) == 2
    assert texts[0] == texts[1] == (folder / "files" / "decode" / "test.hyp.txt").read_text()
    (folder / "lm.arpa").write_text(ARPA)
    tuned = ("run=again", "tune=true", "manifest=shards/dev", "decoder=ctc_beam", "decoder.lm=lm.arpa")
    assert "tune=True: 2 of its utterances are among those" in run(programs, folder, *tuned, command="evaluate", code=2)


@pytest.fixture
def of_lhotse(tmp_path) -> Path:
    """Return a folder of Shar that lhotse has written, of 12 utterances."""
    write_corpus(tmp_path)
    (tmp_path / "shar").mkdir()
    with SharWriter(tmp_path / "shar", {"features": "numpy"}, shard_size=5) as writer:
        for number in range(12):
            segment = SupervisionSegment(f"s{number}", "r", 0.0, 1.0, text="ab"[number % 2])
            features = store(tmp_path, f"r{number}", matrix(100, seed=number))
            writer.write(MonoCut(f"c{number}", 0.0, 1.0, 0, [segment], features=features))
    return tmp_path


def test_a_shar_of_lhotse_is_trained_on(programs, of_lhotse):
    words = ("data.source=shar", "features=precomputed", "data.num_features=5", "run_dir=run")
    run(programs, of_lhotse, *COMMON, *words)
    assert (of_lhotse / "run" / "report" / "summary.json").is_file()
    assert not [path for path in of_lhotse.rglob("*.npy") if "matrices" not in path.parts]


def test_a_run_of_features_names_what_it_can_be_evaluated_on(programs, of_lhotse):
    words = ("features=precomputed", "data.num_features=5", "run_dir=run")
    run(programs, of_lhotse, *COMMON, "data.source=shar", *words)
    last = run(programs, of_lhotse, *COMMON, "data.source=my.tsv", "init=run", "run_dir=new", code=2)
    assert "best.ckpt was trained on stored features, and this run reads audio; choose another model" in last
    last = run(programs, of_lhotse, "run=run", "manifest=my.tsv", command="evaluate", code=2)
    assert "the run was trained on 5 features per frame every 10 ms without audio" in last
