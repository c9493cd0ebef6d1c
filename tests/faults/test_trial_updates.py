"""Options that torch refuses only when it uses them: one line that names the key, before anything is prepared."""

from __future__ import annotations

import pytest

from tests.small_runs import TINY


def rule(options: str) -> str:
    return f"parameter_rules.rules=[{{pattern:bias}},{{pattern:'.*',{options}}}]"


ONLY_LR = ("~optimizer.fused", "~optimizer.betas", "optimizer=torch_adamw", "parameter_rules=none")
TORCH = ("optimizer=torch_adamw", "optimizer.fused=false")
SCHEDULE = ("schedule=constant", "~schedule.max_steps")
REFUSED = {
    "no dense gradients": (("optimizer._target_=torch.optim.SparseAdam", *ONLY_LR), "asr-train: optimizer: SparseAdam"),
    "a rule: betas": ((*TORCH, rule("betas:[5,-3]")), "asr-train: parameter_rules.rules.1: "),
    "steps of none": (
        (*SCHEDULE, "schedule._target_=torch.optim.lr_scheduler.StepLR", "+schedule.step_size=0"),
        "asr-train: schedule: ",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_torch_refuses_only_later_is_refused_at_once(programs, tmp_path, words, said):
    ended = programs.run("train", *TINY, *words, cwd=tmp_path, code=2)
    assert said in ended.last_line, ended.printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("optimizer._target_=torch.optim.LBFGS", *ONLY_LR)], ids=["a closure"])
def test_what_torch_takes_is_used(small_run, tmp_path, words):
    small_run.run("train", *TINY, *words, "decode_test=false", f"run_dir={tmp_path / 'run'}")
