"""At which steps PSGD fits its preconditioner."""

from __future__ import annotations

import math

from optim.engine.random import uniform_number

FLAT_STEPS = 1000
DECAY = 1e-3
SMALLEST = 0.03
BALANCE_PROBABILITY = 0.01
# steps after FLAT_STEPS at which the probability reaches its floor
DECAY_STEPS = math.floor(math.log(1 / SMALLEST) / DECAY)


def update_probability(step: int, constant: float | None) -> float:
    """Return the probability of an update at step n, from 1.

        max(0.03, min(1, exp(−0.001 (n − 1000))))     unless a constant is given

    Reference:
        `precond_update_prob_schedule` of https://github.com/evanatyourservice/kron_torch, with 1000 flat steps.
    """
    if constant is not None:
        return constant
    return max(SMALLEST, min(1.0, math.exp(-DECAY * (step - FLAT_STEPS))))


def expected_updates(step: int, constant: float | None) -> float:
    """Return the sum of the probabilities of steps 1 to n."""
    if constant is not None:
        return constant * step
    decaying = min(max(step - FLAT_STEPS, 0), DECAY_STEPS)
    # a geometric series
    ratio = math.exp(-DECAY)
    return (
        min(step, FLAT_STEPS)
        + ratio * (1 - ratio**decaying) / (1 - ratio)
        + SMALLEST * max(step - FLAT_STEPS - DECAY_STEPS, 0)
    )


def updates_at(step: int, constant: float | None, *, stochastic: bool, seed: int) -> bool:
    """Return whether the preconditioner is updated at step n.

    Args:
        step: n, from 1.
        constant: see `update_probability`.
        stochastic: whether to draw, and not to update whenever the sum of probabilities passes a whole number.
        seed: of the draws.
    """
    if stochastic:
        return uniform_number(seed, step, "update preconditioner") < update_probability(step, constant)
    return math.floor(expected_updates(step, constant)) > math.floor(expected_updates(step - 1, constant))


def balances_at(step: int, constant: float | None, *, stochastic: bool, seed: int) -> bool:
    """Return whether an update at step n also balances the factors: one in a hundred."""
    if stochastic:
        return uniform_number(seed, step, "balance preconditioner") < BALANCE_PROBABILITY
    return math.floor(expected_updates(step, constant)) % round(1 / BALANCE_PROBABILITY) == 0
