"""The folders of runs and sweeps: what is left in them by a kill, an earlier report or somebody else."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from asr.run_folder import backup_existing
from asr.sweeps.records import JobRecord, records
from asr.sweeps.table import SweepTable, job_table
from asr.tracking.metrics_csv import MetricsCsv
from asr.tracking.wandb_logger import _run_id


def test_what_was_written_before_is_renamed_though_it_is_a_link(tmp_path):
    (tmp_path / "report").symlink_to("nowhere")
    (tmp_path / "report.backup1").symlink_to("nowhere")
    backup_existing(tmp_path, ("report",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.backup1", "report.backup2"]


@pytest.mark.parametrize("held", ["", "../../x", "a\n"])
def test_the_id_of_a_wandb_run_is_no_path(tmp_path, held):
    (tmp_path / "wandb_id").write_bytes(held.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="not the id of a wandb run; remove it"):
        _run_id(tmp_path)
    (tmp_path / "wandb_id").unlink()
    assert _run_id(tmp_path) == _run_id(tmp_path)


def test_a_broken_record_of_a_job_is_left_out_with_a_line(tmp_path, capsys):
    JobRecord("good", ["a=1"], "finished", 0, 1.0).save(tmp_path)
    (tmp_path / "jobs" / "j.json").write_text("{")
    (tmp_path / "jobs" / "k.json").write_text("[]")
    assert [record.name for record in records(tmp_path)] == ["good"]
    assert capsys.readouterr().out.count("left out:") == 2
    job_table(tmp_path, records(tmp_path))


def test_a_job_that_only_its_record_calls_finished_is_not_counted(tmp_path, capsys):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}, "sweep": {"target_wer": None}})
    JobRecord("theirs", [], "finished", 0, 1.0).save(tmp_path)
    JobRecord("j", [], "finished", 0, 1.0).save(tmp_path)
    (tmp_path / "j" / "report").mkdir(parents=True)
    (tmp_path / "j" / "report" / "summary.json").write_text("{}")
    SweepTable().on_multirun_end(config)
    printed = capsys.readouterr().out
    assert "left out: theirs: its record says finished, but its folder holds no report" in printed
    assert "1 jobs: 1 finished" in printed


def test_what_a_kill_left_of_a_row_is_dropped(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,name,value\r\n0,a,1.0\r\n3,a,1.0\r\n2,a,1.")
    MetricsCsv(tmp_path).resume(3)
    assert (tmp_path / "metrics.csv").read_text() == "step,name,value\n0,a,1.0\n"
