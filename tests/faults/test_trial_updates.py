"""Options that torch refuses only when it uses them: one line that names the key, before anything is prepared."""

from __future__ import annotations

import pytest

from tests.small_runs import TINY


def rule(options: str) -> str:
    return f"parameter_rules.rules=[{{pattern:bias}},{{pattern:'.*',{options}}}]"


RULE = "asr-train: parameter_rules.rules.1"
ONLY_LR = (
    *("~optimizer.weight_decay", "~optimizer.fused", "~optimizer.betas", "~optimizer.eps"),
    *("optimizer=torch_adamw", "parameter_rules=none"),
)
TORCH = ("optimizer=torch_adamw", "optimizer.fused=false")
SCHEDULE = ("schedule=constant", "~schedule.warmup_steps", "~schedule.max_steps")
LRS = "schedule._target_=torch.optim.lr_scheduler"
REFUSED = {
    "capturable": ((*TORCH, "+optimizer.capturable=true"), "optimizer.capturable=True: AdamW cannot make an update"),
    "differentiable": ((*TORCH, "+optimizer.differentiable=true"), "optimizer.differentiable=True: AdamW cannot make"),
    "no dense gradients": (
        ("optimizer._target_=torch.optim.SparseAdam", *ONLY_LR),
        "optimizer: SparseAdam cannot make an update: SparseAdam does not support dense gradients",
    ),
    "a rule: capturable": ((*TORCH, rule("capturable:true")), f"{RULE}.capturable=True: AdamW cannot make an update"),
    "a rule: two kernels": ((*TORCH, rule("foreach:true,fused:true")), f"{RULE}.foreach=True: AdamW cannot make"),
    "a rule: one beta": ((*TORCH, rule("betas:[0.9]")), f"{RULE}.betas must be a list of 2 values, given [0.9]"),
    "a rule: betas": ((*TORCH, rule("betas:[5,-3]")), f"{RULE}.betas=[5, -3]: AdamW cannot make an update: Invalid"),
    "a rule: decay": ((*TORCH, rule("weight_decay:-5")), f"{RULE}.weight_decay=-5: AdamW cannot make an update"),
    "a rule: text for a switch": ((*TORCH, rule("fused:yes")), f"{RULE}.fused must be true or false, given 'yes'"),
    "a rule: text for lr": ((*TORCH, rule("lr:abc")), f"{RULE}.lr must be a number, given 'abc'"),
    "a rule: an optimizer": (
        (*TORCH, rule("optimizer:{_target_:torch.optim.SGD,_partial_:true,lr:0.1},nesterov:true")),
        f"{RULE}.nesterov=True: SGD cannot make an update: Nesterov momentum requires",
    ),
    "steps of none": (
        (*SCHEDULE, f"{LRS}.StepLR", "+schedule.step_size=0"),
        "schedule: StepLR fails after update 1: ",
    ),
    "a cosine of none": (
        (*SCHEDULE, f"{LRS}.CosineAnnealingLR", "+schedule.T_max=0"),
        "schedule: CosineAnnealingLR fails after update 1: ",
    ),
    "a cycle that is too short": (
        (*SCHEDULE, f"{LRS}.OneCycleLR", "+schedule.max_lr=0.1", "+schedule.total_steps=3"),
        "schedule: OneCycleLR fails after update 4: ",
    ),
    "a power that divides by zero on the way": (
        (*SCHEDULE, f"{LRS}.PolynomialLR", "+schedule.power=-2", "+schedule.total_iters=3"),
        "schedule: PolynomialLR fails after update 3: ",
    ),
    "a cycle that divides by zero at once": (
        (*SCHEDULE, f"{LRS}.OneCycleLR", "+schedule.max_lr=0.1", "+schedule.total_steps=9", "+schedule.div_factor=0"),
        "schedule: OneCycleLR(max_lr=0.1, total_steps=9, div_factor=0.0): ZeroDivisionError: ",
    ),
    "a callback without a logger": (
        ("logger=none", "+callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor"),
        "callbacks: LearningRateMonitor and DeviceStatsMonitor need a logger",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_torch_refuses_only_later_is_refused_at_once(programs, tmp_path, words, said):
    ended = programs.run("train", *TINY, *words, cwd=tmp_path)
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
    assert not list(tmp_path.iterdir())


USED = {
    "a cycle": (*SCHEDULE, f"{LRS}.OneCycleLR", "+schedule.max_lr=0.1", "+schedule.total_steps=6"),
    "a closure": ("optimizer._target_=torch.optim.LBFGS", *ONLY_LR),
    "a rule for torch": (*TORCH, rule("betas:[0.8,0.9],foreach:true,lr:1e-3")),
}


@pytest.mark.parametrize("words", USED.values(), ids=USED)
def test_what_torch_takes_is_used(small_run, tmp_path, words):
    ended = small_run.run("train", *TINY, *words, "decode_test=false", f"run_dir={tmp_path / 'run'}")
    assert ended.code == 0, ended.printed
