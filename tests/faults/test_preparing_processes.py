"""Several processes prepare data: whatever ends one or all, one line says so, and the same command continues."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.spoken_corpus import TINY, write_audio
from tests.programs import Started, is_running, wait_until

NUM_UTTERANCES = 120
WORDS = (*TINY, "features=log_mel_precomputed", "data.num_jobs=2")
ONE_EACH = {"asr.data.preparation.saved_corpus.CHUNK_UTTERANCES": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared-by-several")
    rows = ["audio\ttext\tsplit"]
    for number in range(NUM_UTTERANCES):
        write_audio(folder / f"{number:03}.wav", 1 + number / 50)
        split = {0: "dev", 1: "test"}.get(number % 20, "train")
        rows.append(f"{folder}/{number:03}.wav\t{'ab' * (1 + number % 3)}\t{split}")
    (folder / "my.tsv").write_text("\n".join(rows) + "\n")
    return folder


def children(process: Started) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def to_all(number: signal.Signals) -> Callable[[Started, list[int]], None]:
    return lambda process, working: os.killpg(process.pid, number)


def to_the_parent(number: signal.Signals) -> Callable[[Started, list[int]], None]:
    return lambda process, working: os.kill(process.pid, number)


def to_a_child(process: Started, working: list[int]) -> None:
    os.kill(working[-1], signal.SIGKILL)


ENDS = {
    "a kill": (to_the_parent(signal.SIGKILL), -signal.SIGKILL, ""),
    "Ctrl-C": (to_all(signal.SIGINT), 130, "asr-prepare: interrupted"),
    "a signal": (to_all(signal.SIGTERM), 143, "asr-prepare: ended by SIGTERM"),
    "a killed child": (to_a_child, 1, "a process that prepares data was lost"),
}


@pytest.mark.parametrize(("end", "code", "said"), ENDS.values(), ids=ENDS.keys())
def test_a_preparation_that_was_ended_leaves_no_process_and_is_continued(programs, corpus, tmp_path, end, code, said):
    words = (*WORDS, f"data.source={corpus / 'my.tsv'}")
    process = programs.start("prepare", *words, cwd=tmp_path, constants=ONE_EACH)
    while len(stored := list(tmp_path.rglob("stored-train-*.jsonl"))) < 10:
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.005)
    working = children(process)
    end(process, working)
    assert process.wait(timeout=120) == code
    printed = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in printed, printed
    assert said in printed
    wait_until(lambda: not any(map(is_running, working)), 20)
    assert not list(tmp_path.rglob("prepared.json"))
    # what is done is not done again
    again = next(tmp_path.glob("data/*/*.chunks"))
    times = {path.name: path.stat().st_mtime_ns for path in stored}
    resumed = programs.start("prepare", *words, cwd=tmp_path, constants=ONE_EACH)
    while resumed.poll() is None and again.exists():
        assert all(path.stat().st_mtime_ns == times[path.name] for path in stored if path.exists())
        time.sleep(0.005)
    assert resumed.wait(timeout=120) == 0, (tmp_path / "log.txt").read_text()
    (cuts,) = tmp_path.rglob("cuts_train.jsonl")
    assert len(cuts.read_text().splitlines()) == NUM_UTTERANCES * 18 // 20
    assert not list(tmp_path.rglob("*.chunks"))
