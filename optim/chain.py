"""Optimizers made of transforms: the step loop around every update rule, written once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim import saved_state
from optim.batch import HALF, Batch, Group, Member, Scalar, State, Update
from optim.finite import all_finite
from optim.options import SWITCH, check_names, check_options
from optim.stacking import Ready, ready
from optim.transform import Mover, Transform

# keys of a group that are no hyper-parameters: torch's own, the label that loggers show, a schedule's base, our counts
GROUP_KEYS = ("params", "param_names", "name", "initial_lr", "shared_state")


def chain(*transforms: Transform, lr: float | Tensor, maximize: bool = False) -> Callable[..., Chain]:
    """Compose a new optimizer: return a function that makes it of parameters.

    Args:
        transforms: applied in their order; what leaves the last one is subtracted from the parameters.
        lr: default learning rate.
        maximize: ascend instead of descend.

    Returns:
        A function of parameters, (name, parameter) pairs or groups, and of keywords that replace ``lr``, ``maximize``
        and ``skip_nonfinite``; see `Chain`.
    """
    return partial(Chain, transforms=transforms, lr=lr, maximize=maximize)


class Chain(Optimizer):
    """An optimizer made of transforms, applied in their order; what leaves the last one is subtracted.

    What holds for every chain: a parameter without gradient is untouched and its step count stands still; gradients
    are never modified; hyper-parameters live in the groups and are checked there; nothing is random, and nothing waits
    for the device; loaded state keeps its type, shares no memory with what it came from, and finds its parameter by
    name where names are known.

    Half-precision parameters: state and arithmetic are float32, and each step rounds once. What rounding took off
    is kept beside the parameter (``rounding_error``, in the parameter's type) and added back at the next step,
    so that updates too small for the parameter add up. Lost is only what is below about 2⁻¹⁷ of a bfloat16
    parameter, or 2⁻²³ of a float16 one, where float32 keeps 2⁻²⁴.

    Args:
        params: parameters, (name, parameter) pairs, or groups, as every torch optimizer takes them.
        transforms: at least one.
        lr: learning rate, which transforms read from the group; a 0-dimensional tensor is allowed.
        maximize: ascend instead of descend.
        skip_nonfinite: when a gradient holds NaN or infinity, change nothing and count ``skipped_steps``. Where
            processes train together they agree on it, and each of them must step.

    Raises:
        ValueError: an option is unknown or out of range, two transforms disagree about one, or a parameter is not
            real floating point.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: Kahan summation of weight updates.
    """

    missing_gradients_are_zero: ClassVar[bool] = False
    lr_allowed: ClassVar[str] = "[0, inf)"

    def __init__(
        self,
        params: Any,
        transforms: Sequence[Transform],
        *,
        lr: float | Tensor | None,
        maximize: bool = False,
        skip_nonfinite: bool = False,
    ) -> None:
        check_options({"skip_nonfinite": skip_nonfinite}, {"skip_nonfinite": SWITCH})
        self.transforms, self.skip_nonfinite = tuple(transforms), skip_nonfinite
        # where somebody measures, what the clippings noted in this step: the group of every batch, and its notes
        self.limited: list[tuple[Group, list[tuple[Scalar, int]]]] | None = None
        super().__init__(params, {"lr": lr, **_options(self.transforms), "maximize": maximize})

    def __getstate__(self) -> dict[str, Any]:
        own = {"transforms": self.transforms, "skip_nonfinite": self.skip_nonfinite, "limited": None}
        return {**super().__getstate__(), **own}

    @property
    def skipped_steps(self) -> int:
        """Return how many steps were skipped because of ``skip_nonfinite``."""
        return int(self.param_groups[0]["shared_state"]["skipped_steps"])

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
        if self.skip_nonfinite and not all_finite([p.grad for _, p, _ in self._named() if p.grad is not None]):
            self.count("skipped_steps")
            return loss
        groups = [(group, list(self._members(group))) for group in self.param_groups]
        for transform in self.transforms:
            transform.before_step(groups)
        for group, members in groups:
            self._step_group(group, members)
        self.count("steps")
        return loss

    def count(self, what: str) -> None:
        """Add one to a count of all groups."""
        for group in self.param_groups:
            group["shared_state"][what] += 1

    def _members(self, group: Group) -> Iterator[Member]:
        """Yield the parameters of a group that take part in this step."""
        names = group.get("param_names")
        for i, param in enumerate(group["params"]):
            grad = param.grad
            if grad is None and self.missing_gradients_are_zero:
                grad = torch.zeros_like(param)
            if grad is None or param.numel() == 0:
                continue
            state, kind = self.state[param], self.kind(names[i] if names else "", param, group)
            if not state:
                state.update(self._fresh_state(param, group, kind))
            yield Member(param, grad, state, kind)

    def kind(self, name: str, param: Tensor, group: Group) -> Hashable:
        """Return what decides, beside shape, type and step, how a parameter is treated; unequal ones never stack."""
        return None

    def _step_group(self, group: Group, members: list[Member]) -> None:
        last = self.transforms[-1]
        waiting: list[tuple[Tensor, Ready]] = []
        for one in ready(group, members):
            if self.limited is not None:
                one.batch.limited = []
                self.limited.append((group, one.batch.limited))
            if isinstance(last, Mover):
                waiting.append((self.transform(one.batch).value(), one))
            else:
                # the update is not kept any longer: the next one shall find its memory in the cache
                self.transform(one.batch).subtract_from(one.batch.param)
                self._finish(one)
        if isinstance(last, Mover) and waiting:
            last.move([update for update, _ in waiting], [_seen_by(last, one.batch) for _, one in waiting])
            for _, one in waiting:
                self._finish(one)

    def _finish(self, one: Ready) -> None:
        for transform in self.transforms:
            if transform.acts_after_step:
                transform.after_step(_seen_by(transform, one.batch))
        one.close()

    def transform(self, batch: Batch) -> Update:
        """Return what the transforms make of a batch's gradient."""
        update = Update(batch.grad)
        for transform in self.transforms:
            result = transform(update, _seen_by(transform, batch) if transform.prefix else batch)
            update = result if isinstance(result, Update) else Update(result)
        return update

    def _fresh_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        state: State = {"step": 0}
        for transform in self.transforms:
            for key, value in transform.new_state(param, transform.own(group), kind).items():
                if transform.prefix + key in state:
                    raise ValueError(
                        f"two transforms keep a statistic called {key!r}; give one of them a name, as in "
                        f"{type(transform).__name__}(..., name='second')"
                    )
                state[transform.prefix + key] = value
        if param.dtype in HALF:
            state["rounding_error"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state

    def _named(self) -> Iterator[tuple[str, Tensor, Group]]:
        return saved_state.named_parameters(self)

    def _refuse_sparse_gradients(self) -> None:
        grads = [param.grad for group in self.param_groups for param in group["params"] if param.grad is not None]
        if all(grad.layout is torch.strided for grad in grads):
            return
        sparse = (n for n, p, _ in self._named() if p.grad is not None and p.grad.layout is not torch.strided)
        raise ValueError(
            f"{type(self).__name__} needs dense gradients, given sparse ones for {next(sparse)}; "
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
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for param, name in zip(group["params"][:1], group.get("param_names", [""]), strict=False):
                self._fresh_by_name(name, param.to("meta"), group)
        except ValueError:
            self.param_groups.pop()
            raise
        counts = self.param_groups[0].get("shared_state", {"steps": 0, "skipped_steps": 0})
        shared = {key: counts[key] for key in ("steps", "skipped_steps")}
        for transform in self.transforms:
            shared |= {transform.prefix + key: x for key, x in transform.new_shared_state(transform.own(group)).items()}
        group["shared_state"] = shared

    def _check_group(self, group: Group) -> None:
        owner = type(self).__name__
        check_names(group.keys() - set(GROUP_KEYS), self.defaults, f"{owner}'s parameter group")
        check_options(group, {"lr": self.lr_allowed, "maximize": SWITCH})
        for transform in self.transforms:
            check_options(group, {transform.prefix + key: domain for key, domain in transform.allowed.items()})
            transform.check(transform.own(group))
        for param in group["params"]:
            if not param.is_floating_point():
                raise ValueError(
                    f"{owner} needs real floating-point parameters, given {param.dtype}; "
                    "use torch.view_as_real for complex ones"
                )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, on each parameter's device, in the types that the state began with.

        Where names of parameters are known on both sides, each takes the state saved under its name.

        Raises:
            ValueError: the state belongs to another optimizer or to other parameters; nothing was changed.
        """
        saved: list[dict[str, Any]] = []

        def inspect(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            given = saved_state.align(self, given)
            saved_state.check(self, given, self._fresh_by_name)
            saved.append(given)
            return given

        # torch casts floating-point state to the parameter's type, so take the values again after it is done
        first = self.register_load_state_dict_pre_hook(inspect)
        last = self.register_load_state_dict_post_hook(
            lambda _: saved_state.restore(self, saved[0], self._fresh_by_name), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            first.remove()
            last.remove()

    def _fresh_by_name(self, name: str, param: Tensor, group: Group) -> State:
        return self._fresh_state(param, group, self.kind(name, param, group))


def _options(transforms: Sequence[Transform]) -> dict[str, Any]:
    """Return the defaults of all transforms; they may share an option if they agree about it."""
    if not transforms:
        raise ValueError("a chain needs at least one transform, given none")
    for transform in transforms[:-1]:
        if isinstance(transform, Mover):
            raise ValueError(f"{type(transform).__name__} moves the parameters itself; it must be the last transform")
    options: dict[str, Any] = {}
    for transform in transforms:
        for key, value in transform.named_options().items():
            if key in options and options[key] != value:
                raise ValueError(
                    f"two transforms have an option {key!r}, one with {options[key]!r} and one with {value!r}; give "
                    f"them the same value, or one of them a name, as in {type(transform).__name__}(..., name='second')"
                )
            options[key] = value
    return options


def _seen_by(transform: Transform, batch: Batch) -> Batch:
    """Return the batch with the transform's own statistics and options under their plain names."""
    if not transform.prefix:
        return batch
    return replace(batch, state=transform.own(batch.state), group=transform.own(batch.group))
