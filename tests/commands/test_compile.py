"""trainer.compile=true as a command: resumed exactly, and refused with a line where it cannot work."""

from __future__ import annotations

from dataclasses import replace

from tests.commands.test_resume import last, same_weights
from tests.small_runs import TINY
from tests.training.runs import same

# traces as torch.compile does, without its compiler, which takes a minute
TRACED = {"asr.training.cuda_graphs.BACKEND": "eager"}


def test_a_run_is_resumed_exactly_and_decoded_by_other_commands(small_run, tmp_path):
    words = (*TINY, "trainer.compile=true")
    small_run.run("train", *words, "run_dir=compiled", constants=TRACED, timeout_s=300)
    whole = small_run.folder / "compiled"
    assert list(last(whole)["state_dict"]) == list(last(small_run.run_dir)["state_dict"])
    folder = replace(small_run, run_dir=whole).interrupted(tmp_path / "killed")
    refused = small_run.run("train", f"resume={folder}", "trainer.compile=false", code=2)
    assert "trainer.compile: True in the run, False now" in refused.printed
    small_run.run("train", f"resume={folder}", constants=TRACED, timeout_s=300)
    assert same_weights(last(whole), last(folder))
    assert same(last(whole)["optimizer_states"], last(folder)["optimizer_states"])
    small_run.run("evaluate", f"run={whole}", f"output_dir={tmp_path / 'out'}")
