"""Training from shards of features: the same numbers as from files of features, also after kills."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from lhotse import SupervisionSegment
from lhotse.cut import MonoCut
from lhotse.shar import SharWriter

from tests.data.feature_corpora import matrix, store, stored_utterance, write_folder
from tests.faults.spoken_corpus import SIZES, TINY, write_corpus
from tests.faults.test_shards import SHARDS, metrics, same_run

pytestmark = pytest.mark.slow

OF_NONE = tuple(word for word in TINY if not word.startswith("data.source"))
COMPUTED = ("data.source=my.tsv", "features=log_mel_precomputed")
BROUGHT = ("data.source=manifests", "features=precomputed", "data.num_features=5")
COMMON = (*OF_NONE, "augment=specaugment", "augment.features.max_feature_bins=1", "data.transcripts_lm=0")
KINDS = {"log-mel of audio": (COMPUTED, 80), "features without audio": (BROUGHT, 5)}
kinds = pytest.mark.parametrize(("words", "width"), KINDS.values(), ids=KINDS.keys())
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-1 </s>\n-0.5 a\n-0.5 b\n\n\\end\\\n"
ONE_EACH = {"asr.data.preparation.saved_corpus.CHUNK_UTTERANCES": 1}


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


@kinds
def test_a_run_that_is_cut_off_is_resumed_exactly_once_its_shard_is_back(programs, folder, words, width):
    words = (*COMMON, *words, *SHARDS, "schedule.max_steps=6")
    run(programs, folder, *words, "run_dir=whole")
    run(programs, folder, *words, "run_dir=cut", "trainer.max_steps=3", "decode_test=false")
    tar = folder / "shards" / "train" / "features.000000.tar"
    kept, resumed = tar.read_bytes(), ("resume=cut", "trainer.max_steps=6", "allow_changes=true", "decode_test=true")
    for content, code, said in (
        (kept[:-512], 2, "bytes; it had"),
        (
            kept[:512] + bytes(len(kept) - 512),
            1,
            "has changed since the data were prepared: the checksum of the member",
        ),
    ):
        tar.write_bytes(content)
        assert said in run(programs, folder, *resumed, code=code)
    tar.write_bytes(kept)
    run(programs, folder, *resumed, "data.workers.num_workers=2")
    assert same_run(folder / "whole", folder / "cut")


@kinds
def test_a_preparation_that_was_killed_is_continued_and_writes_the_same_bytes(programs, folder, words, width):
    for name in ("whole", "killed"):
        shutil.copytree(folder, folder.parent / name, symlinks=True)
    words = (*COMMON, *words, *SHARDS, "data.num_jobs=2")
    run_whole = programs.run("prepare", *words, cwd=folder.parent / "whole", constants=ONE_EACH)
    assert run_whole.code == 0, run_whole.printed
    killed = folder.parent / "killed"
    process = programs.start("prepare", *words, cwd=killed, constants=ONE_EACH)
    while len(list((killed / "shards").rglob("features.*.tar"))) < 3:
        assert process.poll() is None, (killed / "log.txt").read_text()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in (killed / "shards").rglob("features.*.tar")}
    ended = programs.run("prepare", *words, cwd=killed, constants=ONE_EACH)
    assert ended.code == 0, ended.printed
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in kept.items())
    written = [
        {path.relative_to(place): path.read_bytes() for path in (place / "shards").rglob("*.*z")}
        | {path.relative_to(place): path.read_bytes() for path in (place / "shards").rglob("*.tar")}
        for place in (folder.parent / "whole", killed)
    ]
    assert len(written[0]) == 2 * sum(SIZES.values())
    assert written[0] == written[1]


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


def test_a_shar_that_lilcom_has_compressed_is_refused_with_what_to_do(programs, of_lhotse):
    for tar in (of_lhotse / "shar").glob("*.tar"):
        tar.write_bytes(tar.read_bytes().replace(b".npy", b".llc"))
        _mend(tar)
    words = ("data.source=shar", "features=precomputed", "data.num_features=5")
    last = run(programs, of_lhotse, *COMMON, *words, command="prepare", code=2)
    assert 'features compressed by lilcom, and is not read; write them with numpy: SharWriter(…, fields={"f' in last


def _mend(tar: Path) -> None:
    """Write the checksums of headers anew."""
    content = bytearray(tar.read_bytes())
    for start in range(0, len(content), 512):
        block = content[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % int(np.sum(block))
    tar.write_bytes(content)
