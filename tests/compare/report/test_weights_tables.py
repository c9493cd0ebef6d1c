"""The table of WERs with other weights, and whether they change which system is better."""

import dataclasses

from asr.compare.compare import compare
from asr.compare.inputs.run_folders import read_runs
from asr.compare.report.weights_tables import weights_tables
from tests.compare.made_runs import sweep
from tests.compare.run_folders import write_run


def table_of(others):
    """Return the table and notes for runs with the best weights, and other WERs by kind and system."""
    runs = []
    for run in sweep():
        wers = {kind: by_system[run.system] for kind, by_system in others.items() if run.system in by_system}
        by_weights = {"best": {"test": run.sets["test"].wer}} | {kind: {"test": wer} for kind, wer in wers.items()}
        runs.append(dataclasses.replace(run, wers_by_weights=by_weights))
    tables = weights_tables(compare(runs, title="made"))
    if not tables:
        return None, []
    table = tables["test"]
    cells = {row[0].text: [f"{cell.text} {cell.detail}".strip() for cell in row[1:]] for row in table.rows}
    return ([column.name for column in table.columns], cells), table.notes


def test_means_stand_where_all_runs_of_a_system_have_them():
    (names, cells), notes = table_of({"last": {"adamw": 0.5, "eve": 0.2, "cain": 0.6}, "average": {"eve": 0.1}})
    assert names == ["system", "best WER %", "last WER %", "average WER %"]
    assert cells["eve"][1:] == ["20.00 ± 0.00", "10.00 ± 0.00"]
    assert cells["adamw"] == ["58.33 ± 1.67", "50.00 ± 0.00", "–"]
    assert len(notes) == 1  # one system alone has all


def test_the_order_is_said_to_hold_or_to_depend_on_the_weights():
    _, notes = table_of({"last": {"adamw": 0.5, "eve": 0.2, "cain": 0.6}})
    assert notes[-1] == "The order of the systems by mean WER is the same with best, last."
    _, notes = table_of({"last": {"adamw": 0.1, "eve": 0.2, "cain": 0.5}})
    assert notes[-1] == (
        "The order of the systems by mean WER depends on the weights: with best: eve, adamw, cain; with last: adamw, "
        "eve, cain."
    )


def test_with_one_kind_of_weights_there_is_no_table():
    assert table_of({}) == (None, [])
    assert weights_tables(compare(sweep(), title="made")) == {}


def test_wers_with_other_weights_are_read_from_a_run(tmp_path):
    other = {"last": {"test": {"test": {"wer": 0.25}}}, "average": {"test": {"test": {"wer": "low"}}}}
    decode = ["best", "last", "average"]
    write_run(tmp_path / "a", "seed=1", config={"decode": decode}, summary={"other_weights": other})
    write_run(tmp_path / "b", "seed=2", config={"decode": 7}, summary={"other_weights": 7})
    first, second = read_runs([tmp_path / "a", tmp_path / "b"], lambda config: ["decode"]).runs
    assert first.wers_by_weights == {"best": {"test": first.sets["test"].wer}, "last": {"test": 0.25}, "average": {}}
    assert second.wers_by_weights == {}
