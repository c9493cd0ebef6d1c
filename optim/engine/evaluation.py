"""Parameters at the point where a model is evaluated, which may be another one than that where gradients are taken."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from optim.engine.param_batch import HALF, Group, State
from optim.engine.transform import Transform

EVALUATING = "evaluating"
"""Whether the parameters of a group are at the evaluation point; in the shared state of groups that have one."""
TRAINING_POINT = "training_point"
"""Name of the parameter's value for training, in its state while the parameter is at the evaluation point."""


def has_evaluation_point(transforms: Sequence[Transform]) -> bool:
    """Return whether the transforms evaluate elsewhere than they train."""
    return any(transform.has_evaluation_point for transform in transforms)


def is_evaluating(group: Group) -> bool:
    """Return whether the parameters of a group are at the evaluation point."""
    return bool(group.get("shared_state", {}).get(EVALUATING, False))  # groups of torch's optimizers share no state


def refuse_step_while_evaluating(optimizer: Optimizer) -> None:
    """Refuse to step from another point than that of the gradients.

    Raises:
        RuntimeError: parameters are at the evaluation point.
    """
    if any(map(is_evaluating, optimizer.param_groups)):
        raise RuntimeError(
            f"{type(optimizer).__name__} cannot step while its parameters are at the evaluation point; call train() on "
            "it after each eval()"
        )


def go_to_evaluation_point(optimizer: Optimizer, transforms: Sequence[Transform]) -> None:
    """Put the evaluation point into every parameter that has stepped, and keep its value for training."""
    for group in optimizer.param_groups:
        if not has_evaluation_point(transforms) or is_evaluating(group):
            continue
        for param in group["params"]:
            state = optimizer.state.get(param)
            if state:
                point = _evaluation_point(param, state, group, transforms)
                # a copy: computing it back from the evaluation point would round
                state[TRAINING_POINT] = param.detach().clone()
                param.copy_(point)
        group["shared_state"][EVALUATING] = True


def go_to_training_point(optimizer: Optimizer) -> None:
    """Put back what `go_to_evaluation_point` has kept."""
    for group in optimizer.param_groups:
        if not is_evaluating(group):
            continue
        for param in group["params"]:
            if TRAINING_POINT in optimizer.state.get(param, {}):
                param.copy_(optimizer.state[param].pop(TRAINING_POINT))
        group["shared_state"][EVALUATING] = False


def _evaluation_point(param: Tensor, state: State, group: Group, transforms: Sequence[Transform]) -> Tensor:
    # what rounding took off a half-precision parameter belongs to its value
    point = param.float() + state["rounding_error"] if param.dtype in HALF else param
    for transform in transforms:
        if transform.has_evaluation_point:
            point = transform.evaluation_point(point, transform.own(state), transform.own(group))
    return point
