"""The loop around every update rule: closures, groups, checks, precision and checkpoints, written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.options import SWITCH, check_names, check_options

State = dict[str, Any]
Group = dict[str, Any]

HALF = (torch.float16, torch.bfloat16)
# keys of a group that are no hyper-parameters: torch's own, the label that loggers show, a schedule's base
GROUP_KEYS = ("params", "param_names", "name", "initial_lr")


def state_dtype(param: Tensor) -> torch.dtype:
    """Return the type of statistics and arithmetic: float32 for half-precision parameters, else their own."""
    return torch.float32 if param.dtype in HALF else param.dtype


def zeros(param: Tensor) -> Tensor:
    """Return a statistic of zeros, shaped and laid out like the parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


class StepLoop(Optimizer, ABC):
    """An optimizer whose rule is written for one parameter; a rule is a subclass with three members.

    What holds for every rule: a parameter without gradient is untouched and its step count stands still;
    gradients are never modified; hyper-parameters live in the groups and are checked there; nothing is random,
    and nothing waits for the device; loaded state keeps its type and shares no memory with what it came from.

    Half-precision parameters: state and arithmetic are float32, and each step rounds once. What rounding took off
    is kept beside the parameter (``rounding_error``, in the parameter's type) and added back at the next step,
    so that updates too small for the parameter add up. Lost is only what is below about 2⁻¹⁷ of a bfloat16
    parameter, or 2⁻²³ of a float16 one, where float32 keeps 2⁻²⁴.

    Args:
        params: parameters, (name, parameter) pairs, or groups, as every torch optimizer takes them.
        defaults: the hyper-parameters' defaults, ``maximize`` among them.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: Kahan summation of weight updates.
    """

    allowed: ClassVar[Mapping[str, str | tuple[str, ...]]]
    """What each option may be, as in `optim.options.check_options`."""

    @abstractmethod
    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the statistics of a parameter before its first step.

        Called with a tensor on the meta device too, to learn names, shapes and types.
        """

    @abstractmethod
    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Move one parameter in place.

        Args:
            param: the parameter, in float32 where it is stored in half precision.
            grad: its gradient in the same type, of the function to be minimised; must not be modified.
            state: what `new_state` made, to be changed in place, and ``step``, from 1.
            group: the hyper-parameters; ``lr`` may be a tensor.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: recomputes the loss and the gradients; called once, first.

        Returns:
            The closure's result, or None.

        Raises:
            ValueError: a gradient is sparse; nothing was changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_sparse_gradients()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, param.grad, group)
        return loss

    def _step_one(self, param: Tensor, grad: Tensor, group: Group) -> None:
        state = self.state[param]
        if not state:
            state.update(self._fresh_state(param, group))
        state["step"] += 1
        half = param.dtype in HALF
        wide = param.float().add_(state["rounding_error"]) if half else param
        grad = grad.to(wide.dtype)
        self.update(wide, -grad if group["maximize"] else grad, state, group)
        if half:
            param.copy_(wide)
            state["rounding_error"].copy_(wide.sub_(param))

    def _fresh_state(self, param: Tensor, group: Group) -> State:
        state = {"step": 0, **self.new_state(param, group)}
        if param.dtype in HALF:
            state["rounding_error"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state

    def _named(self) -> Iterator[tuple[str, Tensor, Group]]:
        """Yield every parameter with its name, or its place where it has none, and its group."""
        for place, group in enumerate(self.param_groups):
            names = group.get("param_names")
            for i, param in enumerate(group["params"]):
                yield (names[i] if names else f"parameter {i} of group {place}"), param, group

    def _refuse_sparse_gradients(self) -> None:
        for name, param, _ in self._named():
            if param.grad is not None and param.grad.layout is not torch.strided:
                raise ValueError(
                    f"{type(self).__name__} needs dense gradients, given {param.grad.layout} for {name}; "
                    "build the embedding with sparse=False, or give this parameter to torch.optim.SparseAdam"
                )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; refused groups leave the optimizer as it was.

        Args:
            param_group: ``params`` and any hyper-parameters that differ from the defaults.

        Raises:
            ValueError: see the class.
        """
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: Group) -> None:
        owner = type(self).__name__
        check_names(group.keys() - set(GROUP_KEYS), self.defaults, f"{owner}'s parameter group")
        check_options(group, {**self.allowed, "maximize": SWITCH})
        for param in group["params"]:
            if not param.is_floating_point():
                raise ValueError(
                    f"{owner} needs real floating-point parameters, given {param.dtype}; "
                    "use torch.view_as_real for complex ones"
                )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, on each parameter's device, in the types that `new_state` chose.

        Raises:
            ValueError: the state belongs to another optimizer or to other parameters; nothing was changed.
        """
        saved: list[dict[str, Any]] = []

        def inspect(_: Optimizer, given: dict[str, Any]) -> None:
            self._check_saved(given)
            saved.append(given)

        # torch casts floating-point state to the parameter's type, so take the values again after it is done
        first = self.register_load_state_dict_pre_hook(inspect)
        last = self.register_load_state_dict_post_hook(lambda _: self._restore(saved[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            first.remove()
            last.remove()

    def _saved_states(self, given: dict[str, Any]) -> Iterator[tuple[str, Tensor, Group, State]]:
        """Pair this optimizer's parameters with the states saved for them, where there are any."""
        places = [place for group in given["param_groups"] for place in group["params"]]
        for (name, param, group), place in zip(self._named(), places, strict=False):
            if place in given["state"]:
                yield name, param, group, given["state"][place]

    def _check_saved(self, given: dict[str, Any]) -> None:
        owner = type(self).__name__
        # torch puts `differentiable` into the defaults of every optimizer it unpickles
        options = set(self.defaults) - {"differentiable"}
        for i, saved_group in enumerate(given["param_groups"]):
            if missing := sorted(options - set(saved_group)):
                raise ValueError(f"this state is not {owner}'s: its group {i} lacks {', '.join(missing)}")
        for name, param, group, state in self._saved_states(given):
            expected = self._fresh_state(param.to("meta"), group)
            want = {key: tuple(getattr(value, "shape", ())) for key, value in expected.items()}
            have = {key: tuple(getattr(value, "shape", ())) for key, value in state.items()}
            if want != have:
                raise ValueError(f"the state saved for {name} does not fit {owner}: expected {want}, given {have}")

    def _restore(self, given: dict[str, Any]) -> None:
        for _, param, group, saved in self._saved_states(given):
            expected = self._fresh_state(param.to("meta"), group)
            for key, value in saved.items():
                if isinstance(value, Tensor):
                    self.state[param][key] = value.to(param.device, expected[key].dtype, copy=True)
