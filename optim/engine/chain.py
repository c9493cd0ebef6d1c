"""Optimizers made of transforms: the step loop around every update rule, written once."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from inspect import Parameter as Argument
from inspect import Signature, signature
from typing import Any, ClassVar, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optim.engine import blocks, saved_state
from optim.engine.distributed import all_finite, check_sharded, local_entry, on_cpu, part_like, places, replicated
from optim.engine.group_step import GroupStep, StateStacks
from optim.engine.options import SWITCH, Domain, check_names, check_options, plain
from optim.engine.owners import deal, whole_entries
from optim.engine.param_batch import DRAW_KEY, HALF, Group, Limits, ParamEntry, State, state_dtype
from optim.engine.random import key_of
from optim.engine.transform import Transform, merged_options, merged_shared_state, merged_state

# keys of a group that are not hyper-parameters: torch's own, a label for loggers, a schedule's base lr, our counts
GROUP_KEYS = ("params", "param_names", "name", "initial_lr", "shared_state", *blocks.DEFAULTS)
PIECE_NUMEL = 1 << 24  # of what is put back at once: large enough for a GPU, and little beside the copies
READS = "skip_nonfinite=True reads from the device, which capturable=True rules out; choose one"


def chain(*transforms: Transform, lr: float | Tensor, maximize: bool = False) -> Callable[..., Chain]:
    """Compose a new optimizer: return a function that builds it from parameters.

    Args:
        transforms: applied in this order; what leaves the last one is subtracted from the parameters.
        lr: default learning rate; a tensor of one element is allowed.
        maximize: ascend instead of descend.

    Returns:
        A function of parameters, (name, parameter) pairs or groups, and of keywords that replace ``lr``, ``maximize``,
        ``skip_nonfinite`` and ``capturable``; see `Chain`.

    Examples:
        >>> from optim.transforms.adam import Adam
        >>> from optim.transforms.learning_rate import LearningRate
        >>> make = optim.chain(Adam(), LearningRate(), lr=1e-3)
        >>> optimizer = make(nn.Linear(3, 2).parameters(), lr=1e-2)
        >>> {name: optimizer.param_groups[0][name] for name in ("lr", "betas", "eps")}
        {'lr': 0.01, 'betas': (0.9, 0.999), 'eps': 1e-08}
    """
    return partial(Chain, transforms=transforms, lr=lr, maximize=maximize)


class ChainOptions(TypedDict, total=False):
    """Options of every optimizer of this package, which are off; see `Chain`.

    Attributes:
        maximize: ascend instead of descend.
        skip_nonfinite: when a gradient holds NaN or infinity, change nothing.
        capturable: make steps that a CUDA graph can replay.

    Examples:
        >>> options: optim.ChainOptions = {"skip_nonfinite": True}
        >>> optimizer = optim.Cain([nn.Parameter(torch.ones(1))], **options)
        >>> optimizer.param_groups[0]["params"][0].grad = torch.tensor([torch.nan])
        >>> optimizer.step()
        >>> optimizer.skipped_steps
        1
    """

    maximize: bool
    skip_nonfinite: bool
    capturable: bool


class Chain(Optimizer):
    """An optimizer made of transforms, applied in order; what leaves the last one is subtracted.

    True for every chain: a parameter without gradient is untouched and its step count stands still; gradients are
    never modified; hyper-parameters are in the groups and are checked there; no random generator is read, and nothing
    waits for the device; loaded state keeps its dtype, shares no memory with its source, and finds its parameter by
    name if both sides know the names.

    Half-precision parameters: state and arithmetic are float32, and each step rounds once. What rounding takes off is
    kept beside the parameter (``rounding_error``, in the parameter's dtype) and added back at the next step, so that
    updates too small for the parameter add up. Only updates below about 2⁻¹⁷ of a bfloat16 parameter, or 2⁻²³ of a
    float16 one, are lost; float32 keeps 2⁻²⁴.

    Args:
        params: parameters, (name, parameter) pairs, or groups, as every torch optimizer takes them.
        transforms: at least one.
        lr: learning rate, which transforms read from the group; a tensor of one element is allowed.
        maximize: ascend instead of descend.
        skip_nonfinite: when a gradient holds NaN or infinity, change nothing and count ``skipped_steps``. In a
            distributed run all processes decide together, and each of them must step.
        capturable: make steps that a CUDA graph can replay: counts of steps and ``lr``, which becomes a tensor, are on
            the device, and corrections by the count are computed there. Other options are those of the capture, and
            ``group["lr"]`` must be filled, as schedules do, and not replaced.

    Attributes:
        found_inf: None, or a tensor of one element on the device, as torch's `GradScaler` makes it, 0 or 1: a step
            changes nothing if it is 1, and no one waits for it. Needs ``capturable``. A step that is one call of
            torch's AdamW kernel skips by itself; others need the memory of parameters and state once more.

    Raises:
        ValueError: an option is unknown or out of range, two transforms disagree about one, a parameter is not real
            floating point, or a transform cannot be captured.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: Kahan summation of weight updates.

    Examples:
        >>> from optim.transforms.learning_rate import LearningRate
        >>> from optim.transforms.momentum import Momentum
        >>> param = nn.Parameter(torch.ones(2))
        >>> optimizer = optim.Chain([param], [Momentum(beta1=0.9), LearningRate()], lr=1.0)
        >>> param.grad = torch.tensor([1.0, -1.0])
        >>> optimizer.step()
        >>> param.data  # the average of one gradient and zero
        tensor([0.9000, 1.1000])
    """

    found_inf: Tensor | None = None
    takes_blocks: ClassVar[bool] = True
    """Whether a parameter may be several matrices."""
    common_defaults: ClassVar[Mapping[str, Any]] = {"maximize": False, "skip_nonfinite": False, "capturable": False}
    """Options that a class may take as ``**common`` -> their defaults."""
    __signature__: ClassVar[Signature]
    _runner: Callable[[], None] | None = None
    _owners: dict[Tensor, int] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put the common options into the signature, where ``help`` and configs find them with their defaults."""
        super().__init_subclass__(**kwargs)
        _, *own = signature(cls.__init__).parameters.values()
        if own and "Unpack[" in str(own[-1].annotation):
            shown = cls._shown_defaults().items()
            taken = {argument.name for argument in own}
            own[-1:] = [Argument(key, Argument.KEYWORD_ONLY, default=x) for key, x in shown if key not in taken]
        cls.__signature__ = Signature(own)

    @classmethod
    def _shown_defaults(cls) -> Mapping[str, Any]:
        return cls.common_defaults

    def __init__(
        self,
        params: Any,
        transforms: Sequence[Transform],
        *,
        lr: float | Tensor | None,
        maximize: bool = False,
        skip_nonfinite: bool = False,
        capturable: bool = False,
        **unknown: Any,
    ) -> None:
        if unknown:  # of a subclass, which hands on the options that it does not have
            allowed = ", ".join(name for name in signature(type(self)).parameters if name not in ("params", "unknown"))
            raise TypeError(f"{type(self).__name__} has no option {min(unknown)!r}; allowed: {allowed}")
        switches = {"skip_nonfinite": skip_nonfinite, "capturable": capturable}
        check_options(switches, dict.fromkeys(switches, SWITCH))
        if skip_nonfinite and capturable:
            raise ValueError(READS)
        # before super().__init__, which already calls add_param_group
        self.transforms, self.skip_nonfinite, self.capturable = tuple(transforms), skip_nonfinite, capturable
        # while `Health` measures: every group, and what clipping transforms noted about its parameters
        self.limited: list[tuple[Group, Limits]] | None = None
        self._stacks, self._counts = StateStacks(), dict[int, Tensor]()
        super().__init__(params, {"lr": lr, **merged_options(self.transforms), "maximize": maximize})

    def __getstate__(self) -> dict[str, Any]:
        # torch's Optimizer.__getstate__ returns defaults, state and groups only
        attributes = {
            "transforms": self.transforms,
            "skip_nonfinite": self.skip_nonfinite,
            "capturable": self.capturable,
            "limited": None,
            # made anew from the statistics, which are copied
            "_stacks": StateStacks(),
            "_counts": {},
            "_owners": None,
        }
        return {**super().__getstate__(), **attributes}

    @property
    def skipped_steps(self) -> int:
        """Return how many steps were skipped because of ``skip_nonfinite``."""
        return int(self.param_groups[0]["shared_state"]["skipped_steps"])

    @_disable_dynamo  # a compiled caller breaks its graph here: it would trace Python that changes each step
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: recomputes the loss and the gradients; called once, first.

        Returns:
            The closure's result, or None.

        Raises:
            ValueError: a gradient is sparse, or there is a ``found_inf`` without ``capturable``; nothing was changed.
            RuntimeError: the parameters are in eval mode; nothing was changed.
            RuntimeError: the dtype of parameters has changed since their first step.
        """
        refuse_step_while_evaluating(self)
        if self.found_inf is not None and not self.capturable:
            raise ValueError("found_inf is decided on the device, where counts of steps are with capturable=True alone")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        refuse_sparse_gradients(self)
        if self.skip_nonfinite and not all_finite(
            [p.grad for _, p, _ in saved_state.named_parameters(self) if p.grad is not None]
        ):
            self.count("skipped_steps")
            return loss
        self.give_loss(loss)
        # `Health` looks into the update itself, also where a graph replays it
        try:
            (self.update if self._runner is None or self.limited is not None else self._runner)()
        except (KeyError, RuntimeError) as error:
            saved_state.explain_cast(self, self._meta_state, error)
            raise
        return loss

    def give_loss(self, loss: Any) -> None:
        """Keep the loss of this step, and whether there is one, for a transform whose groups have a place for both."""
        for shared in (group["shared_state"] for group in self.param_groups if "has_loss" in group["shared_state"]):
            shared["has_loss"].fill_(loss is not None)
            if isinstance(loss, Tensor):
                shared["loss"].copy_(loss.detach())
            elif loss is not None:
                shared["loss"].fill_(loss)

    def update(self) -> None:
        """Move every parameter by the gradient that is there: a step without its closure and its checks."""
        # all entries exist before the first parameter moves: a norm over all gradients needs them together
        groups = [(group, list(self._entries(place, group))) for place, group in enumerate(self.param_groups)]
        undo: Undo | None = None
        increment: int | Tensor = 1
        if self.found_inf is not None:
            devices = {entry.param.device for _, entries in groups for entry in entries}
            if devices <= {self.found_inf.device} and all(
                self._group_step(group).skips_by_kernel(entries) for group, entries in groups
            ):
                increment = 1 - self.found_inf.reshape(())
            else:
                undo = Undo(groups)
        for transform in self.transforms if any(entries for _, entries in groups) else ():
            transform.before_step(groups)
        for group, entries in groups:
            self._count_and_move(group, entries, increment)
        self.count("steps", increment)
        if undo is not None:
            undo(self.found_inf)  # type: ignore[arg-type]

    def run_updates_by(self, runner: Callable[[], None] | None) -> None:
        """Have `step` call a function that calls `update` or replays what it did; None: `update` itself."""
        self._runner = runner

    def make_capturable(self) -> None:
        """Make steps that a CUDA graph can replay from now on, as if constructed with ``capturable=True``.

        Raises:
            ValueError: a transform, or ``skip_nonfinite``, cannot be captured; nothing was changed.
        """
        if self.skip_nonfinite:
            raise ValueError(READS)
        before, self.capturable = self.capturable, True
        try:
            for group in self.param_groups:
                # as a number: a loaded rate may be a tensor that is not on the device yet
                self._check_capturable({**group, "lr": None if group["lr"] is None else float(group["lr"])})
        except ValueError:
            self.capturable = before
            raise
        for group in self.param_groups:
            keep_counts_on_device(group)
        for param, state in self.state.items():
            if state:
                state["step"] = torch.as_tensor(state["step"], dtype=state_dtype(param), device=param.device)

    @property
    def has_eval_mode(self) -> bool:
        """Return whether the model should be evaluated between `eval` and `train`."""
        return self.transforms[-1].has_eval_mode

    @property
    def is_evaluating(self) -> bool:
        """Return whether the parameters are in eval mode."""
        return self.has_eval_mode and bool(self._averaging.is_evaluating(self))

    @property
    def _averaging(self) -> Any:
        return self.transforms[-1]

    @torch.no_grad()
    def eval(self) -> None:
        """Put the point where the model is to be evaluated into the parameters, if the transforms have such a point.

        `state_dict` then holds the values for training: saved with the model, it continues exactly after `train`.
        """
        if self.has_eval_mode:
            self._averaging.eval(self)

    @torch.no_grad()
    def train(self) -> None:
        """Put back the values for training, bit for bit."""
        if self.has_eval_mode:
            self._averaging.train(self)

    def count(self, counter: str, increment: int | Tensor = 1) -> None:
        """Add to a counter of all groups: 1, or 0 or 1 as a 0-dimensional tensor on the device."""
        for group in self.param_groups:
            group["shared_state"][counter] += increment

    def _entries(self, place: int, group: Group) -> Iterator[ParamEntry]:
        """Yield the parameters of a group that take part in this step."""
        names = group.get("param_names")
        for i, param in enumerate(group["params"]):
            grad = param.grad
            if grad is None or param.numel() == 0:  # the mean of no elements is NaN
                continue
            state, name = self.state[param], names[i] if names else ""
            # nearly all are plain, and that is asked faster
            owner = None if type(param) is Parameter else self.owners.get(param)
            if param.dtype in HALF and state and owner is None and not any("rounding_error" in key for key in state):
                fresh = self._fresh_state(name, param, group)  # the model was cast after a step
                state.update({key: x for key, x in fresh.items() if "rounding_error" in key})
            if not state:
                # the rest of what an owner keeps begins when it has the whole parameter
                state.update({"step": 0} if owner is not None else self._fresh_state(name, param, group))
                if self._draws(group):  # in the state, so that later names and places change no draw
                    state[DRAW_KEY] = key_of(saved_state.name_of(group, i, place))
            entry = ParamEntry(param, grad, state, name, key=param)
            if owner is None:
                yield from blocks.cut(entry if type(param) is Parameter else local_entry(entry), group)
            else:
                yield local_entry(entry, owner)

    @property
    def owners(self) -> Mapping[Tensor, int]:
        """Return the rank that steps each sharded parameter whose rule needs the whole; see `optim.engine.owners`."""
        if self._owners is None:
            self._owners = deal(self.transforms, self.param_groups)
        return self._owners

    def _draws(self, group: Group) -> bool:
        return any(transform.draws(transform.unprefixed(group)) for transform in self.transforms)

    def _group_step(self, group: Group, limits: Limits | None = None) -> GroupStep:
        return GroupStep(self.transforms, group, self._stacks, self.state, limits, self.found_inf)

    def _count_and_move(self, group: Group, entries: list[ParamEntry], increment: int | Tensor = 1) -> None:
        self._count_steps(entries, increment)
        limits: Limits | None = None
        if self.limited is not None:
            limits = []
            self.limited.append((group, limits))
        self._move(group, entries, limits)

    def _move(self, group: Group, entries: list[ParamEntry], limits: Limits | None) -> None:
        step = self._group_step(group, limits)
        owned = [entry for entry in entries if entry.shard is not None and entry.shard.owner is not None]
        step([entry for entry in entries if entry.shard is None or entry.shard.owner is None] if owned else entries)
        for mine in whole_entries(owned):
            for entry in mine:
                if not entry.state.keys() - {"step", DRAW_KEY}:
                    entry.state.update({**self._fresh_state(entry.name, entry.param, group), **entry.state})
            step([part for entry in mine for part in blocks.cut(entry, group)], divides=False)

    def _count_steps(self, entries: list[ParamEntry], increment: int | Tensor) -> None:
        if self.capturable:
            for count in share_counts(entries, self.state, self._counts):
                count.add_(increment)
        else:
            for entry in entries:
                if entry.part is None or entry.part.start == 0:  # once for all parts
                    entry.state["step"] += 1

    def _fresh_state(self, name: str, param: Tensor, group: Group) -> State:
        # a Python number: torch keeps a tensor, but reading it for a bias correction would wait for the device
        step = torch.zeros((), dtype=state_dtype(param), device=param.device) if self.capturable else 0
        state: State = {"step": step}
        if parts := blocks.parts_of(name, param.shape, group):
            state |= blocks.fresh(param, parts, partial(self._statistics, group=group))
        else:
            state |= self._statistics(param, group)
        if self._draws(group):
            state[DRAW_KEY] = 0
        return state if type(param) in (Tensor, Parameter) else {key: replicated(x) for key, x in state.items()}

    def _statistics(self, param: Tensor, group: Group) -> State:
        state = merged_state(self.transforms, param, group)
        if param.dtype in HALF:
            state["rounding_error"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state

    def _meta_state(self, name: str, param: Tensor, group: Group) -> State:
        """Return the statistics of a parameter before its first step without memory: names, shapes and dtypes."""
        if param in self.owners:
            return self._fresh_state(name, torch.empty(param.shape, dtype=param.dtype, device="meta"), group)
        return self._fresh_state(name, param.to("meta"), group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; a refused group leaves the optimizer as it was.

        Args:
            param_group: ``params`` and any hyper-parameters that differ from the defaults.

        Raises:
            ValueError: see the class.
        """
        super().add_param_group(param_group)
        self._owners, group = None, self.param_groups[-1]
        try:
            self._check_group(group)
            if self.capturable:
                self._check_capturable(group)
            # one parameter on the meta device finds two statistics of one name without allocating memory
            for param, name in zip(group["params"][:1], group.get("param_names", [""]), strict=False):
                if not is_lazy(param):  # it has a shape only after the first forward pass
                    self._meta_state(name, param, group)
        except ValueError:
            # torch has appended the group already
            self.param_groups.pop()
            raise
        # counts are the optimizer's, so a later group starts with those of the first
        counts = self.param_groups[0].get("shared_state", {"steps": 0, "skipped_steps": 0})
        shared = {key: counts[key] for key in ("steps", "skipped_steps")}
        shared |= merged_shared_state(self.transforms, group)
        # in the group and not in an attribute: torch's state_dict then saves it
        group["shared_state"] = shared
        if self.capturable:
            keep_counts_on_device(group)

    def replace_params(self, params: Mapping[str, Parameter]) -> None:
        """Forget all statistics, and update other parameters by name, with the options that the groups have now.

        An optimizer can so be built, and its options refused, before the memory for a model is there.

        Args:
            params: by the names that the former ones were given with.

        Raises:
            ValueError: see the class.
        """
        groups = list(self.param_groups)
        self.param_groups.clear()
        self.state.clear()
        self._stacks, self._counts = StateStacks(), {}
        for group in groups:
            # counts and a captured rate are on the device of the former parameters
            lr = float(group["lr"]) if self.capturable and group["lr"] is not None else group["lr"]
            options = {key: value for key, value in group.items() if key not in ("shared_state", "param_names")}
            self.add_param_group(
                {**options, "lr": lr, "params": [(name, params[name]) for name in group["param_names"]]}
            )

    def _check_capturable(self, group: Group) -> None:
        """Refuse a group whose steps a CUDA graph could not replay.

        One parameter of each kind makes a step on the meta device. It has no values: what reads one, to decide by it or
        to make a Python number of it, raises there, as it would during the capture.

        Raises:
            ValueError: a transform needs numbers, or the lr is a tensor on another device.
        """
        owner, lr = type(self).__name__, group["lr"]
        if isinstance(lr, Tensor) and group["params"] and lr.device != group["params"][0].device:
            raise ValueError(
                f"{owner} with capturable=True needs an lr on the device of its parameters, "
                f"{group['params'][0].device}, given one on {lr.device}; a captured step would not see it change"
            )
        check_sharded(owner, self.transforms, group, capturable=True)
        meta = {**group, "params": [param.to("meta") for param in group["params"]]}
        meta["lr"] = None if lr is None else torch.empty((), device="meta")
        meta["shared_state"] = {"steps": torch.empty((), device="meta"), **merged_shared_state(self.transforms, meta)}
        kinds: dict[object, ParamEntry] = {}
        for name, param in zip(group.get("param_names", [""] * len(meta["params"])), meta["params"], strict=True):
            state = self._fresh_state(name, param, group)
            for entry in blocks.cut(ParamEntry(param, torch.empty_like(param), state, name, key=param), group):
                kinds[entry.shape, param.dtype] = entry
        entries = [entry for entry in kinds.values() if entry.param.numel() > 0]
        try:
            with torch.no_grad():
                for transform in self.transforms if entries else ():
                    transform.before_step([(meta, entries)])
                self._count_and_move(meta, entries)
        # which error torch and Python raise for a tensor without values differs from use to use
        except Exception as error:
            rules = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
            rule = next((type(rule).__name__ for rule in reversed(rules) if isinstance(rule, Transform)), owner)
            raise ValueError(
                f"{owner} cannot be captured: {rule} decides by numbers, such as the count of steps, that are on the "
                f"device with capturable=True ({str(error).splitlines()[0]}); leave capturable out"
            ) from error

    def _check_group(self, group: Group) -> None:
        """Refuse unknown and impossible options of a group, and parameters that no transform can move."""
        owner = type(self).__name__
        blocks.settle(owner, group)
        if group.get("blocks") and not self.takes_blocks:
            raise ValueError(f"{owner} knows no blocks")
        check_names(group.keys() - set(GROUP_KEYS), self.defaults, f"{owner}'s parameter group")
        # a transform may allow other values of lr than the engine, such as Adafactor's None
        allowed: dict[str, Domain] = {"lr": "[0, 1e30]", "maximize": SWITCH}  # beyond it products overflow float32
        for transform in self.transforms:
            allowed |= {transform.prefix + key: domain for key, domain in transform.allowed.items()}
        check_options(group, allowed)
        # transforms check some options themselves
        group.update({key: plain(group[key]) for key in self.defaults if key in group})
        for transform in self.transforms:
            transform.check(transform.unprefixed(group))
        check_sharded(owner, self.transforms, group)
        for param in group["params"]:
            if not param.is_floating_point():
                raise ValueError(
                    f"{owner} needs real floating-point parameters, given {param.dtype}; "
                    "use torch.view_as_real for complex ones"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return what torch's optimizers do; options that were set since as numpy's numbers become Python's."""
        for group in self.param_groups:
            group.update({key: plain(value) for key, value in group.items() if key in self.defaults})
        return super().state_dict()

    def whole_state_dict(self) -> dict[str, Any]:
        """Return what `state_dict` would if no parameter were sharded, on the CPU; all processes must call this."""
        return saved_state.with_states(self, self.whole_states())

    @torch.no_grad()
    def whole_states(self) -> dict[Tensor, State]:
        """Return the whole statistics of every parameter that has some, on the CPU; all processes must call this."""
        return {
            param: {key: on_cpu(x) for key, x in self._owned_state(name, param, group, self.state[param]).items()}
            for name, param, group in saved_state.named_parameters(self)
            if self.state.get(param)
        }

    def _owned_state(self, name: str, param: Tensor, group: Group, state: State) -> State:
        """Return the statistics of a parameter, from its owner if it has one."""
        if param not in self.owners:
            return state
        like, [place] = self._meta_state(name, param, group), places(param)
        owner, device = self.owners[param], param.device
        for key, x in like.items():
            if isinstance(x, Tensor):
                value = state[key].contiguous() if owner == place.rank else torch.empty_like(x, device=device)
                dist.broadcast(value, group=place.group, group_src=owner)
                state = {**state, key: value}
        return state

    def _parts(self, state_dict: Mapping[str, Any]) -> dict[int, State]:
        """Return the part of saved statistics that this process is to hold."""
        places_in_file = [place for group in state_dict["param_groups"] for place in group["params"]]
        states = dict(state_dict["state"])
        if not any(places(param) for _, param, _ in saved_state.named_parameters(self)):
            return states
        expected = saved_state.saved_states(self, state_dict, self._meta_state)
        by_param = {param: fresh for _, param, fresh, _ in expected if places(param)}
        for i, (_, param, _) in zip(places_in_file, saved_state.named_parameters(self), strict=False):
            if param in by_param and self.owners.get(param) in (None, places(param)[0].rank):
                states[i] = {key: part_like(x, by_param[param].get(key)) for key, x in states[i].items()}
            elif param in by_param:
                states[i] = {key: x for key, x in states[i].items() if key in ("step", DRAW_KEY)}
        return states

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, on each parameter's device, in the dtypes that the state began with.

        If the names of parameters are known on both sides, each takes the state saved under its name.

        Raises:
            ValueError: the state belongs to another optimizer or to other parameters, or an option in it is not
                allowed; nothing was changed.
        """
        saved: list[dict[str, Any]] = []

        def inspect(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            """Return the state in this optimizer's order, and keep it."""
            state_dict = saved_state.align(self, state_dict)
            for saved_group, group in zip(state_dict["param_groups"], self.param_groups, strict=False):
                self._check_group(saved_state.without_marks(self, saved_state.loaded_group(group, saved_group)))
            state_dict = {**state_dict, "state": self._parts(state_dict)}
            saved_state.check(self, state_dict, self._meta_state)
            saved.append(state_dict)
            return state_dict

        def restore(_: Optimizer) -> None:
            """Put back dtypes."""
            saved_state.restore(self, saved[0], self._meta_state)
            for group in self.param_groups if self.capturable else ():
                keep_counts_on_device(group)

        # torch casts floating-point state to the parameter's dtype, which would round the float32 statistics of a
        # bfloat16 parameter: restore them afterwards, before any hook of the user sees them
        hooks = [
            self.register_load_state_dict_pre_hook(inspect),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()


def refuse_step_while_evaluating(optimizer: Any) -> None:
    """Refuse to step while parameters are in eval mode.

    Args:
        optimizer: with ``is_evaluating``.

    Raises:
        RuntimeError: parameters are in eval mode.
    """
    if optimizer.is_evaluating:
        raise RuntimeError(
            f"{type(optimizer).__name__} cannot step while its parameters are in eval mode; call train() on "
            "it after each eval()"
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
    named = ((name, param.grad) for name, param, _ in saved_state.named_parameters(optimizer) if param.grad is not None)
    sparse = next(name for name, grad in named if grad.layout is not torch.strided)
    raise ValueError(
        f"{type(optimizer).__name__} needs dense gradients, given sparse ones for {sparse}; "
        "build the embedding with sparse=False, or give this parameter to torch.optim.SparseAdam"
    )


def keep_counts_on_device(group: Group) -> None:
    """Turn the group's lr and its count of steps into tensors of their own, which a captured step reads each time."""
    if not group["params"]:
        return
    first = group["params"][0]
    place = {"dtype": state_dtype(first), "device": first.device}
    if group["lr"] is not None and not (isinstance(group["lr"], Tensor) and group["lr"].device == first.device):
        group["lr"] = torch.as_tensor(group["lr"], **place)
    group["shared_state"]["steps"] = torch.as_tensor(group["shared_state"]["steps"], **place).clone()


def share_counts(
    entries: Sequence[ParamEntry], states: Mapping[Tensor, State], shared_counts: MutableMapping[int, Tensor]
) -> Collection[Tensor]:
    """Let parameters with equal counts of steps share one 0-dimensional tensor, to step as one; return all counts.

    Args:
        entries: the parameters of this step.
        states: of all parameters of the optimizer, ``optimizer.state``.
        shared_counts: the shared tensors, by their id. Others are read, before any capture.
    """
    counts = {id(entry.state["step"]): entry.state["step"] for entry in entries if entry.shard is None}
    if not counts.keys() <= shared_counts.keys():
        # a tensor on the meta device has no value, and there all are new
        values = [0.0 if count.is_meta else count.item() for count in counts.values()]
        by_value: dict[object, Tensor] = {}
        new = {
            key: by_value.setdefault((value, count.dtype, count.device), count)
            for (key, count), value in zip(counts.items(), values, strict=True)
        }
        _replace(entries, new)
        shared_counts.update({id(count): count for count in new.values()})
    # the counts of those that do not step stand still
    stepping = {id(getattr(entry.state, "whole", entry.state)) for entry in entries}
    resting = {id(state["step"]) for state in states.values() if state and id(state) not in stepping}
    shared = {id(entry.state["step"]): entry.state["step"] for entry in entries if entry.shard is None}
    copies = {key: count.clone() for key, count in shared.items() if key in resting}
    _replace(entries, copies)
    shared_counts.update({id(count): count for count in copies.values()})
    return {id(entry.state["step"]): entry.state["step"] for entry in entries}.values()


def _replace(entries: Sequence[ParamEntry], new: Mapping[int, Tensor]) -> None:
    for entry in entries:
        entry.state["step"] = new.get(id(entry.state["step"]), entry.state["step"])


class Undo:
    """Takes back a step if a flag on the device says so: keeps a copy of what the step may change, in pieces.

    Args:
        groups: the groups of an optimizer, with the parameters of this step.
    """

    def __init__(self, groups: Sequence[tuple[Group, Sequence[ParamEntry]]]) -> None:
        holders = [entry.state for _, entries in groups for entry in entries] + [g["shared_state"] for g, _ in groups]
        self.params = [entry.param for _, entries in groups for entry in entries]
        # by name, because a step may replace a statistic by another tensor
        self.places = [(holder, key) for holder in holders for key, x in holder.items() if isinstance(x, Tensor)]
        # of one tensor, flatten returns a view
        self.before = [flatten(piece) if len(piece) > 1 else piece[0].flatten().clone() for piece in self._pieces()]

    def __call__(self, found_inf: Tensor) -> None:
        """Put everything back if the flag is not zero."""
        for before, piece in zip(self.before, self._pieces(), strict=True):
            skips = found_inf.reshape(()).to(before.device) > 0
            after = flatten(piece)
            torch.where(skips, before, after, out=after)
            torch._foreach_copy_(piece, unflatten(after, piece))

    def _pieces(self) -> list[list[Tensor]]:
        """Return what may change, by dtype and device, in lists of at most ``PIECE_NUMEL`` elements or one tensor."""
        pieces_of: dict[tuple[torch.dtype, torch.device], list[list[Tensor]]] = defaultdict(list)
        room: dict[tuple[torch.dtype, torch.device], int] = defaultdict(int)
        for x in (*self.params, *(holder[key] for holder, key in self.places)):
            kind = x.dtype, x.device
            if not pieces_of[kind] or room[kind] < x.numel():
                pieces_of[kind].append([])
                room[kind] = PIECE_NUMEL
            pieces_of[kind][-1].append(x)
            room[kind] -= x.numel()
        return [piece for pieces in pieces_of.values() for piece in pieces]
