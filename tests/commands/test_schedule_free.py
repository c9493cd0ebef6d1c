"""A run with Schedule-Free on the command line: killed and resumed, as one process and as two, and decoded."""

from __future__ import annotations

import pytest

from asr.run.build import validate_run
from tests.commands.conftest import Workplace
from tests.commands.test_resume import OPTIONS, TWO, data, last, losses, train_until_killed
from tests.configs import composed
from tests.training.runs import same

FREE = (*OPTIONS, "optimizer=schedule_free_adamw", "schedule=constant", "schedule.warmup_steps=4")


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory) -> Workplace:
    """A workplace with a run of one process, and one of two."""
    place = Workplace(tmp_path_factory.mktemp("schedule-free"))
    for name, more in (("alone", ()), ("ranks", (TWO,))):
        printed = place.run("train", *FREE, *more, f"run_dir={name}", f"data.dir={data(trained)}")
        assert "WARNING" not in printed
    return place


@pytest.mark.parametrize(("whole", "more"), [("alone", ()), ("ranks", (TWO,))], ids=["alone", "two processes"])
def test_a_killed_run_is_resumed_bit_for_bit(place, trained, tmp_path, whole, more):
    every = "callbacks.checkpoints.every_n_updates=1"  # in the middle of an epoch, too
    train_until_killed(tmp_path / "killed", 8, *FREE, *more, every, f"data.dir={data(trained)}")
    assert "resuming from update" in Workplace(tmp_path).run("train", "resume=killed")
    first, second = last(place.folder / whole), last(tmp_path / "killed")
    for key in ("state_dict", "optimizer_states", "averages", "global_step"):
        assert same(first[key], second[key]), key
    assert losses(place.folder / whole) == losses(tmp_path / "killed")


def test_decoding_the_checkpoint_gives_the_error_rate_that_validation_logged(place, trained):
    cuts = next(data(trained).glob("*/*/cuts_dev.jsonl"))
    place.run("evaluate", "run=alone", f"manifest={cuts}", "name=dev", "output_dir=dev")
    logged = [row.split(",") for row in (place.folder / "alone" / "metrics.csv").read_text().splitlines()]
    wer = next(float(value) for step, name, value in logged if (step, name) == ("11", "val/dev/wer"))
    assert f"WER {100 * wer:.2f} %" in (place.folder / "dev" / "dev.wer.txt").read_text()
    assert "average" in place.run("evaluate", "run=alone", "weights=average", "output_dir=average")


FREE_RULE = "{pattern:bias,optimizer:{_target_:optim.ScheduleFreeAdamW,_partial_:true,lr:0.01}}"


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (("optimizer=schedule_free_adamw", "schedule=eden"), True),
        (("optimizer=schedule_free_adamw", "schedule=constant"), False),
        (("optimizer=adamw", f"parameter_rules.rules=[{FREE_RULE},{{pattern:.}}]"), True),
        (("optimizer=adamw",), False),
    ],
)
def test_a_schedule_that_decays_is_warned_of(capsys, words, warned):
    validate_run(composed(*words).options)
    printed = capsys.readouterr().out
    assert ("WARNING" in printed, "schedule=constant" in " ".join(printed.split())) == (warned, warned)
