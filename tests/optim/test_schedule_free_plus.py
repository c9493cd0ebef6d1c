"""The rate that follows from the loss, beside a plain form of the author's code."""

from __future__ import annotations

import math

import pytest
import torch

import optim
from tests.optim.training import copies, make_gradient, make_parameters, run

SETTINGS = [
    {},
    {"weight_decay": 3.0, "c_warmup": 3, "r": 2.0, "polyak_beta": 0.8},
    {"sf_beta1": 0.7, "sf_beta1_max": 0.95, "sf_beta1_anneal_steps": 12, "betas": (0.8, 0.9), "lr": 0.5},
]


def plain(params, losses, lr=1.0, betas=(0.9, 0.95), sf_beta1=0.9, sf_beta1_max=0.965, sf_beta1_anneal_steps=0,
          weight_decay=0.0, polyak_beta=0.0, c_warmup=0, r=0.0):  # fmt: skip
    """Return x of every parameter: AdamCScheduleFreePlusPaper of facebookresearch/schedule_free, written out."""
    x, y, z = ([p.clone() for p in params] for _ in range(3))
    m, v = ([torch.zeros_like(p) for p in params] for _ in range(2))
    size = lr_max = weight_sum = 0.0
    for k, loss in enumerate(losses):
        grads = [make_gradient(p, k, place) for place, p in enumerate(params)]
        progress = min(k / sf_beta1_anneal_steps, 1.0) if sf_beta1_anneal_steps else 0.0
        beta = 1 - math.exp(math.log(1 - sf_beta1) * (1 - progress) + math.log(1 - sf_beta1_max) * progress)
        l1 = sum(g.abs().sum().item() for g in grads)
        inner = beta * sum((g * (c - a)).sum().item() for g, c, a in zip(grads, z, x, strict=True))
        size = polyak_beta * size + (1 - polyak_beta) * l1 * math.sqrt(math.pi / 2)
        rate = lr * max(0.0, loss + inner) / (size / (1 - polyak_beta ** (k + 1)))
        lr_max, share = max(rate, lr_max), 1.0
        if k >= c_warmup:
            weight = (k + 1) ** r * lr_max**2
            weight_sum += weight
            share = weight / weight_sum
        for i, g in enumerate(grads):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g**2
            adam = m[i] / (1 - betas[0] ** (k + 1)) / ((v[i] / (1 - betas[1] ** (k + 1))).sqrt() + 1e-8)
            z[i] = z[i] - rate**2 * weight_decay * y[i] - rate * adam
            x[i] = (1 - share) * x[i] + share * z[i]
            y[i] = beta * x[i] + (1 - beta) * z[i]
    return x


def train(optimizer, params, losses):
    for step, loss in enumerate(losses):

        def closure(step=step, loss=loss):
            for place, param in enumerate(params):
                param.grad = make_gradient(param, step, place)
            return torch.tensor(loss, dtype=torch.float64)

        optimizer.step(closure)


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("options", SETTINGS)
def test_the_authors_steps_are_followed_with_losses(options, place, request):
    if place == "gpu":
        request.getfixturevalue("steps_as_on_a_gpu")
    params = make_parameters(torch.float64) + make_parameters(torch.float64, seed=1)
    start = [p.detach().clone() for p in params]
    losses = [30.0 / (k + 1) for k in range(20)]
    optimizer = optim.ScheduleFreePlus([{"params": params[:6]}, {"params": params[6:]}], **options)
    train(optimizer, params, losses)
    optimizer.eval()
    torch.testing.assert_close([p.detach() for p in params], plain(start, losses, **options), rtol=1e-10, atol=1e-12)


def test_a_step_without_a_loss_keeps_the_rate_and_one_of_a_combination_gets_it():
    params, twins = make_parameters(torch.float64), make_parameters(torch.float64)
    alone, member = optim.ScheduleFreePlus(params), optim.ScheduleFreePlus(twins)
    other = make_parameters()[3]
    train(alone, params, [3.0, 2.0])
    train(optim.Combined([member, optim.AdamW([other])]), twins, [3.0, 2.0])
    assert all(map(torch.equal, params, twins))
    rate = alone.param_groups[0]["shared_state"]["estimated_lr"].clone()
    run(alone, params, [2])
    assert alone.param_groups[0]["shared_state"]["estimated_lr"] == rate != 1


def test_losses_count_in_steps_of_a_graph_and_of_half_precision():
    params = make_parameters()
    twins, small = copies(params), [torch.nn.Parameter(p.detach().bfloat16()) for p in params]
    for owners, options in ((params, {"capturable": True}), (twins, {}), (small, {})):
        train(optim.ScheduleFreePlus(owners, sf_beta1_anneal_steps=3, c_warmup=2, **options), owners, [30.0] * 6)
    torch.testing.assert_close(params, twins)
    torch.testing.assert_close([p.detach().float() for p in small], [p.detach() for p in twins], rtol=0.02, atol=0.02)
