"""Audio that disappears or changes after it was prepared: counted, named, and never an end with 0 for nothing."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, RecordingSet

from asr.data.loading.dataset import SpeechDataset
from asr.data.loading.perturb import SpeedPerturb
from asr.data.manifests.audio_checks import audio_problem
from asr.data.manifests.lhotse_jsonl import read_items
from asr.errors import RunFailed
from tests.data.corpora import SPEC, Recipe, run
from tests.faults.spoken_corpus import TRAIN, audio, write_audio, write_corpus

Harm = Callable[[Path], None]


def on(split: str, num: int, harm: Harm = Path.unlink) -> Harm:
    def harm_some(folder: Path) -> None:
        for path in audio(folder, split, "flac")[:num]:
            harm(path)

    return harm_some


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def shorter(path: Path) -> None:
    write_audio(path, 0.5)


def not_finite(path: Path) -> None:
    samples, rate_hz = soundfile.read(path)
    samples[4000] = np.nan
    soundfile.write(path, samples, rate_hz, format="WAV", subtype="FLOAT")


TOO_MANY = (
    "utterances of this epoch could not be read, more than the 1 that data.max_unreadable allows; the first: train"
)
# what is done, further words, exit code, a part of the last line, a part of all that is printed
FAULTS = {
    "one of eight is missing": (
        on("train", 1),
        (),
        0,
        "checkpoint: ",
        "utterances could not be read and were left out",
    ),
    "all are missing": (on("train", 8), (), 1, TOO_MANY, "left out train"),
    "all are missing, all may": (on("train", 8), ("data.max_unreadable=1",), 1, "nothing was learned", "is skipped"),
    "dev is missing": (on("dev", 2), (), 1, "none of the 2 utterances of dev could be read", "left out dev"),
    "test is missing": (on("test", 2), (), 1, "none of the 2 utterances of test could be read", "checkpoint: "),
    "the limit is 2": (on("train", 0), ("data.max_unreadable=2",), 2, "data.max_unreadable must be in [0, 1]", ""),
}


def test_audio_is_not_called_broken_where_no_more_files_may_be_opened(tmp_path):
    write_audio(tmp_path / "a.flac", 1.0)
    recording = Recording.from_file(tmp_path / "a.flac")
    manifest = tmp_path / "recordings.jsonl.gz"
    RecordingSet.from_recordings([recording]).to_file(manifest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for read in (lambda: audio_problem(recording), lambda: read_items(manifest, Recording)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            with pytest.raises(RunFailed, match=r"too many open files for .* to be read; .*ulimit -n"):
                read()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def corpus(programs, tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("faults") / "corpus", "flac")
    ended = programs.run("prepare", *TRAIN[:-1], cwd=folder)
    assert ended.code == 0, ended.printed
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "words", "code", "last", "printed"), FAULTS.values(), ids=FAULTS.keys())
def test_unreadable_audio_is_counted_and_too_much_of_it_ends_the_run(
    programs, corpus, harm, words, code, last, printed
):
    kept = corpus.with_name("kept")
    shutil.copytree(corpus, kept)
    try:
        harm(corpus)
        ended = programs.run("train", *TRAIN, *words, cwd=corpus)
        assert (ended.code, "Traceback" in ended.printed) == (code, False), ended.printed
        assert last in ended.last_line
        assert printed in ended.printed
        assert (corpus / "run" / "report" / "summary.json").exists() == (code == 0 or "of test could" in last)
        assert code != 2 or not (corpus / "run").exists()
        if code == 0:
            summary = json.loads((corpus / "run" / "report" / "summary.json").read_text())
            assert summary["training"]["num_unreadable"] == len(set(re.findall(r"left out (\S+):", ended.printed)))
    finally:
        shutil.rmtree(corpus)
        kept.rename(corpus)


CHANGES = {
    "missing": Path.unlink,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "shorter": lambda path: write_audio(path, 0.3),
    "text": lambda path: path.write_text("hello"),
    "not finite": not_finite,
}


@pytest.mark.parametrize("perturb", [None, SpeedPerturb((0.9,))], ids=["as it is", "perturbed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_audio_that_cannot_be_read_any_more_is_left_out(tmp_path, change, perturb):
    prepared = run(tmp_path, Recipe())
    cuts = list(prepared.cuts("train"))
    change(Path(cuts[1].recording.sources[0].source))
    batch = SpeechDataset(SPEC.features, prepared.tokenizer, perturb)[(0, CutSet.from_cuts(cuts))]
    assert batch.ids == ("train-0", "train-2")
    assert [cut for cut, _ in batch.skipped] == ["train-1"]


@pytest.mark.slow
def test_a_test_set_that_cannot_be_read_ends_an_evaluation_with_1(programs, corpus):
    assert programs.run("train", *TRAIN[:-1], "run_dir=whole", cwd=corpus).code == 0
    files = audio(corpus, "test", "flac")
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    try:
        ended = programs.run("evaluate", "run=whole", "num_workers=0", cwd=corpus)
    finally:
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
    assert (ended.code, "Traceback" in ended.printed) == (1, False), ended.printed
    assert "none of the 2 utterances of test could be read" in ended.last_line
    shutil.rmtree(corpus / "whole")
