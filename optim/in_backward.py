"""Steps within the backward pass: each parameter as soon as its gradient is there, which is then freed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from optim.combined import Combined
from optim.engine.chain import Chain
from optim.engine.param_batch import Group
from optim.engine.saved_state import named_parameters

Named = Iterable[tuple[str, nn.Parameter]]


def step_in_backward(model: nn.Module | Named, factory: Callable[[Named], Optimizer]) -> StepInBackward:
    """Build an optimizer whose parameters step during ``loss.backward()``: their gradients never exist all at once.

    Args:
        model: whose parameters to train, or pairs of a name and a parameter.
        factory: makes an optimizer of such pairs: ``functools.partial(Eve, lr=3e-3)``, or what `grouped` returns.

    Returns:
        See `StepInBackward`.

    Raises:
        ValueError: the optimizer needs all gradients at once, or the model averages its gradients over processes.

    Examples:
        >>> from functools import partial
        >>> model = nn.Linear(3, 2)
        >>> optimizer = optim.step_in_backward(model, partial(optim.Eve, lr=3e-3))
        >>> model(torch.ones(1, 3)).square().mean().backward()
        >>> optimizer.step()  # ends the update
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            "step_in_backward cannot train a DistributedDataParallel: a parameter would step before its gradient is "
            "averaged over the processes; train with one process, or step after the backward pass"
        )
    return StepInBackward(factory(NamedParameters(model) if isinstance(model, nn.Module) else model))


class NamedParameters(list[tuple[str, nn.Parameter]]):
    """The named parameters of a model, whose modules `grouped` may ask what they are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.named_parameters())
        self.model = model


class StepInBackward(Optimizer):
    """Lets an optimizer step in the backward pass.

    Every parameter does what it would do after the backward pass, bit for bit unless a `Chain` would stack it with
    others of its shape, which may round differently. Groups, state and ``state_dict`` are the optimizer's
    own: schedules set its groups, and a run may switch from one way to the other between two updates.

    An update is one backward pass and one call of ``step``, which steps nothing that has stepped already: it ends the
    update. What was not reached by the backward pass does what it does without gradient; a gradient that was set by
    hand is used, and freed. ``zero_grad`` finds nothing to do.

    Args:
        optimizer: to be used through this object alone from now on.

    Attributes:
        optimizer: the one given.
        before_step: called with every gradient before its step; may change it in place, and drops it by returning
            False; None to leave gradients as they are.

    Raises:
        ValueError: the optimizer needs all gradients at once.

    Examples:
        >>> model = nn.Linear(3, 2)
        >>> optimizer = optim.StepInBackward(optim.AdamW(model.parameters()))
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> model.weight.grad is None  # it has stepped, and its gradient is freed
        True
        >>> optimizer.step()  # ends the update
    """

    def __init__(self, optimizer: Optimizer) -> None:
        # torch refuses a parameter that is in two groups
        super().__init__([{"params": group["params"]} for group in optimizer.param_groups], {})
        self.optimizer, self.defaults = optimizer, optimizer.defaults
        self.before_step: Callable[[Tensor], bool] | None = None
        for member in self._members():
            if isinstance(member, Chain):
                _refuse_needs_of_all(member)
        self._stepped: set[Tensor] = set()
        self._join()
        params = [param for group in self.param_groups for param in group["params"]]
        self._hooks = [param.register_post_accumulate_grad_hook(self._on_gradient) for param in params]

    def _members(self) -> Sequence[Optimizer]:
        return self.optimizer.optimizers if isinstance(self.optimizer, Combined) else [self.optimizer]

    def _join(self) -> None:
        """Share groups and state with the optimizer, and note who steps each parameter.

        A shallow copy of a member steps one parameter at a time: its groups are replaced, its state is shared.
        """
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self._owners: dict[Tensor, tuple[Optimizer, Group, str]] = {}
        for member in self._members():
            stepper = copy.copy(member)
            self._owners.update({param: (stepper, group, name) for name, param, group in named_parameters(member)})

    def remove(self) -> None:
        """Stop stepping in the backward pass."""
        for hook in self._hooks:
            hook.remove()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "StepInBackward cannot be copied or pickled, since a model's hooks are not; call step_in_backward on the "
            "copy of the model, and load the state_dict"
        )

    @torch.no_grad()
    def _on_gradient(self, param: Tensor) -> None:
        if param in self._stepped:
            raise RuntimeError(
                "a parameter has got a second gradient before step(): gradients cannot be accumulated over backward "
                "passes if parameters step in them; call step() after each one"
            )
        assert param.grad is not None
        if self.before_step is None or self.before_step(param.grad):
            self._step_one(param)
        # here, before the next gradient is made: this is what saves the memory
        param.grad = None

    def _step_one(self, param: Tensor) -> None:
        stepper, group, name = self._owners[param]
        alone = {**group, "params": [param], "param_names": [name]}
        if "shared_state" in group:
            # a copy: the steps of a group count once per update
            alone["shared_state"] = dict(group["shared_state"])
        stepper.param_groups = [alone]
        stepper.step()
        self._stepped.add(param)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """End the update.

        Args:
            closure: recomputes the loss and calls ``backward``, in which the parameters step.

        Returns:
            The closure's result, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # what the backward pass has not reached: gradients set by hand, and those that ScaledAdam counts as zero
        for param, (stepper, _, _) in self._owners.items():
            if param not in self._stepped and (isinstance(stepper, Chain) or param.grad is not None):
                self._step_one(param)
                param.grad = None
        for member in self._members():
            if isinstance(member, Chain):
                member.count("steps")
        self._stepped.clear()
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """Refuse, because a later parameter has no hook.

        Raises:
            ValueError: always, after construction.
        """
        # torch's constructor calls this method too
        if hasattr(self, "optimizer"):
            raise ValueError("add the group to the optimizer before it steps in the backward pass")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the optimizer, saved by this object or by the optimizer itself.

        Raises:
            ValueError: the optimizer refuses it.
        """
        self.optimizer.load_state_dict(state_dict)
        self._join()  # loading has replaced groups and state by new objects

    @property
    def has_eval_mode(self) -> bool:
        """Return whether the model should be evaluated between `eval` and `train`."""
        return bool(getattr(self.optimizer, "has_eval_mode", False))

    @property
    def is_evaluating(self) -> bool:
        """Return whether the parameters are in eval mode."""
        return bool(getattr(self.optimizer, "is_evaluating", False))

    def eval(self) -> None:
        """Put the weights for evaluation into the parameters; see `Chain.eval`."""
        if isinstance(self.optimizer, Chain | Combined):
            self.optimizer.eval()

    def train(self) -> None:
        """Put back the values for training."""
        if isinstance(self.optimizer, Chain | Combined):
            self.optimizer.train()


def _refuse_needs_of_all(chain: Chain) -> None:
    owner = type(chain).__name__
    if chain.skip_nonfinite:
        raise ValueError(
            f"{owner} with skip_nonfinite=True cannot step in the backward pass: when the last gradient is known, all "
            "others have been used; set it to False"
        )
    for transform in chain.transforms:
        own = [transform.unprefixed(group) for group in chain.param_groups]
        if any(transform.needs_all_gradients(group) and not transform.is_noop(group) for group in own):
            options = ", ".join(transform.prefix + option for option in transform.options)
            raise ValueError(
                f"{owner} cannot step in the backward pass: its {type(transform).__name__} needs all gradients at "
                f"once; switch it off ({options}), or step after the backward pass"
            )
