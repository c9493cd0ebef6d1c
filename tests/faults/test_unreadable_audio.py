"""Audio that disappears or changes after it was prepared: counted, named, and never an end with 0 for nothing."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lhotse import CutSet, Recording

from asr.data.loading.loader import SpeechDataset
from asr.data.manifests.audio import audio_problem
from tests.data.corpora import SPEC, Recipe, run
from tests.faults.spoken_corpus import TRAIN, audio, write_audio, write_corpus
from werdict.errors import RunFailed


def without(split: str, number: int) -> Callable[[Path], None]:
    return lambda folder: [path.unlink() for path in audio(folder, split, "flac")[:number]] and None


# what is done, exit code, a part of the last line, a part of all that is printed
FAULTS = {
    "one of eight is missing": (without("train", 1), 0, "checkpoint: ", "could not be read and were left out"),
    "all are missing": (without("train", 8), 1, "more than the 1 that data.max_unreadable allows", "left out train"),
    "test is missing": (without("test", 2), 1, "none of the 2 utterances of test could be read", "checkpoint: "),
}


@pytest.fixture(scope="module")
def corpus(programs, tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("faults") / "corpus", "flac")
    programs.run("prepare", *TRAIN[:-1], cwd=folder)
    return folder


@pytest.mark.parametrize(("harm", "code", "last", "printed"), FAULTS.values(), ids=FAULTS)
def test_unreadable_audio_is_counted_and_too_much_of_it_ends_the_run(
    programs, corpus, tmp_path, harm, code, last, printed
):
    folder = Path(shutil.copytree(corpus, tmp_path / "here"))
    harm(folder)
    ended = programs.run("train", *TRAIN, cwd=folder, code=code)
    assert "Traceback" not in ended.printed
    assert last in ended.last_line
    assert printed in ended.printed
    if code == 0:
        summary = json.loads((folder / "run" / "report" / "summary.json").read_text())
        assert summary["training"]["num_unreadable"] == len(set(re.findall(r"left out (\S+):", ended.printed)))


CHANGES = {
    "missing": Path.unlink,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "shorter": lambda path: write_audio(path, 0.3),
    "longer": lambda path: write_audio(path, 1.7),
    "other rate": lambda path: write_audio(path, 1.0, 16_000),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_audio_that_cannot_be_read_any_more_is_left_out(tmp_path, change):
    prepared = run(tmp_path, Recipe())
    cuts = list(prepared.cuts("train"))
    change(Path(cuts[1].recording.sources[0].source))
    batch = SpeechDataset(SPEC.features, prepared.tokenizer, None)[(0, CutSet.from_cuts(cuts))]
    assert batch.ids == ("train-0", "train-2")
    ((cut, reason),) = batch.skipped
    assert (cut, "changed" in reason, "train-1.wav" in reason, "lhotse" in reason.lower()) == (
        "train-1",
        True,
        True,
        False,
    )


def test_audio_is_not_called_broken_where_no_more_files_may_be_opened(tmp_path):
    write_audio(tmp_path / "a.flac", 1.0)
    recording = Recording.from_file(tmp_path / "a.flac")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(RunFailed, match="ulimit -n"):
            audio_problem(recording)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
