"""asr-compare on made run folders: what it prints, what it writes, and what it says where something is wrong."""

import itertools
import json
import re

import pytest

from asr.commands import compare as command
from asr.sweeps.jobs import JobRecord
from tests.commands.conftest import Workplace
from tests.commands.wandb_file import read_wandb
from tests.configs import composed
from tests.werdict.run_folders import write_run, write_sweep
from werdict.errors import ConfigError

UNFINISHED = (
    ("broken", "failed", 1),
    ("half", "running", None),
    ("killed", "failed", 137),
    ("alone", None, None),
)
RATES = {"adamw": 0.4, "eve": 0.1, "cain": 0.405}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Workplace:
    folder = tmp_path_factory.mktemp("compared")
    write_sweep(folder / "runs" / "first", RATES, seeds=(1, 2, 3, 4, 5), config={"sweep": {"target_wer": 0.3}})
    for seed, (name, status, code) in enumerate(UNFINISHED, start=6):
        half = write_run(folder / "runs" / "first" / name, "optimizer=eve", f"seed={seed}")
        (half / "report" / "summary.json").unlink()
        if status:
            JobRecord(name, [], status, code).save(folder / "runs" / "first")
    (folder / "runs" / "empty").mkdir()
    return Workplace(folder)


def test_a_sweep_is_compared_and_its_former_comparison_stays(workplace):
    printed = workplace.run("compare", "sweep=first", WANDB_API_KEY="")
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert any(re.match(r"eve better 0\.\d+ \[0\..* 5$", line) for line in lines), printed
    assert any(re.match(r"cain cannot distinguish .* 5$", line) for line in lines), printed
    for name, status, code in UNFINISHED:
        state = "failed" if (status, code) == ("failed", 1) else "not finished"
        assert any(
            line.startswith("problem: ") and f"{name} is left out: the run has {state}" in line for line in lines
        )
    assert any("eve 5 of 6" in line for line in lines), printed
    assert "Updates to 30 % WER on dev (fixed before)" in lines
    assert any(line.startswith("eve better 5 of 6 ≥ 70.6 0.66") for line in lines), printed
    first = workplace.folder / "runs" / "first" / "comparison"
    assert lines[-1] == f"comparison: {first}"
    assert lines[-2] == f"report: {first}/report.html"
    assert "eve is best, " in (first / "report.html").read_text()
    assert (first / "plots" / "dev_wer_updates.png").is_file()
    before = (first / "comparison.json").read_text()
    assert json.loads(before)["title"] == "first"
    again = workplace.run(
        "compare", "sweep=first", "baseline=eve", "pairs=all", "level=0.9", "target_wer=0.2", "minutes=0.5"
    )
    assert again.splitlines()[-1] == f"comparison: {first}-2"
    assert "Time to 20 % WER on dev (chosen after the runs)" in again
    assert "After 30 s of training" in again
    assert (first / "comparison.json").read_text() == before
    assert json.loads((first.with_name("comparison-2") / "comparison.json").read_text())["sets"][0]["baseline"] == "eve"


def test_the_commands_that_would_decide_what_is_open_are_printed(workplace):
    sweep = workplace.folder / "runs" / "open"
    write_sweep(sweep, {"adamw": 0.3, "eve": 0.2}, seeds=(1, 2, 3))
    for optimizer, seed in itertools.product(("adamw", "eve"), (1, 2, 3)):
        words = [f"optimizer={optimizer}", "sweep.name=open", f"seed={seed}"]
        JobRecord(f"optimizer={optimizer},seed={seed}", words, "finished").save(sweep)
    lines = workplace.run("compare", "sweep=open", "logger=none").splitlines()
    commands = [line for line in lines if line.startswith("asr-train -m sweep.name=open ")]
    assert [re.search(r"optimizer=(\w+)", line)[1] for line in commands] == ["eve", "adamw"]
    assert all("'seed=range(4," in line for line in commands)


def test_folders_are_compared_by_pattern_or_by_list(workplace, tmp_path):
    for name, optimizer, rate, seed in (("a", "adamw", 0.4, 1), ("b", "eve", 0.1, 1)):
        write_run(tmp_path / "runs" / name, f"optimizer={optimizer}", f"seed={seed}", rate=rate)
    here = Workplace(tmp_path)
    assert "one seed: not compared" in here.run("compare", "runs=runs/*", "out=mine")
    assert (tmp_path / "mine" / "comparison.json").is_file()
    printed = here.run("compare", "runs=[runs/a,runs/b]")
    assert re.search(rf"comparison: {tmp_path}/runs/comparison/\d{{4}}-\d\d-\d\d_\S+$", printed)
    (tmp_path / "runs" / "jobs").mkdir()
    assert "jobs" in here.run("compare", "runs/a", "runs/b", "runs/jobs").splitlines()[0]
    assert "'nowhere'" in here.run("compare", "runs/a", "nowhere", code=2)


def test_the_user_names_speakers(workplace, tmp_path):
    ids = [f"utt{index:02d}" for index in range(24)]
    (tmp_path / "utt2spk").write_text("".join(f"{id} {index % 2}\n" for index, id in enumerate(ids)))
    for option, number in ((f"speakers={tmp_path / 'utt2spk'}", 2), ('speaker_pattern="utt(.)"', 3)):
        printed = workplace.run("compare", "sweep=first", option, f"out={tmp_path / str(number)}")
        assert f"24 utterances, {number} speakers" in printed


def test_wandb_gets_one_run_with_the_table_in_the_sweeps_group(workplace):
    output = workplace.folder / "tracked"
    printed = workplace.run("compare", "sweep=first", "logger=wandb", f"out={output}")
    assert f"upload this comparison: wandb sync {output}/wandb/offline-run-" in printed.splitlines()[-2]
    found = read_wandb(output)
    assert {"test/table/_type", "report/_type", "wer_test/_type", "loss_updates/_type"} <= found.history
    assert float(found.summary["test/eve/wer"]) == pytest.approx((5 * 0.1 + 1) / 6, abs=0.03)  # one run has failed
    assert (found.job_type, found.group) == ("comparison", "first")
    assert (found.config["title"], found.config["unit"]) == ("first", "word")
    assert found.exit_codes == [0]


@pytest.mark.parametrize(
    "options",
    [
        *({"target_wer": "low"}, {"target_wer": 20}, {"pairs": "some"}, {"level": None}, {"baseline": None}),
        *({"level": 95}, {"minutes": 0}, {"speaker_pattern": "("}, {"id_pattern": "("}),
    ],
    ids=str,
)
def test_an_option_of_another_type_or_size_is_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        _ = composed("sweep=first", command="compare").with_values(options).options


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"sweep": "fist"}, "'first'"),
        ({"sweep": ".."}, "sweep"),
        ({"sweep": "empty"}, "runs/empty"),
        ({}, "sweep=NAME"),
        ({"runs": "runs/first/half"}, "half is left out"),
        ({"sweep": "first", "baseline": "nobody"}, "'nobody'"),
        ({"sweep": "first", "out": "runs/first"}, "out:"),
        ({"sweep": "first", "speaker_pattern": "utt0"}, "speaker_pattern"),
        ({"results": "a.trn", "runs": "b.trn"}, "results='[a.trn,b.trn]'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_before_anything_is_written(workplace, monkeypatch, options, part):
    monkeypatch.chdir(workplace.folder)
    before = sorted(workplace.folder.rglob("*"))
    given = composed(command="compare").with_values(options).options
    with pytest.raises(ValueError, match=re.escape(part)):
        command.run(given)
    assert sorted(workplace.folder.rglob("*")) == before
