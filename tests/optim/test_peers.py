"""The HeavyBall family's rules beside independent packages, to 1e-5."""

from __future__ import annotations

import pytest
import torch

import optim
from tests.optim.training import copies, make_parameters, run, run_both

BETAS = (0.8, 0.95)
DECAYED = {"betas": BETAS, "weight_decay": 0.1}
CLIPPED = {**DECAYED, "eps": 0.3}
# the peer counts the steps of ADOPT's bound from the first, which makes none; the paper from the second
ADOPT = {**CLIPPED, "weight_decouple": True, "clip_lambda": lambda step: (step - 1) ** 0.25}
MIXED = {"betas": (*BETAS, 0.99), "alpha": 5.0, "weight_decay": 0.1}
COUPLED = {"weight_decouple": True}
ESTIMATED = {**DECAYED, "d0": 0.1, "d_coef": 2.0, "growth_rate": 1.3}


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        ("LaProp", {"betas": BETAS, "eps": 1e-12}, {"betas": BETAS, "eps": 1e-12}),
        ("ADOPT", CLIPPED, ADOPT),
        ("ADOPT", {**CLIPPED, "clip_exponent": None}, {**ADOPT, "clip_lambda": None}),
        ("Lion", DECAYED, {**DECAYED, "weight_decouple": True}),
        ("AdEMAMix", {**MIXED, "alpha_warmup": 10, "beta3_warmup": 10}, {**MIXED, **COUPLED, "t_alpha_beta3": 10}),
        ("Prodigy", ESTIMATED, ESTIMATED),
    ],
)
def test_pytorch_optimizer_makes_the_same_steps(name, options, theirs):
    peers = pytest.importorskip("pytorch_optimizer", reason="pip install '.[peers]'")
    params = make_parameters(torch.float64)
    twins = copies(params)
    optimizer = getattr(optim, name)(params, lr=0.01, **options)
    run_both((optimizer, params), (getattr(peers, name)(twins, lr=0.01, **theirs), twins), range(25))
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-7)


def test_rmsprop_is_torchs_apart_from_the_correction_of_the_bias():
    params = make_parameters(torch.float64)
    twins = copies(params)
    optimizer = optim.RMSprop(params, lr=0.01, betas=BETAS)
    twin = torch.optim.RMSprop(twins, alpha=BETAS[1], eps=0.0)
    for step in range(25):
        run(optimizer, params, [step])
        # torch divides by an average that begins at zero, and so is too small
        twin.param_groups[0]["lr"] = 0.01 * (1 - BETAS[1] ** (step + 1)) ** 0.5
        run(twin, twins, [step])
    torch.testing.assert_close(params, twins, rtol=1e-5, atol=1e-7)
