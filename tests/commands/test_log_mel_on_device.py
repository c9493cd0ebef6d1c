"""features=log_mel_on_device: the usual run, resumed exactly, and understood by every other command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.commands.test_resume import last, losses, same_weights
from tests.small_runs import TINY, SmallRun
from tests.training.runs import same

ON_DEVICE = (*TINY, "features=log_mel_on_device", "augment=speed_specaugment")


@pytest.fixture(scope="module")
def run_dir(small_run) -> Path:
    """A run that computes features on its device, in the folder of the small run and with its data."""
    ended = small_run.run("train", *ON_DEVICE, "run_dir=on_device")
    assert "preparing" not in ended.printed
    return small_run.folder / "on_device"


def flipped(checkpoint: Path, path: Path) -> Path:
    """Write the checkpoint of a run whose features are made in workers, as if they were made on the device."""
    state = torch.load(checkpoint, weights_only=True)
    state["werdict"]["config"]["features"]["on_device"] = True
    torch.save(state, path)
    return path


def test_it_learns_what_the_usual_run_learns_from_the_same_data(small_run, run_dir):
    small_run.run("train", *TINY, "augment=speed_specaugment", "run_dir=in_workers")
    both = [losses(small_run.folder / name) for name in ("in_workers", "on_device")]
    assert len(both[0]) == len(both[1]) == 6
    for ours, theirs in zip(*([float(line.split(",")[2]) for line in run] for run in both), strict=True):
        assert math.isclose(ours, theirs, rel_tol=1e-3)


def test_it_is_resumed_exactly(small_run, run_dir, tmp_path):
    folder = replace(small_run, run_dir=run_dir).interrupted(tmp_path / "killed")
    small_run.run("train", f"resume={folder}", "data.workers.num_workers=1")
    assert same_weights(last(run_dir), last(folder))
    assert same(last(run_dir)["optimizer_states"], last(folder)["optimizer_states"])


@pytest.mark.parametrize("command", ["evaluate", "transcribe"])
def test_decoding_is_that_of_features_from_workers(small_run, tmp_path, command):
    own = small_run.run_dir / "checkpoints" / "last.ckpt"
    runs = own, flipped(own, tmp_path / "on.ckpt")
    printed = [decode(small_run, command, run, tmp_path / run.stem) for run in runs]
    assert printed[0] == printed[1]


def decode(small_run: SmallRun, command: str, run: Path, output: Path) -> str:
    audio = (f"audio={small_run.audio}", "output_format=[tsv,ctm]") if command == "transcribe" else ()
    small_run.run(command, f"run={run}", *audio, f"output_dir={output}")
    files = [path for path in sorted(output.rglob("*")) if path.suffix in (".ctm", ".tsv")]
    assert files
    return "".join(file.read_text() for file in files)


def test_streaming_is_that_of_features_from_workers(small_run, causal, tmp_path):
    lines = []
    for run in (causal, flipped(causal, tmp_path / "on.ckpt")):
        ended = small_run.run("stream", f"run={run}", f"audio={small_run.audio}")
        lines.append(ended.printed.splitlines()[:-1])
    assert lines[0] == lines[1]
