"""The list of runs says how each stands; what it calls needless can be deleted."""

import json

import lightning.pytorch as pl

from asr.run.folder import lock_run_dir
from tests.small_runs import TINY


class Fails(pl.Callback):
    """Ends a run by itself."""

    def on_train_start(self, trainer, pl_module):
        raise ValueError("my mistake")


def test_runs_are_listed_with_their_state_results_and_size(small_run, tmp_path):
    place = tmp_path / "all"
    finished = small_run.copy(place / "deep" / "finished")
    small_run.interrupted(place / "interrupted")
    own = ("+callbacks.fails._target_=tests.commands.test_runs.Fails", f"data.dir={small_run.data_dir}")
    small_run.run("train", *TINY, *own, f"run_dir={place / 'failed'}", "seed=2", code=1)
    small_run.interrupted(place / "running")
    with lock_run_dir(place / "running"):
        found = listed(small_run, place, "seed")
    assert {row["run"].rpartition("/")[2]: row["status"] for row in found} == {
        name: name for name in ("finished", "interrupted", "failed", "running")
    }
    assert [row["seed"] for row in found] == [1, 1, 1, 2]
    rows = listed(small_run, place, "updates")
    assert [row["updates"] for row in rows] == [0, 3, 3, 6]
    done = rows[-1]
    assert (done["recipe"], done["max_updates"]) == ("digits/transformer_ctc", 6)
    summary = json.loads((finished / "report" / "summary.json").read_text())
    assert done["wer_test"] == {"test": summary["test"]["test"]["wer"]}
    assert done["wer_dev"] is not None
    assert listed(small_run, place, "wer_test")[0] == done  # others have none
    small_run.run("train", f"resume={place / 'failed'}", "~callbacks.fails")
    assert listed(small_run, place / "failed")[0]["status"] == "finished"


def test_the_checkpoints_that_it_calls_needless_are_not_needed_to_decode(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    printed = small_run.run("runs", f"folder={run_dir}").printed
    assert "rm RUN/checkpoints/update-*.ckpt RUN/checkpoints/last.ckpt" in printed
    (before,) = listed(small_run, run_dir)
    for path in [*(run_dir / "checkpoints").glob("update-*.ckpt"), run_dir / "checkpoints" / "last.ckpt"]:
        path.unlink()
    (after,) = listed(small_run, run_dir)
    assert abs(before["size_mb"] - after["size_mb"] - before["other_checkpoints_mb"]) <= 0.2
    assert after["other_checkpoints_mb"] == 0
    small_run.run("evaluate", f"run={run_dir}")


def test_a_folder_without_runs_is_refused(small_run, tmp_path):
    small_run.run("runs", f"folder=[{tmp_path},{tmp_path / 'nowhere'}]", code=2)
    small_run.run("runs", str(tmp_path), str(tmp_path), code=2)


def listed(small_run, folder, sort="started"):
    ended = small_run.run("runs", str(folder), f"sort={sort}", "output_format=json")
    return json.loads(ended.printed)
