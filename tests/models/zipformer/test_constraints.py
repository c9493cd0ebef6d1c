"""Balancer, Whiten and limits change gradients as they are defined, and as the authors' package does."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.zipformer import scaling
from asr.models.encoders.zipformer.modules import SignPenalty, attend, attention_weights
from asr.models.encoders.zipformer.scaling import OFTEN, SELDOM, Balancer, BatchCount, Whiten, limit_param_value

pytestmark = pytest.mark.usefixtures("double")


def changed_gradient(module, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    if hasattr(module, "batch_count"):
        module.batch_count.begin_pass(x.device)
    y = module(x)
    assert torch.equal(y, x)
    y.backward(gradient)
    assert x.grad is not None
    return x.grad


def channels(num_frames: int = 50) -> torch.Tensor:
    """Return (2, T, 6): well inside, too large, too small, mean too high, mean too low and large, constant."""
    torch.manual_seed(0)
    x = torch.randn(2, num_frames, 6)
    x[..., 5] = 0.0
    scale, shift = torch.tensor([1.0, 9.0, 0.01, 1.0, 20.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 2.0, -60.0, 3.0])
    return x * scale + shift


def test_a_balancer_is_the_authors(authors, decide):
    decide(0.0)
    limits = {"min_positive": 0.3, "max_positive": 0.7, "min_abs": 0.2, "max_abs": 4.0}
    ours = Balancer(BatchCount(), **limits, probability=1.0)
    theirs = authors.scaling.Balancer(6, channel_dim=-1, **limits, prob=1.0)
    x, gradient = channels(), torch.randn(2, 50, 6)
    expected = changed_gradient(theirs, x, gradient)
    torch.testing.assert_close(changed_gradient(ours, x, gradient), expected, rtol=1e-9, atol=1e-12)


def test_a_balancer_works_as_often_as_it_should_and_never_outside_of_training():
    torch.manual_seed(0)
    balancer = Balancer(BatchCount(), 0.3, 0.7, 0.2, 4.0, probability=0.3)
    x, gradient = channels(5), torch.ones(2, 5, 6)

    def changes() -> bool:
        return not torch.equal(changed_gradient(balancer, x, gradient), gradient)

    assert 60 < sum(changes() for _ in range(300)) < 120
    balancer.eval()
    assert not any(changes() for _ in range(20))


def mixed(num_channels: int = 8) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 40, num_channels) @ torch.randn(num_channels, num_channels) + 5.0


@pytest.mark.parametrize("limit", [1.2, 50.0])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_whitening_is_the_authors(authors, decide, num_groups, limit):
    decide(0.0)
    ours = Whiten(BatchCount(), limit, gradient_scale=0.02, num_groups=num_groups)
    theirs = authors.scaling.Whiten(num_groups, limit, prob=(0.025, 0.25), grad_scale=0.02)
    x, gradient = mixed(), torch.randn(3, 40, 8)
    expected = changed_gradient(theirs, x, gradient)
    torch.testing.assert_close(changed_gradient(ours, x, gradient), expected, rtol=1e-9, atol=1e-12)
    assert ours.probability.item() == theirs.prob


def test_whitening_is_seldom_while_its_limit_holds_and_that_is_saved(monkeypatch):
    monkeypatch.setattr(scaling, "draw", lambda: 0.1)
    whiten, x = Whiten(BatchCount(), 50.0), mixed()
    assert whiten.state_dict() == {"probability": OFTEN}
    changed_gradient(whiten, x, torch.ones_like(x))
    assert whiten.state_dict() == {"probability": SELDOM}
    seldom, gradient = Whiten(BatchCount(), 1.0), torch.ones_like(x)
    seldom.load_state_dict(whiten.state_dict())
    assert torch.equal(changed_gradient(seldom, x, gradient), gradient)
    monkeypatch.setattr(scaling, "draw", lambda: 0.01)
    assert not torch.equal(changed_gradient(seldom, x, gradient), gradient)
    assert seldom.state_dict() == {"probability": OFTEN}


def test_a_gradient_that_leads_further_out_of_the_limits_is_turned_round():
    parameter = torch.tensor([-2.0, -2.0, 0.0, 0.0, 2.0, 2.0], requires_grad=True)
    limit_param_value(parameter, torch.tensor([-1.0, 1.0])).backward(torch.tensor([3.0, -3.0, 3.0, -3.0, 3.0, -3.0]))
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [-3.0, -3.0, 3.0, -3.0, 3.0, 3.0]


def test_scores_beyond_25_are_pulled_back():
    query = torch.zeros(1, 1, 2, 1, requires_grad=True)
    key = torch.tensor([30.0, -30.0, 1.0]).view(1, 1, 3, 1)
    with torch.no_grad():
        query += 1.0
    attn_mask = torch.zeros(1, 1, 1, 3)
    gradients = []
    for limit in (None, SignPenalty()):
        query.grad = None
        weights = attention_weights(query, key, query.detach(), torch.zeros(1, 1, 4), attn_mask, limit)
        attend(weights, torch.zeros(1, 1, 3, 1)).sum().backward()
        assert query.grad is not None
        gradients.append(query.grad.flatten().tolist())
    assert gradients == [[0.0, 0.0], [pytest.approx(60e-4)] * 2]
