"""An export that does not fit leaves nothing, and one line that says why."""

from __future__ import annotations

import importlib.util

import pytest

from tests.faults.conftest import fill

# words, bytes of room, packages
EXPORTS = {
    "TorchScript": (["format=torch"], 4096 * 2, ()),
    "nothing at all": (["format=torch"], 0, ()),
    # the first file fits, and what is written to make the second does not
    "ONNX of eight bits": (["format=onnx", "quantize=int8"], 4096 * 30, ("onnx", "onnxruntime")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_that_does_not_fit_leaves_nothing(small_run, small_disk, name):
    words, room, packages = EXPORTS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra export)")
    fill(small_disk, room)
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={small_disk}/out", *words)
    assert ended.code == 1, ended.printed
    assert "Traceback" not in ended.printed
    assert ended.last_line == (
        f"asr-export: output: '{small_disk}/out' could not be written: No space left on device; no part of it was "
        "left; make room there (df, quota, permissions), or name a folder elsewhere, and export again"
    )
    assert [path.name for path in small_disk.iterdir()] == ["filling"]
    assert ("model.onnx: " in ended.printed) == (room > 4096 * 2)
