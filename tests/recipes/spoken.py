"""What is asked of every recipe that speaks its own corpus."""

import hashlib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def hashes(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.rglob("*.flac"))}


def check_goes_on(prepare: Callable[[Path], object], whole: Path, copy: Path) -> None:
    """An interrupted preparation speaks the shards that it lacks, and leaves the others alone."""
    shutil.copytree(whole, copy)
    audio = copy / "audio"
    shutil.rmtree(audio / "dev-000")
    (audio / "test-000").rename(audio / "test-000.partial")
    kept = (audio / "train-000").stat().st_mtime_ns
    prepare(copy)
    assert hashes(copy) == hashes(whole)
    assert (audio / "train-000").stat().st_mtime_ns == kept
    assert not (audio / "test-000.partial").exists()


def hide_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eSpeak NG look as if it was not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "espeakng_loader" else find(name))
