"""The folder of a run may come from a stranger: nothing is read without end, and nothing is written elsewhere."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from asr.cli.errors import ConfigError
from asr.cli.sweeps.gpus import VARIABLE, claimed_gpus
from asr.cli.sweeps.jobs import best_dev_wer, run_job
from asr.cli.sweeps.records import JobRecord, records
from asr.cli.sweeps.table import SweepTable, job_table
from asr.evaluation.comparison.inputs.run_files import read_curves, read_errors
from asr.evaluation.curves import plot_curves
from asr.evaluation.metrics_csv import read_metrics
from asr.evaluation.report import ERROR_COLUMNS
from asr.run_folder import backup_existing, check_run_folder, check_sweep_folder, create_run_folder, lock_run_dir
from asr.tracking.metrics_csv import MetricsCsv
from asr.tracking.wandb_logger import _run_id

Attack = Callable[[Path, Path], object]


@pytest.fixture
def victim(tmp_path) -> Path:
    """Return a folder of the user's, with a file that nobody may touch."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "precious.txt").write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def link(name: str, target: str = "precious.txt", leads: str = "") -> Attack:
    """Put a link to the victim's file in the place of something."""

    def attack(run_dir: Path, victim: Path) -> None:
        place = run_dir / name
        if place.is_dir() and not place.is_symlink():
            place.rename(run_dir / "moved")
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(leads or victim / target)

    return attack


def pipe(name: str) -> Attack:
    def attack(run_dir: Path, victim: Path) -> None:
        (run_dir / name).unlink(missing_ok=True)
        os.mkfifo(run_dir / name)

    return attack


def folder_at(name: str) -> Attack:
    def attack(run_dir: Path, victim: Path) -> None:
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / name).mkdir()

    return attack


def file_at(name: str) -> Attack:
    def attack(run_dir: Path, victim: Path) -> None:
        if (run_dir / name).exists():
            (run_dir / name).rename(run_dir / "moved")
        (run_dir / name).write_text("a file")

    return attack


OUT = "is a symbolic link that leads out of its folder"
FOLDERS = {
    ".lock is a link": (link(".lock"), OUT),
    "metrics.csv is a link": (link("metrics.csv"), OUT),
    "metrics.csv.tmp is a link": (link("metrics.csv.tmp"), OUT),
    "config.yaml is a link": (link("config.yaml"), OUT),
    "overrides.yaml is a link": (link("overrides.yaml"), OUT),
    "wandb_id is a link": (link("wandb_id"), OUT),
    "wandb is a link": (link("wandb", "."), OUT),
    "a log of wandb is a link": (link("wandb/offline-run-1/logs/debug.log"), OUT),
    "checkpoints is a link": (link("checkpoints", "."), OUT),
    "last.ckpt is a link": (link("checkpoints/last.ckpt"), OUT),
    "best.ckpt is a link": (link("checkpoints/best.ckpt"), OUT),
    "an update is a link": (link("checkpoints/update-000009.ckpt"), OUT),
    "a link to what is not there yet": (link("checkpoints/update-000009.ckpt", "new.txt"), OUT),
    "a relative link": (link("checkpoints/last.ckpt", leads="../../home/precious.txt"), OUT),
    "report is a link": (link("report", "."), OUT),
    "decode is a link": (link("decode", "."), OUT),
    "a file of the report is a link": (link("report/summary.json"), OUT),
    "a link of another name": (link("anything/at/all"), OUT),
    "a link to the file system": (link("checkpoints", leads="/"), OUT),
    ".lock is a pipe": (pipe(".lock"), ".lock is not a regular file"),
    "metrics.csv is a pipe": (pipe("metrics.csv"), "metrics.csv is not a regular file"),
    "accepted.yaml is a pipe": (pipe("accepted.yaml"), "accepted.yaml is not a regular file.*; remove it"),
    "wandb_id is a pipe": (pipe("wandb_id"), "wandb_id is not a regular file"),
    "a checkpoint is a pipe": (pipe("checkpoints/update-000009.ckpt"), "000009.ckpt is not a regular file"),
    ".lock is a folder": (folder_at(".lock"), ".lock is not a regular file"),
    "metrics.csv is a folder": (folder_at("metrics.csv"), "metrics.csv is not a regular file"),
    "a checkpoint is a folder": (folder_at("checkpoints/update-000009.ckpt"), "000009.ckpt is not a regular file"),
    "checkpoints is a file": (file_at("checkpoints"), "checkpoints is not a folder"),
    "report is a file": (file_at("report"), "report is not a folder"),
}


@pytest.mark.parametrize(("attack", "said"), FOLDERS.values(), ids=FOLDERS)
def test_a_hostile_run_folder_is_not_held(small_run, victim, tmp_path, attack, said):
    run_dir = small_run.copy(tmp_path / "run")
    attack(run_dir, victim)
    before = contents(victim)
    with pytest.raises(ValueError, match=said), lock_run_dir(run_dir):
        raise AssertionError("it was held")
    assert contents(victim) == before


RESUMED = (
    "config.yaml is a link",
    "overrides.yaml is a link",
    "wandb_id is a link",
    "wandb is a link",
    "decode is a link",
    ".lock is a link",
    "metrics.csv is a link",
    "checkpoints is a link",
    "last.ckpt is a link",
    "report is a link",
    ".lock is a pipe",
    "a checkpoint is a pipe",
)


@pytest.mark.parametrize("name", RESUMED)
def test_a_hostile_run_folder_is_not_resumed(small_run, victim, tmp_path, name):
    attack, said = FOLDERS[name]
    run_dir = small_run.copy(tmp_path / "run")
    attack(run_dir, victim)
    before = contents(victim)
    ended = small_run.run("train", f"resume={run_dir}")
    assert ended.code == 2
    assert said in ended.last_line
    assert contents(victim) == before


def test_a_run_folder_of_our_own_is_held_wherever_it_lies(small_run, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    log = run_dir / "wandb" / "offline-run-1" / "logs" / "debug-core.log"
    log.parent.mkdir(parents=True)
    log.symlink_to(tmp_path / "cache" / "core.log")  # as wandb does
    (run_dir / "wandb" / "latest-run").symlink_to("offline-run-1")
    (tmp_path / "way").symlink_to(run_dir)
    for folder in (run_dir, tmp_path / "way"):
        with lock_run_dir(folder):
            pass
    # a kill between two steps of writing
    (run_dir / "checkpoints" / "last.ckpt").unlink()
    (run_dir / "checkpoints" / "last.ckpt").symlink_to("update-000099.ckpt")
    check_run_folder(run_dir)


def test_what_was_written_before_is_renamed_though_it_is_a_link(tmp_path):
    (tmp_path / "report").symlink_to("nowhere")
    (tmp_path / "report.backup1").symlink_to("nowhere")
    backup_existing(tmp_path, ("report",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.backup1", "report.backup2"]


def test_hypotheses_are_not_written_through_a_link(small_run, victim, tmp_path):
    run_dir = small_run.copy(tmp_path / "run")
    link("decode", ".")(run_dir, victim)
    ended = small_run.run("evaluate", f"run={run_dir}")
    assert (ended.code, OUT in ended.last_line) == (2, True)
    with pytest.raises(ValueError, match=OUT):
        create_run_folder(run_dir / "decode", within=run_dir)
    assert list(contents(victim)) == ["precious.txt"]


def test_pictures_replace_links(small_run, victim, tmp_path):
    for name in ("loss", "wer", "lr"):
        (tmp_path / f"{name}.png").symlink_to(victim / "precious.txt")
    drawn = plot_curves(small_run.run_dir / "metrics.csv", tmp_path)
    assert all(path.is_file() and not path.is_symlink() for path in drawn)
    assert contents(victim) == {"precious.txt": "precious"}


@pytest.mark.parametrize("held", ["../../x", "a b"])
def test_the_id_of_a_wandb_run_is_no_path(tmp_path, held):
    (tmp_path / "wandb_id").write_bytes(held.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="not the id of a wandb run; remove it"):
        _run_id(tmp_path)
    (tmp_path / "wandb_id").unlink()
    assert _run_id(tmp_path) == _run_id(tmp_path)


JOB = {"name": "j", "overrides": ["a=1"], "status": "finished", "exit_code": 0, "seconds": 1.0}
JOBS = {
    "a list": "[]",
    "null": "null",
    "not JSON": "{",
    "nested deeply": "[" * 100_000,
    "other keys": '{"x": 1}',
    "a number as its name": json.dumps({**JOB, "name": 5}),
    "another name": json.dumps({**JOB, "name": "../../elsewhere"}),
    "overrides as text": json.dumps({**JOB, "overrides": "a=1"}),
    "overrides of numbers": json.dumps({**JOB, "overrides": [1]}),
    "no status": json.dumps({**JOB, "status": None}),
    "an exit code that is none": json.dumps({**JOB, "exit_code": {}}),
    "seconds that are none": json.dumps({**JOB, "seconds": "many"}),
    "a huge file": " " * (2**22 + 1),
    "bytes that are no text": "\udcff",
}


@pytest.mark.parametrize("text", JOBS.values(), ids=JOBS)
def test_a_broken_record_of_a_job_is_left_out_with_a_line(tmp_path, capsys, text):
    JobRecord("good", ["a=1"], "finished", 0, 1.0).save(tmp_path)
    (tmp_path / "jobs" / "j.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert [record.name for record in records(tmp_path)] == ["good"]
    assert "left out:" in capsys.readouterr().out
    job_table(tmp_path, records(tmp_path))


@pytest.mark.parametrize("name", ["jobs", "jobs/j.json", "jobs/j.json.tmp"])
def test_records_of_jobs_are_not_written_through_links(victim, tmp_path, name):
    sweep_dir = tmp_path / "sweep"
    link(name, "." if name == "jobs" else "precious.txt")(sweep_dir, victim)
    try:
        JobRecord(**JOB).save(sweep_dir)
    except ValueError as error:
        assert OUT in str(error)  # noqa: PT017
    assert contents(victim) == {"precious.txt": "precious"}


def test_a_job_of_a_sweep_that_is_a_link_is_not_run(victim, tmp_path, monkeypatch):
    monkeypatch.setattr("asr.cli.sweeps.jobs.job_name", lambda *_: "j")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "j").symlink_to(victim)
    with pytest.raises(ValueError, match=OUT):
        run_job("nothing", [], {}, tmp_path / "sweep")
    assert contents(victim) == {"precious.txt": "precious"}


SWEEPS = {
    "multirun.yaml is a link": (link("multirun.yaml"), OUT),
    "multirun.yaml is a relative link": (link("multirun.yaml", leads="../../home/precious.txt"), OUT),
    "multirun.yaml is a link to what is not there yet": (link("multirun.yaml", "new.txt"), "is not a regular file"),
    "multirun.yaml is a pipe": (pipe("multirun.yaml"), "is not a regular file"),
    "multirun.yaml is a folder": (folder_at("multirun.yaml"), "is not a regular file"),
    "jobs is a file": (file_at("jobs"), "is not a regular folder"),
    "jobs is a link": (link("jobs", "."), OUT),
    "a file of the launcher is a link": (link(".submitit/1/1_submitted.pkl"), OUT),
}


@pytest.mark.parametrize(("attack", "said"), SWEEPS.values(), ids=SWEEPS)
def test_a_hostile_folder_of_a_sweep_is_refused(victim, tmp_path, attack, said):
    sweep_dir = tmp_path / "runs" / "s"
    sweep_dir.mkdir(parents=True)
    check_sweep_folder(sweep_dir)
    attack(sweep_dir, victim)
    with pytest.raises(ValueError, match=said):
        check_sweep_folder(sweep_dir)


@pytest.mark.parametrize("name", ["multirun.yaml is a link", "multirun.yaml is a pipe"])
def test_nothing_is_written_to_a_hostile_folder_of_a_sweep(programs, victim, tmp_path, name):
    (tmp_path / "runs" / "s").mkdir(parents=True)
    SWEEPS[name][0](tmp_path / "runs" / "s", victim)
    ended = programs.run("train", "-m", "seed=1", "sweep.name=s", "trainer.max_steps=0", cwd=tmp_path, timeout_s=20)
    assert (ended.code, "multirun.yaml is " in ended.last_line) == (2, True), ended.printed
    assert contents(victim) == {"precious.txt": "precious"}
    assert [path.name for path in (tmp_path / "runs" / "s").iterdir()] == ["multirun.yaml"]


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


METRICS = {
    "no table": "\0\0\0",
    "a field of a million characters": "step,name,value\n1,val/wer," + "9" * 1_000_000,
    "no numbers": "step,name,value\na,val/wer,b\n",
    "infinite": "step,name,value\n1,val/wer,inf\n2,val/wer,nan\n3,val/wer,1e999\n",
    "wild": "step,name,value\n1,val/wer,1e308\n2,val/wer,-1e308\n3,val/wer,5e-324\n",
    "other columns": "a,b\n1,2\n",
    "empty": "",
    "no text": "\udcff\udcfe",
    "a number of 5000 digits": "step,name,value\n" + "9" * 5000 + ",val/wer,1\n",
}


@pytest.mark.parametrize("text", METRICS.values(), ids=METRICS)
def test_a_sweep_does_not_end_over_a_table_of_metrics(tmp_path, text):
    (tmp_path / "metrics.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert best_dev_wer(tmp_path) == float("inf")


@pytest.mark.parametrize("name", ["no table", "other columns", "empty", "no text", "a field of a million characters"])
def test_a_run_is_not_resumed_with_a_table_that_is_none(tmp_path, name):
    (tmp_path / "metrics.csv").write_bytes(METRICS[name].encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"metrics\.csv is not a table of metrics: .*; move it away to resume"):
        MetricsCsv(tmp_path).resume(3)


def test_what_a_kill_left_of_a_row_is_dropped(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,name,value\r\n0,a,1.0\r\nx,a,1.0\r\n3,a,1.0\r\n2,a")
    MetricsCsv(tmp_path).resume(3)
    assert (tmp_path / "metrics.csv").read_text() == "step,name,value\n0,a,1.0\n"


HEAD = "step,name,value\n"
LARGE = {
    "empty lines": (HEAD + "\n" * 2000, "it has more than 1000 lines"),
    "one line of zeros": (HEAD + "\0" * 70_000, "line 2 has more than 65536 characters"),
    "a header without end": ("step," * 20_000, "line 1 has more than 65536 characters"),
    "a quoted field over many lines": (HEAD + '1,"' + ("x" * 1000 + "\n") * 200, "field larger than field limit"),
    "many points": (HEAD + "1,val/wer,1\n" * 600, "it has more than 500 points"),
    "many rows without numbers": (HEAD + "x,val/wer,1\n" * 600, "it has more than 500 points"),
    "many curves": (HEAD + "".join(f"1,val/{n},1\n" for n in range(40)), "more than 500 points, or than 30 curves"),
}


@pytest.fixture
def small_limits(monkeypatch) -> None:
    for module in ("metrics_csv", "comparison.inputs.run_files"):
        monkeypatch.setattr(f"asr.evaluation.{module}.MAX_POINTS", 500)
    monkeypatch.setattr("asr.evaluation.metrics_csv.MAX_CURVES", 30)
    monkeypatch.setattr("asr.evaluation.metrics_csv.MAX_LINES", 1000)


@pytest.mark.parametrize("case", LARGE)
def test_a_table_that_would_fill_the_memory_has_no_curves(tmp_path, small_limits, case):
    text, said = LARGE[case]
    (tmp_path / "metrics.csv").write_text(text)
    for read in (read_curves, functools.partial(read_metrics, is_wanted=lambda name: name.startswith("val/"))):
        with pytest.raises(ValueError, match=rf"metrics\.csv is not a table of metrics: .*{said}"):
            read(tmp_path / "metrics.csv")


@pytest.mark.parametrize("case", list(LARGE)[:4])
def test_a_run_is_not_resumed_with_a_table_that_would_fill_the_memory(tmp_path, small_limits, case):
    text, said = LARGE[case]
    (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"metrics\.csv is not a table of metrics: .*{said}.*; move it away"):
        MetricsCsv(tmp_path).resume(3)
    assert (tmp_path / "metrics.csv").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


ERRORS = "\t".join(ERROR_COLUMNS) + "\n"
LARGE_ERRORS = {
    "a line of zeros": (ERRORS + "\0" * 70_000, "line 2 has more than 65536 characters"),
    "a header without end": ("a" * 70_000, "line 1 has more than 65536 characters"),
    "many utterances": (
        ERRORS + "".join(f"{n}\t\t1\t0\t0\t0\n" for n in range(30)),
        "line 22: the test sets of a run may have 20 utterances",
    ),
    "many tabs": (ERRORS + "a" + "\t" * 60_000, "line 2: expected a new id"),
}


@pytest.mark.parametrize(("text", "said"), LARGE_ERRORS.values(), ids=LARGE_ERRORS)
def test_errors_per_utterance_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr("asr.evaluation.comparison.inputs.run_files.MAX_UTTERANCES", 20)
    (tmp_path / "test.errors.tsv").write_text(text)
    with pytest.raises(ValueError, match=rf"test\.errors\.tsv, {said}"):
        read_errors(tmp_path / "test.errors.tsv")


SUMMARIES = {
    "a list": "[]",
    "sets as a list": '{"test": [1]}',
    "a WER as text": '{"test": {"test": {"wer": "low"}}}',
    "no WER": '{"test": {"test": {}}}',
    "a set as a number": '{"test": {"test": 3}}',
    "a huge number": '{"test": {"test": {"wer": 1e999}}}',
    "not JSON": "{",
    "null": "null",
}


@pytest.mark.parametrize("text", SUMMARIES.values(), ids=SUMMARIES)
def test_a_broken_summary_does_not_break_a_sweeps_table(tmp_path, text):
    (tmp_path / "j" / "report").mkdir(parents=True)
    (tmp_path / "j" / "report" / "summary.json").write_text(text)
    assert job_table(tmp_path, [JobRecord("j", [], "finished")]).row_count == 1


GPU_FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda place, victim: place.symlink_to(victim),
    "a file": lambda place, victim: place.write_text(""),
    "others may write there": lambda place, victim: (place.mkdir(), place.chmod(0o777)),
    "a link within it": lambda place, victim: (
        place.mkdir(mode=0o700),
        (place / "0").symlink_to(victim / "precious.txt"),
    ),
    "a pipe within it": lambda place, victim: (place.mkdir(mode=0o700), os.mkfifo(place / "0")),
}


@pytest.mark.parametrize("prepare", GPU_FOLDERS.values(), ids=GPU_FOLDERS)
def test_gpus_are_not_claimed_through_what_others_left_in_the_temporary_folder(victim, tmp_path, monkeypatch, prepare):
    (tmp_path / "temporary").mkdir()
    prepare(tmp_path / "temporary" / f"werdict-gpus-{os.getuid()}", victim)
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setattr("asr.cli.sweeps.gpus.tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    with (
        pytest.raises((ConfigError, ValueError), match=r"not a folder of yours|symbolic link|regular"),
        claimed_gpus(1),
    ):
        pass
    assert contents(victim) == {"precious.txt": "precious"}
