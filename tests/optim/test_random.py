"""Random numbers of optimizers: plain statistics, and that they depend on nothing but what they are keyed by."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from optim.engine.random import Draw, key_of, uniform_number

CPU = torch.device("cpu")
COUNT = 1 << 16
KINDS = ("bits16", "uniform", "normal")


def draw(seed=0, step=1, purpose="probe", names=("layer.weight",)):
    return Draw(seed, step, purpose, [key_of(name) for name in names], CPU)


def standardized(kind, x):
    """Return draws of any kind as float64 with mean 0 and variance 1."""
    x = x.double()
    mean, variance = {"bits16": (-0.5, (2.0**32 - 1) / 12), "uniform": (0.5, 1 / 12)}.get(kind, (0.0, 1.0))
    return (x - mean) / variance**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_neighbors_are_those_of_independent_numbers(kind):
    x = standardized(kind, getattr(draw(), kind)(COUNT)[0])
    fourth = {"bits16": 1.8, "uniform": 1.8, "normal": 3.0}[kind]
    for value, expected, spread in ((x, 0, 1), (x**2, 1, 1.5), (x**3, 0, 4), (x**4, fourth, 10)):
        assert abs(value.mean().item() - expected) < 5 * spread / COUNT**0.5
    for lag in (1, 2, 3, 64, COUNT // 2):
        assert abs((x[lag:] * x[:-lag]).mean().item()) < 5 / (COUNT - lag) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_steps_parameters_purposes_and_seeds_are_uncorrelated(kind):
    draws = [draw(step=step) for step in range(1, 13)] + [draw(seed=seed) for seed in range(1, 13)]
    draws += [draw(purpose="round"), draw(names=("layer.bias",)), draw(names=("parameter 0 of group 1",))]
    rows = torch.stack([standardized(kind, getattr(each, kind)(4096)[0]) for each in draws])
    products = rows @ rows.T / 4096**0.5
    assert products.fill_diagonal_(0).abs().max() < 5


@pytest.mark.parametrize("kind", [*KINDS, "bits"])
@pytest.mark.parametrize("count", [0, 1, 7, 33])
def test_a_parameter_draws_the_same_alone_and_in_a_stack(kind, count):
    names = ["a", "b", "c"]
    together = getattr(draw(names=names), kind)(count)
    assert together.shape == (3, count)
    for name, row in zip(names, together, strict=True):
        assert torch.equal(getattr(draw(names=[name]), kind)(count)[0], row)


def test_draws_are_the_same_in_every_process():
    """Numbers of an earlier process: a change of them would break the resumption of runs."""
    assert draw().bits(3).tolist() == [[-703196460, 2142160489, 1411131033]]
    assert uniform_number(7, 3, "update") == 0.9363377432872123


def test_no_generator_is_read_or_changed():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    first = draw().normal(100)
    assert states() == before
    torch.manual_seed(1234)
    assert torch.equal(draw().normal(100), first)
