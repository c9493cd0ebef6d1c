"""The HeavyBall family's rules beside independent packages, to 1e-5."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import optim
from tests.optim.training import make_parameters, run, values

BETAS = (0.8, 0.95)


def test_rmsprop_is_torchs_adam_without_momentum_as_long_as_eps_matters_to_neither():
    compare(optim.RMSprop, {"betas": BETAS}, torch.optim.Adam, {"betas": (0.0, BETAS[1]), "eps": 0.0})


def test_rmsprop_is_torchs_apart_from_the_correction_of_the_bias():
    params = make_parameters(torch.float64)
    twins = [nn.Parameter(value) for value in values(params)]
    optimizer = optim.RMSprop(params, lr=0.01, betas=BETAS)
    twin = torch.optim.RMSprop(twins, alpha=BETAS[1], eps=0.0)
    for step in range(25):
        run(optimizer, params, [step])
        # torch divides by an average that begins at zero, and so is too small
        twin.param_groups[0]["lr"] = 0.01 * (1 - BETAS[1] ** (step + 1)) ** 0.5
        run(twin, twins, [step])
    for param, other in zip(params, twins, strict=True):
        torch.testing.assert_close(param.detach(), other.detach(), rtol=1e-5, atol=1e-7)


def test_laprop_is_pytorch_optimizers():
    compare(optim.LaProp, {"betas": BETAS, "eps": 1e-12}, peer("LaProp"), {"betas": BETAS, "eps": 1e-12})


def test_adopt_is_pytorch_optimizers():
    options = {"betas": BETAS, "eps": 0.3, "weight_decay": 0.1}
    # it counts the steps of the bound from the first, which makes none; the paper from the second
    theirs = {**options, "weight_decouple": True, "clip_lambda": lambda step: (step - 1) ** 0.25}
    compare(optim.ADOPT, options, peer("ADOPT"), theirs)
    compare(optim.ADOPT, {**options, "clip_exponent": None}, peer("ADOPT"), {**theirs, "clip_lambda": None})


def test_lion_is_pytorch_optimizers():
    options = {"betas": BETAS, "weight_decay": 0.1}
    compare(optim.Lion, options, peer("Lion"), {**options, "weight_decouple": True})


def peer(name):
    return getattr(pytest.importorskip("pytorch_optimizer", reason="pip install '.[peers]'"), name)


def compare(ours, options, theirs, their_options):
    params = make_parameters(torch.float64)
    twins = [nn.Parameter(value) for value in values(params)]
    run(ours(params, lr=0.01, **options), params, range(25))
    run(theirs(twins, lr=0.01, **their_options), twins, range(25))
    for param, twin in zip(params, twins, strict=True):
        torch.testing.assert_close(param.detach(), twin.detach(), rtol=1e-5, atol=1e-7)
