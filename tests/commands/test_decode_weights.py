"""decode=[best,last,average]: the test sets with several weights of one run, of which the first are the result."""

import json
import shutil

import pytest

from tests.commands.conftest import TINY, Trained

WEIGHTS = {"last": "raw", "average": "average"}


@pytest.fixture(scope="module")
def several(trained) -> Trained:
    printed = trained.run("train", *TINY, "run_dir=several", "decode=[best,last,average]", "logger=csv")
    return Trained(trained.folder, trained.folder / "several", printed)


def summary_of(folder) -> dict:
    return json.loads((folder / "report" / "summary.json").read_text())


def test_the_first_weights_give_the_result_as_if_they_were_alone(several, trained):
    for path in sorted((trained.run_dir / "decode").glob("test.*")):
        assert (several.run_dir / "decode" / path.name).read_bytes() == path.read_bytes()
    alone, found = summary_of(trained.run_dir), summary_of(several.run_dir)
    assert set(found) - set(alone) == {"other_weights"}
    assert {**found["test"]["test"], "real_time_factor": 0} == {**alone["test"]["test"], "real_time_factor": 0}


@pytest.mark.parametrize("which", WEIGHTS)
def test_other_weights_are_those_of_the_last_checkpoint(several, which):
    found = summary_of(several.run_dir)["other_weights"][which]
    assert (found["checkpoint"], found["checkpoint_update"]) == ("last.ckpt", 12)
    output = several.folder / f"again-{which}"
    last = several.run_dir / "checkpoints" / "last.ckpt"
    several.run("evaluate", f"run={last}", f"weights={WEIGHTS[which]}", f"output_dir={output}")
    for name in ("test.hyp.txt", "test.errors.tsv"):
        assert (several.run_dir / "decode" / which / name).read_bytes() == (output / name).read_bytes()
    assert found["weights"].startswith(WEIGHTS[which])
    said = (several.run_dir / "decode" / which / "test.wer.txt").read_text()
    assert f"weights: {found['weights']}\n" in said


def test_a_finished_run_is_decoded_otherwise_when_it_is_resumed(several, tmp_path):
    last = summary_of(several.run_dir)["other_weights"]["last"]
    run_dir = shutil.copytree(several.run_dir, tmp_path / "run", symlinks=True)
    several.run("train", f"resume={run_dir}", "decode=[last,best]")
    found = summary_of(run_dir)
    assert (found["checkpoint"], set(found["other_weights"])) == ("last.ckpt", {"best"})
    assert found["test"]["test"]["wer"] == last["test"]["test"]["wer"]
    assert (run_dir / "decode.backup1" / "last").is_dir()


def test_averages_that_a_checkpoint_lacks_are_left_out_with_a_note(several):
    words = ("callbacks.averaging.every=50", "decode=[best,average]", "run_dir=late", "logger=none")
    printed = several.run("train", *TINY, *words)
    (note,) = [note for note in summary_of(several.folder / "late")["notes"] if "average" in note]
    assert note in printed
    assert "other_weights" not in summary_of(several.folder / "late")
