"""What a chain refuses in a parameter group before anything steps, and in gradients before each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from optim.engine.fsdp import check_sharded
from optim.engine.options import SWITCH, Domain, check_names, check_options, plain
from optim.engine.param_batch import Group
from optim.engine.saved_state import named_parameters
from optim.engine.transform import Transform

# keys of a group that are not hyper-parameters: torch's own, a label for loggers, a schedule's base lr, our counts
GROUP_KEYS = ("params", "param_names", "name", "initial_lr", "shared_state")


def check_group(optimizer: Optimizer, transforms: Sequence[Transform], group: Group) -> None:
    """Refuse unknown and impossible options of a group, and parameters that no transform can move.

    Raises:
        ValueError: see above.
    """
    owner = type(optimizer).__name__
    check_names(group.keys() - set(GROUP_KEYS), optimizer.defaults, f"{owner}'s parameter group")
    # a transform may allow other values of lr than the engine, such as Adafactor's None
    allowed: dict[str, Domain] = {"lr": "[0, 1e30]", "maximize": SWITCH}  # beyond it products overflow float32
    for transform in transforms:
        allowed |= {transform.prefix + key: domain for key, domain in transform.allowed.items()}
    check_options(group, allowed)
    # transforms check some options themselves
    group.update({key: plain(group[key]) for key in optimizer.defaults if key in group})
    for transform in transforms:
        transform.check(transform.unprefixed(group))
    check_sharded(owner, transforms, group)
    for param in group["params"]:
        if not param.is_floating_point():
            raise ValueError(
                f"{owner} needs real floating-point parameters, given {param.dtype}; "
                "use torch.view_as_real for complex ones"
            )


def refuse_sparse_gradients(optimizer: Optimizer) -> None:
    """Refuse gradients that are not dense.

    Raises:
        ValueError: names the first parameter that has one.
    """
    grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    if all(grad.layout is torch.strided for grad in grads):
        return
    # names are looked up only for the message: this runs in every step
    named = ((name, param.grad) for name, param, _ in named_parameters(optimizer) if param.grad is not None)
    sparse = next(name for name, grad in named if grad.layout is not torch.strided)
    raise ValueError(
        f"{type(optimizer).__name__} needs dense gradients, given sparse ones for {sparse}; "
        "build the embedding with sparse=False, or give this parameter to torch.optim.SparseAdam"
    )
