"""Optimizers made of transforms: the step loop around every update rule, written once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optim.engine import saved_state
from optim.engine.batch import HALF, Group, ParamBatch, ParamEntry, Scalar, State, Update
from optim.engine.finite import all_finite
from optim.engine.options import SWITCH, Domain, check_names, check_options
from optim.engine.stacking import batches, write_back
from optim.engine.transform import FusedTransform, GroupTransform, Transform, merged_options

# keys of a group that are not hyper-parameters: torch's own, a label for loggers, a schedule's base lr, our counts
GROUP_KEYS = ("params", "param_names", "name", "initial_lr", "shared_state")


def chain(*transforms: Transform, lr: float | Tensor, maximize: bool = False) -> Callable[..., Chain]:
    """Compose a new optimizer: return a function that builds it from parameters.

    Args:
        transforms: applied in this order; what leaves the last one is subtracted from the parameters.
        lr: default learning rate.
        maximize: ascend instead of descend.

    Returns:
        A function of parameters, (name, parameter) pairs or groups, and of keywords that replace ``lr``, ``maximize``
        and ``skip_nonfinite``; see `Chain`.
    """
    return partial(Chain, transforms=transforms, lr=lr, maximize=maximize)


class Chain(Optimizer):
    """An optimizer made of transforms, applied in order; what leaves the last one is subtracted.

    True for every chain: a parameter without gradient is untouched and its step count stands still; gradients are
    never modified; hyper-parameters are in the groups and are checked there; nothing is random, and nothing waits for
    the device; loaded state keeps its dtype, shares no memory with its source, and finds its parameter by name if both
    sides know the names.

    Half-precision parameters: state and arithmetic are float32, and each step rounds once. What rounding takes off is
    kept beside the parameter (``rounding_error``, in the parameter's dtype) and added back at the next step, so that
    updates too small for the parameter add up. Only updates below about 2⁻¹⁷ of a bfloat16 parameter, or 2⁻²³ of a
    float16 one, are lost; float32 keeps 2⁻²⁴.

    Args:
        params: parameters, (name, parameter) pairs, or groups, as every torch optimizer takes them.
        transforms: at least one.
        lr: learning rate, which transforms read from the group; a 0-dimensional tensor is allowed.
        maximize: ascend instead of descend.
        skip_nonfinite: when a gradient holds NaN or infinity, change nothing and count ``skipped_steps``. In a
            distributed run all processes decide together, and each of them must step.

    Raises:
        ValueError: an option is unknown or out of range, two transforms disagree about one, or a parameter is not
            real floating point.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: Kahan summation of weight updates.
    """

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
        # before super().__init__, which already calls add_param_group
        self.transforms, self.skip_nonfinite = tuple(transforms), skip_nonfinite
        self._after_step = [transform for transform in self.transforms if transform.acts_after_step]
        # while `Health` measures: the group of every batch, and what clipping transforms noted about the batch
        self.limited: list[tuple[Group, list[tuple[Scalar, int]]]] | None = None
        super().__init__(params, {"lr": lr, **merged_options(self.transforms), "maximize": maximize})

    def __getstate__(self) -> dict[str, Any]:
        # torch's Optimizer.__getstate__ returns defaults, state and groups only
        own = {
            "transforms": self.transforms,
            "_after_step": self._after_step,
            "skip_nonfinite": self.skip_nonfinite,
            "limited": None,
        }
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
        # all entries exist before the first parameter moves: a norm over all gradients needs them together
        groups = [(group, list(self._entries(group))) for group in self.param_groups]
        for transform in self.transforms:
            transform.before_step(groups)
        for group, entries in groups:
            self._step_group(group, entries)
        self.count("steps")
        return loss

    def count(self, what: str) -> None:
        """Add one to a count of all groups."""
        for group in self.param_groups:
            group["shared_state"][what] += 1

    def gradient_of(self, param: Tensor) -> Tensor | None:
        """Return the gradient that a parameter steps with; None leaves the parameter untouched."""
        return param.grad

    def stacking_key(self, name: str, param: Tensor, group: Group) -> Hashable:
        """Return what decides, beside shape, dtype and step, how a parameter is treated; unequal keys never stack."""
        return None

    def _entries(self, group: Group) -> Iterator[ParamEntry]:
        """Yield the parameters of a group that take part in this step."""
        names = group.get("param_names")
        for i, param in enumerate(group["params"]):
            grad = self.gradient_of(param)
            if grad is None or param.numel() == 0:  # the mean of no elements is NaN
                continue
            state, key = self.state[param], self.stacking_key(names[i] if names else "", param, group)
            if not state:
                state.update(self._fresh_state(param, group, key))
            yield ParamEntry(param, grad, state, key)

    def _step_group(self, group: Group, entries: list[ParamEntry]) -> None:
        active = [transform for transform in self.transforms if not transform.idle(transform.own(group))]
        for i, transform in enumerate(active):
            if isinstance(transform, GroupTransform) and transform.takes_all(transform.own(group)):
                return self._step_together(group, entries, active, i)
        place = _place_of_fused(active)
        ahead = active[:place]
        waiting: list[tuple[Tensor, ParamBatch]] = []
        # a kernel that is the only call of the step takes small tensors as they are: stacks would cost copies
        for batch in self._batches(group, entries, stack_small=place != 0):
            update = _transformed(ahead, batch) if ahead else Update(batch.grad)
            if place is None:
                update.subtract_from(batch.param)
                # its memory is free, and still in the cache, for the next batch
                del update
                self._finish(batch)
            else:
                waiting.append((update.value(), batch))
        if place is not None and waiting:
            fused, later = active[place], active[place + 1 :]
            assert isinstance(fused, FusedTransform)
            # one launch for the whole group, as torch's fused kernels take lists of tensors
            fused.move([update for update, _ in waiting], [fused.view(batch) for _, batch in waiting], later)
            for _, batch in waiting:
                self._finish(batch)

    def _step_together(self, group: Group, entries: list[ParamEntry], active: Sequence[Transform], place: int) -> None:
        """Step a group whose transform at ``place`` takes all updates at once, which are all in memory then."""
        together = active[place]
        assert isinstance(together, GroupTransform)
        waiting = list(self._batches(group, entries))
        updates = [_transformed(active[:place], batch) for batch in waiting]
        updates = list(together.of_group(updates, [together.view(batch) for batch in waiting]))
        for update, batch in zip(updates, waiting, strict=True):
            _transformed(active[place + 1 :], batch, update).subtract_from(batch.param)
            self._finish(batch)

    def _batches(self, group: Group, entries: list[ParamEntry], *, stack_small: bool = True) -> Iterator[ParamBatch]:
        for batch in batches(group, entries, stack_small=stack_small):
            if self.limited is not None:
                batch.limited = []
                self.limited.append((group, batch.limited))
            yield batch

    def _finish(self, batch: ParamBatch) -> None:
        for transform in self._after_step:
            transform.after_step(transform.view(batch))
        write_back(batch)

    def _fresh_state(self, param: Tensor, group: Group, stacking_key: Hashable) -> State:
        # a Python number: torch keeps a tensor, but reading it for a bias correction would wait for the device
        state: State = {"step": 0}
        for transform in self.transforms:
            for key, value in transform.new_state(param, transform.own(group), stacking_key).items():
                if transform.prefix + key in state:
                    raise ValueError(
                        f"two transforms keep a statistic called {key!r}; give one of them a name, as in "
                        f"{type(transform).__name__}(..., name='second')"
                    )
                state[transform.prefix + key] = value
        if param.dtype in HALF:
            state["rounding_error"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state

    def _fresh_by_name(self, name: str, param: Tensor, group: Group) -> State:
        return self._fresh_state(param, group, self.stacking_key(name, param, group))

    def _named(self) -> Iterator[tuple[str, Tensor, Group]]:
        return saved_state.named_parameters(self)

    def _refuse_sparse_gradients(self) -> None:
        grads = [param.grad for group in self.param_groups for param in group["params"] if param.grad is not None]
        if all(grad.layout is torch.strided for grad in grads):
            return
        # names are looked up only for the message: this runs in every step
        sparse = (n for n, p, _ in self._named() if p.grad is not None and p.grad.layout is not torch.strided)
        raise ValueError(
            f"{type(self).__name__} needs dense gradients, given sparse ones for {next(sparse)}; "
            "build the embedding with sparse=False, or give this parameter to torch.optim.SparseAdam"
        )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; a refused group leaves the optimizer as it was.

        Args:
            param_group: ``params`` and any hyper-parameters that differ from the defaults.

        Raises:
            ValueError: see the class.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            # one parameter on the meta device finds two statistics of one name without allocating memory
            for param, name in zip(group["params"][:1], group.get("param_names", [""]), strict=False):
                self._fresh_by_name(name, param.to("meta"), group)
        except ValueError:
            # torch has appended the group already
            self.param_groups.pop()
            raise
        # counts are the optimizer's, so a later group starts with those of the first
        counts = self.param_groups[0].get("shared_state", {"steps": 0, "skipped_steps": 0})
        shared = {key: counts[key] for key in ("steps", "skipped_steps")}
        for transform in self.transforms:
            shared |= {transform.prefix + key: x for key, x in transform.new_shared_state(transform.own(group)).items()}
        # in the group and not in an attribute: torch's state_dict then saves it
        group["shared_state"] = shared

    def _check_group(self, group: Group) -> None:
        owner = type(self).__name__
        check_names(group.keys() - set(GROUP_KEYS), self.defaults, f"{owner}'s parameter group")
        # a transform may allow other values of lr than the engine, such as Adafactor's None
        allowed: dict[str, Domain] = {"lr": "[0, inf)", "maximize": SWITCH}
        for transform in self.transforms:
            allowed |= {transform.prefix + key: domain for key, domain in transform.allowed.items()}
        check_options(group, allowed)
        for transform in self.transforms:
            transform.check(transform.own(group))
        for param in group["params"]:
            if not param.is_floating_point():
                raise ValueError(
                    f"{owner} needs real floating-point parameters, given {param.dtype}; "
                    "use torch.view_as_real for complex ones"
                )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, on each parameter's device, in the dtypes that the state began with.

        If the names of parameters are known on both sides, each takes the state saved under its name.

        Raises:
            ValueError: the state belongs to another optimizer or to other parameters; nothing was changed.
        """
        saved: list[dict[str, Any]] = []

        def inspect(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            given = saved_state.align(self, given)
            saved_state.check(self, given, self._fresh_by_name)
            saved.append(given)
            return given

        # torch casts floating-point state to the parameter's dtype, which would round the float32 statistics of a
        # bfloat16 parameter: restore them afterwards, before any hook of the user sees them
        first = self.register_load_state_dict_pre_hook(inspect)
        last = self.register_load_state_dict_post_hook(
            lambda _: saved_state.restore(self, saved[0], self._fresh_by_name), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            first.remove()
            last.remove()


def _place_of_fused(active: Sequence[Transform]) -> int | None:
    """Return which transform moves the parameters by itself, and does the work of all later ones; None if none does."""
    for place, transform in enumerate(active):
        if isinstance(transform, FusedTransform) and transform.fuses(active[place + 1 :]):
            return place
    return None


def _transformed(transforms: Sequence[Transform], batch: ParamBatch, update: Update | None = None) -> Update:
    """Return what the transforms make of an update, at first a batch's gradient."""
    update = Update(batch.grad) if update is None else update
    for transform in transforms:
        # no call of `view` for plain names: this loop runs once per transform and batch
        result = transform(update, transform.view(batch) if transform.prefix else batch)
        update = result if isinstance(result, Update) else Update(result)
    return update
