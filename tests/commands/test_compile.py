"""trainer.compile=true as a command: resumed exactly, and refused with a line where it cannot work."""

from __future__ import annotations

import shutil

import pytest

from asr.training.checkpoints.files import point_link, update_file
from tests.commands.test_resume import last, same_weights
from tests.small_runs import TINY
from tests.training.runs import same

# traces as torch.compile does, without its compiler, which takes a minute
TRACED = {"asr.training.compiled_encoder.BACKEND": "eager"}


def test_a_run_is_resumed_exactly_and_decoded_by_other_commands(small_run, tmp_path):
    words = (*TINY, "trainer.compile=true")
    ended = small_run.run("train", *words, "run_dir=compiled", constants=TRACED, timeout_s=300)
    assert ended.code == 0, ended.printed
    whole, folder = small_run.folder / "compiled", tmp_path / "killed"
    assert list(last(whole)["state_dict"]) == list(last(small_run.run_dir)["state_dict"])
    shutil.copytree(whole, folder, symlinks=True)
    for name in ("report", "decode"):
        shutil.rmtree(folder / name)
    update_file(folder / "checkpoints", 6).unlink()
    point_link(folder / "checkpoints" / "last.ckpt", update_file(folder / "checkpoints", 3))
    refused = small_run.run("train", f"resume={folder}", "trainer.compile=false")
    assert refused.code == 2
    assert "trainer.compile: True in the run, False now" in refused.printed
    ended = small_run.run("train", f"resume={folder}", constants=TRACED, timeout_s=300)
    assert ended.code == 0, ended.printed
    assert same_weights(last(whole), last(folder))
    assert same(last(whole)["optimizer_states"], last(folder)["optimizer_states"])
    ended = small_run.run("evaluate", f"run={whole}", f"output_dir={tmp_path / 'out'}")
    assert ended.code == 0, ended.printed


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("trainer.compile=maybe",), {}, "trainer.compile must be true or false, given 'maybe'"),
        (
            ("trainer.compile=true", "encoder=zipformer_xs"),
            {},
            "compile=true: ZipformerEncoder draws in Python",
        ),
        (("trainer.compile=true",), {"CXX": "none"}, "trainer.compile=true: torch needs a compiler, and finds no none"),
    ],
)
def test_what_cannot_be_compiled_is_refused(small_run, words, environment, said):
    options = TINY if "encoder=zipformer_xs" not in words else ("logger=csv",)
    ended = small_run.run("train", *options, *words, environment=environment)
    assert ended.code == 2
    assert said in ended.last_line
