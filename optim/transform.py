"""What a transform is: one idea of an update rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from optim.batch import Batch, Group, Member, State, Update
from optim.options import Domain


class Transform(ABC):
    """Turns the update that arrives into the one that leaves.

    A transform holds nothing but the defaults of its options: they lie in the parameter groups, and its statistics in
    the state of each parameter, both under plain names. Two transforms of a chain may share an option if they are given
    the same value, but never a statistic.

    Args:
        name: where given, the options and statistics are called ``name/…``, so that two transforms of one kind can
            stand in a chain.
        options: defaults of the hyper-parameters.
    """

    allowed: ClassVar[Mapping[str, Domain]] = {}
    """What each option may be, as in `optim.options.check_options`."""
    acts_after_step: ClassVar[bool] = False
    """Whether `after_step` does anything."""

    def __init__(self, *, name: str = "", **options: Any) -> None:
        self.prefix = f"{name}/" if name else ""
        self.options = options

    @abstractmethod
    def __call__(self, update: Update, batch: Batch) -> Update | Tensor:
        """Return the new update; may also change ``batch.param`` and ``batch.state`` in place.

        Args:
            update: must not be modified.
            batch: the parameters, their statistics and hyper-parameters.
        """

    def new_state(self, param: Tensor, group: Group, kind: Hashable) -> State:
        """Return the statistics of a parameter before its first step: tensors, by name.

        Called with a tensor on the meta device too, to learn names, shapes and types.
        """
        return {}

    def new_shared_state(self, group: Group) -> State:
        """Return the statistics of a whole group before its first step: tensors or numbers, by name."""
        return {}

    def before_step(self, groups: Sequence[tuple[Group, list[Member]]]) -> None:  # noqa: B027
        """Look at all gradients together; what is found is left in ``group["shared_state"]``."""

    def after_step(self, batch: Batch) -> None:  # noqa: B027
        """Look at the parameters after they have moved; may change ``batch.param`` in place."""

    def check(self, group: Group) -> None:  # noqa: B027
        """Refuse combinations of options that cannot be meant; each alone has been checked against ``allowed``."""

    def named_options(self) -> dict[str, Any]:
        """Return the defaults as the groups name them."""
        return {self.prefix + key: value for key, value in self.options.items()}

    def own(self, names: Mapping[str, Any]) -> Any:
        """Return what this transform sees of a group or of a state: its own names, without the prefix.

        Without a prefix that is the mapping itself.
        """
        if not self.prefix:
            return names
        own = {key.removeprefix(self.prefix): names[key] for key in names if key.startswith(self.prefix)}
        return {**names, **own}


class Mover(Transform):
    """A last transform that moves the parameters of a whole group by itself, as fused kernels do."""

    def __call__(self, update: Update, batch: Batch) -> Update:
        """Leave the update to `move`."""
        return update

    @abstractmethod
    def move(self, updates: Sequence[Tensor], batches: Sequence[Batch]) -> None:
        """Change ``param`` and ``state`` of every batch in place; all belong to one group."""
