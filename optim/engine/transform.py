"""The interface of a transform: one idea of an update rule."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Self, dataclass_transform, get_origin, get_type_hints

import torch
from torch import Tensor

from optim.engine.options import WHOLE, Domain
from optim.engine.param_batch import ForeachBatch, Group, ParamBatch, ParamEntry, State, Update, is_narrow, zeros

STORAGE_DTYPES = ("float32", "bfloat16")


class SkipUpdate(Exception):
    """Raised by a transform: the parameters of this batch do not move in this step.

    Statistics and the step count advance; later transforms are not called. A stack skips as a whole, so a decision
    by values, not by the step or an option, needs ``stacks = False``.

    Examples:
        >>> @optim.transform
        ... def every_second_step(update, batch):
        ...     if batch.step % 2:
        ...         raise optim.SkipUpdate
        ...     return update
        >>> param = nn.Parameter(torch.zeros(1))
        >>> optimizer = optim.chain(every_second_step(), lr=0.1)([param])
        >>> for _ in range(3):
        ...     param.grad = torch.ones(1)
        ...     optimizer.step()
        >>> param.item()
        -1.0
    """


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class DeclaresOptions:
    """Makes a dataclass of a class that declares options, as ``eps: Annotated[float, "[0, inf)"] = 1e-8``."""

    allowed: ClassVar[Mapping[str, Domain]] = {}
    """What each option may be, as in `optim.engine.options.check_options`: what stands beside its type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any("Annotated[" in str(annotation) for annotation in get_annotations(cls).values()):
            hints = get_type_hints(cls, include_extras=True)
            annotated = {key: hint for key, hint in hints.items() if get_origin(hint) is Annotated}
            cls.allowed = {**cls.allowed, **{key: hint.__metadata__[0] for key, hint in annotated.items()}}
            dataclass(eq=False, repr=False)(cls)
            # texts are names of the module of a base class, too
            cls.__init__.__annotations__.update({key: hint.__origin__ for key, hint in annotated.items()})


@dataclass(eq=False, repr=False)
class Transform(DeclaresOptions, ABC):
    """Turns the update that arrives into the one that leaves.

    A transform holds only the defaults of its options. The options themselves are in the parameter groups, and its
    statistics in the state of each parameter, both under plain names. Two transforms of a chain may share an option if
    both are given the same value, but never a statistic.

    Args:
        name: prefix ``name/`` of the options and statistics, so that a chain can use one transform twice.
        options: defaults of the hyper-parameters, at least of those in ``allowed``.

    Examples:
        >>> from typing import Annotated
        >>> class Sign(optim.Transform):
        ...     size: Annotated[float, "[0, inf)"] = 1.0
        ...     def __call__(self, update, batch):
        ...         return update.value().sign() * batch.group["size"]
        >>> param = nn.Parameter(torch.zeros(2))
        >>> param.grad = torch.tensor([0.5, -7.0])
        >>> optim.chain(Sign(2.0), lr=0.1)([param]).step()
        >>> param.data  # no `LearningRate` in this chain
        tensor([-2.,  2.])
    """

    name: str = field(default="", kw_only=True)
    switch: ClassVar[str] = ""
    """Option that switches it off if it is None, False or 0; see `is_noop`."""
    averages: ClassVar[Sequence[str]] = ()
    """Statistics that begin as zeros in the parameter's shape."""
    acts_after_step: ClassVar[bool] = False
    """Whether `after_step` does anything."""
    # without annotations, as they are no options
    asks_single = False
    """Whether it treats parameters of one element in another way."""
    stacks = True
    """Whether it takes stacks; one that does not makes its whole chain take each parameter alone."""
    foreach = False
    """Whether it may get a `ForeachBatch`: it asks no tensor for its shape, and takes ``numel`` and every number per
    parameter as a vector. Others get its parts one by one, each a launch of its own on a GPU."""
    many_calls: ClassVar[bool] = False
    """Whether it makes so many calls that on a CPU, too, all parameters of one shape should be stacks."""
    shardable = False
    """Whether it may get a part of a parameter (FSDP2): it treats each element alone, or reduces by `ParamBatch.norm`
    and the like, in the same order on all processes."""
    joins_parameters: ClassVar[bool] = False
    """Whether its statistics join all parameters, so that no process may lack one: then parameters are not sharded."""
    has_eval_mode: ClassVar[bool] = False
    """Whether a model should be evaluated elsewhere than where its gradients are taken; then this is the last transform
    of its chain, whose ``eval``, ``train`` and ``is_evaluating`` call this transform's, as `ScheduleFree` has them."""

    def __init__(self, *, name: str = "", **options: Any) -> None:
        # lr is the engine's: a transform may only say what it may be
        if missing := set(self.allowed) - {"lr"} - set(options):
            raise TypeError(f"{type(self).__name__} needs the options {', '.join(sorted(missing))}")
        self.prefix = f"{name}/" if name else ""
        self.options = options

    def __post_init__(self) -> None:
        """Take what a subclass declares as options."""
        declared = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "name"}
        Transform.__init__(self, name=self.name, **declared)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return one that takes its own options from others by their names."""
        own = {*cls.allowed, *(each.name for each in fields(cls))} - {"lr", "name"}
        return cls(**{key: value for key, value in options.items() if key in own})

    @abstractmethod
    def __call__(self, update: Update, batch: ParamBatch) -> Update | Tensor:
        """Return the new update; may also change ``batch.param`` and ``batch.state`` in place.

        Args:
            update: must not be modified.
            batch: the parameters, their statistics and hyper-parameters.

        Raises:
            SkipUpdate: the parameters do not move in this step.
        """

    def new_state(self, param: Tensor, group: Group) -> State:
        """Return the statistics of a parameter before its first step: tensors of any shape by name.

        Also called with a tensor on the meta device, to get names, shapes and dtypes.
        """
        return {name: zeros(param, group) for name in self.averages}

    def new_shared_state(self, group: Group) -> State:
        """Return the statistics of a whole group before its first step: tensors or numbers by name."""
        return {}

    def kind(self, shape: torch.Size) -> Hashable:
        """Return a key that is equal for shapes which are treated alike; a `ForeachBatch` holds one kind."""
        return self.asks_single and shape.numel() == 1

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Look at all gradients together, if there are any; store what is found in ``group["shared_state"]``."""

    def needs_all_gradients(self, group: Group) -> bool:
        """Return whether `before_step` does anything with these options; parameters then cannot step one by one."""
        return type(self).before_step is not Transform.before_step

    def after_step(self, batch: ParamBatch) -> None:
        """Look at the parameters after they have moved; may change ``batch.param`` in place."""

    def draws(self, group: Group) -> bool:
        """Return whether it draws random numbers, by the ``draw_key`` in a parameter's state."""
        return False

    def is_noop(self, group: Group) -> bool:
        """Return whether the options of a group switch this transform off; it is then not called."""
        return bool(self.switch) and not group[self.switch]

    def check(self, group: Group) -> None:
        """Refuse combinations of options; each option alone has been checked against ``allowed``."""

    def unprefixed(self, names: Mapping[str, Any]) -> Any:
        """Return a group or a state with this transform's names without their prefix."""
        if not self.prefix:
            return names  # no copy: a transform may change the mapping itself
        stripped = {key.removeprefix(self.prefix): names[key] for key in names if key.startswith(self.prefix)}
        return {**names, **stripped}

    def view(self, batch: ParamBatch) -> ParamBatch:
        """Return the batch with this transform's options and statistics under their plain names."""
        if not self.prefix:
            return batch
        # a shallow copy is enough: tensors are changed in place, and no transform replaces one
        view = copy.copy(batch)
        view.state, view.group = self.unprefixed(batch.state), self.unprefixed(batch.group)
        if isinstance(view, ForeachBatch):
            view.__dict__.pop("parts", None)  # with the other names
        return view


class FusedTransform(Transform):
    """A transform that can also move the parameters by itself, as torch's fused kernels do.

    The engine calls `move` instead of this transform and the later ones if `fuses` says that it does their work too.

    Examples:
        >>> from optim.transforms.adam import Adam
        >>> from optim.transforms.learning_rate import LearningRate
        >>> isinstance(Adam(), optim.FusedTransform), Adam().fuses([LearningRate()])
        (True, True)
    """

    foreach = True
    one_call: ClassVar[bool] = True
    """Whether `move` is one call for all tensors: a CPU then gains nothing from stacks, or from moving one by one."""

    def takes_found_inf(self, group: Group, entries: Sequence[ParamEntry]) -> bool:
        """Return whether `move` changes nothing, in any of these parameters, if ``batch.found_inf`` is not zero."""
        return False

    @abstractmethod
    def fuses(self, later: Sequence[Transform]) -> bool:
        """Return whether `move` also does the work of all later active transforms."""

    @abstractmethod
    def move(self, update: Update, batch: ParamBatch, later: Sequence[Transform]) -> None:
        """Change ``param`` and ``state`` of a batch in place, as this and the ``later`` transforms would.

        Args:
            update: must not be modified.
            batch: also a `ForeachBatch`.
            later: what `fuses` agreed to.
        """


class GroupTransform(Transform):
    """A transform that can also take the updates of a whole group at once, to divide their work over processes.

    A chain may have one whose `takes_all` is true; the engine then calls `of_group` instead of it.

    Examples:
        >>> from optim.transforms.orthogonalize import Orthogonalize
        >>> isinstance(Orthogonalize(), optim.GroupTransform)
        True
        >>> Orthogonalize().takes_all({"shard_matrix_work": False})
        False
    """

    def takes_all(self, group: Group) -> bool:
        """Return whether the options of a group ask for `of_group`: its ``shard_matrix_work``, if it has one."""
        return bool(group.get("shard_matrix_work"))

    @abstractmethod
    def of_group(self, updates: Sequence[Update], batches: Sequence[ParamBatch]) -> Sequence[Update]:
        """Return the new updates, as calls with one batch each would; see `Transform.__call__`.

        Args:
            updates: one per batch, which must not be modified.
            batches: all of one group, in the same order in every process.
        """


class OptionHolder(Transform):
    """Holds options that the engine or another transform reads; never called itself."""

    def is_noop(self, group: Group) -> bool:
        """Return True."""
        return True

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update unchanged."""
        return update


class StateStorage(OptionHolder):
    """Says how averages of the parameter's shape are stored; leaves the update alone.

    With bfloat16 they are widened before a step and rounded after it: to one of the two neighbors in bfloat16, with
    probabilities that make the expectation right, so that changes below half a spacing add up instead of being lost.
    Statistics that `optim.engine.param_batch.zeros` does not make keep their dtype.

    Args:
        storage_dtype: "float32", or "bfloat16" for half of the bytes; float64 parameters then have float64 arithmetic.
        seed: of the rounding.

    Reference:
        Zamirai et al. 2021, "Revisiting BFloat16 Training", arXiv:2010.06192: stochastic rounding of weights.
    """

    storage_dtype: Annotated[str, [*STORAGE_DTYPES]] = "float32"
    seed: Annotated[int, "[0, inf)" + WHOLE] = 0

    def draws(self, group: Group) -> bool:
        """Return whether there is anything to round."""
        return is_narrow(group)


def merged_options(transforms: Sequence[Transform]) -> dict[str, Any]:
    """Return the defaults of all transforms of a chain, as the groups name them.

    Raises:
        ValueError: there is no transform, two disagree about a shared option, or one must be the last and is not.
    """
    if not transforms:
        raise ValueError("a chain needs at least one transform, given none")
    for transform in transforms[:-1]:
        if transform.has_eval_mode:
            raise ValueError(
                f"{type(transform).__name__} must be the last transform: it averages parameters as they have moved"
            )
    options: dict[str, Any] = {}
    for transform in transforms:
        for key, value in ((transform.prefix + key, value) for key, value in transform.options.items()):
            if key in options and options[key] != value:
                raise ValueError(
                    f"two transforms have an option {key!r}, one with {options[key]!r} and one with {value!r}; give "
                    f"them the same value, or one of them a name, as in {type(transform).__name__}(..., name='second')"
                )
            options[key] = value
    return options


def merged_state(transforms: Sequence[Transform], param: Tensor, group: Group) -> State:
    """Return the statistics of all transforms of a chain before a parameter's first step: tensors of any shape by name.

    Raises:
        ValueError: two transforms keep one of the same name.
    """
    state: State = {}
    for transform in transforms:
        for key, value in transform.new_state(param, transform.unprefixed(group)).items():
            if transform.prefix + key in state:
                raise ValueError(
                    f"two transforms keep a statistic called {key!r}; give one of them a name, as in "
                    f"{type(transform).__name__}(..., name='second')"
                )
            state[transform.prefix + key] = value
    return state


def merged_shared_state(transforms: Sequence[Transform], group: Group) -> State:
    """Return the statistics of a group that all transforms of a chain keep, before the first step."""
    return {
        transform.prefix + key: value
        for transform in transforms
        for key, value in transform.new_shared_state(transform.unprefixed(group)).items()
    }


def applied(transforms: Sequence[Transform], update: Update, batch: ParamBatch) -> Update:
    """Return what the transforms make of an update, one after the other."""
    for transform in transforms:
        # no call of `view` for plain names: this loop runs once per transform and batch
        result = transform(update, transform.view(batch) if transform.prefix else batch)
        update = result if isinstance(result, Update) else Update(result)
    return update
