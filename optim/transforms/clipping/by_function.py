"""Gradients or updates limited by a function that users choose by name, or bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from optim.engine.options import did_you_mean
from optim.engine.param_batch import Group, ParamBatch, ParamEntry, State, Update, state_dtype
from optim.engine.transform import Transform
from optim.transforms.clipping.by_global_norm import gradient_norms, keep_factor, limited_by, total_norm
from optim.transforms.clipping.functions import CLIPPERS, HEAVYBALL_NAMES
from optim.transforms.mars import corrected_gradient

Clipper = Callable[[Tensor], Tensor]
"""Returns the limited update of one parameter, in the same shape; may overwrite its argument."""
GLOBAL_NORM = "global_norm"
NAMES = (*CLIPPERS, GLOBAL_NORM, "identity")


class Clipping(Transform):
    """Limits what arrives by one of `optim.transforms.clipping.functions`, or by a function of one parameter's tensor.

    ``identity`` and None change nothing. ``global_norm``, for gradients alone, is

        g ← g/max(1, ‖gradients of all parameters of the optimizer‖₂)                  each after MARS, where it is on

    Groups and checkpoints hold names only. A function's is its module and qualified name; it is not saved, so that an
    optimizer which loads the state must have been given it too.

    State of a group, for gradients: the divisor's inverse (``clip_factor``), of the last step.

    Args:
        how: a name, HeavyBall's name of such a function, a function, or None.
        option: name of the option in the groups: ``gradient_clipping`` or ``update_clipping``.
        name: see `Transform`.
    """

    foreach = True

    def __init__(self, how: str | Clipper | None, option: str, *, name: str = "") -> None:
        self.option, self.functions = option, dict[str, Clipper]()
        super().__init__(name=name, **{option: self._name_of(how)})

    def _name_of(self, how: str | Clipper | None) -> str | None:
        """Return what groups hold; remember a function under its name."""
        if not callable(how):
            return HEAVYBALL_NAMES.get(how, how) if isinstance(how, str) else how
        # an object with __call__ has the name of its class: its repr may hold an address, which no other process has
        named = how if hasattr(how, "__qualname__") else type(how)
        label = f"{named.__module__}.{named.__qualname__}"
        if self.functions.setdefault(label, how) is not how:
            raise ValueError(f"{self.option} was given two functions called {label}; give one of them another name")
        self.foreach = False  # it gets the tensor of one parameter
        return label

    def check(self, group: Group) -> None:
        """Turn a function into its name, and refuse unknown names."""
        group[self.option] = how = self._name_of(group[self.option])
        if how not in (*NAMES, *self.functions, None):
            raise ValueError(
                f"{self.option} must be one of {', '.join(NAMES)}, a function of a tensor, or None, given {how!r}"
                f"{did_you_mean(str(how), NAMES)}; a state that was saved with a function needs it here too"
            )
        if how == GLOBAL_NORM and self.option != "gradient_clipping":
            raise ValueError(
                f"{self.option}={GLOBAL_NORM!r} would need all updates before the first parameter moves; use "
                f"gradient_clipping={GLOBAL_NORM!r}, or limit each update by 'l2' or 'rms_norm'"
            )

    def new_shared_state(self, group: Group) -> State:
        """Return a factor of one."""
        # whatever the option is: a loaded state may bring another one
        return {"clip_factor": 1.0} if self.option == "gradient_clipping" else {}

    def before_step(self, groups: Sequence[tuple[Group, list[ParamEntry]]]) -> None:
        """Measure all gradients, if a group wants their common norm."""
        wanting = [group for group, _ in groups if group[self.prefix + self.option] == GLOBAL_NORM]
        norms = [norm for group, entries in groups for norm in _norms(group, entries)] if wanting else []
        for group in wanting if norms else ():
            # a tensor: `if norm > 1` would wait for the device
            keep_factor(group["shared_state"], self.prefix + "clip_factor", 1 / total_norm(norms).clamp(min=1.0))

    def needs_all_gradients(self, group: Group) -> bool:
        """Return whether the common norm is limited; the others look at one parameter."""
        return bool(group[self.option] == GLOBAL_NORM)

    def is_noop(self, group: Group) -> bool:
        """Return whether everything passes unchanged."""
        return group[self.option] in (None, "identity")

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Return the update, limited."""
        how = batch.group[self.option]
        if how in CLIPPERS:
            return CLIPPERS[how](update, batch)
        if how == GLOBAL_NORM:
            return limited_by(batch.group["shared_state"][self.prefix + "clip_factor"], update, batch)
        # a copy: the function may overwrite it, and it may be the gradient itself
        given = update.writable() if update.overwritable else update.value().clone()
        limited = [self.functions[how](x) for x in (given.unbind() if batch.stacked else (given,))]
        if any(x.shape != batch.shape for x in limited):
            raise ValueError(f"{self.option}: {how} must keep the shape {tuple(batch.shape)} of its argument")
        return Update(torch.stack(limited) if batch.stacked else limited[0], overwritable=True)


def _norms(group: Group, entries: Sequence[ParamEntry]) -> Sequence[Tensor]:
    """Return the norm of every gradient, after MARS."""
    if not group.get("mars"):
        return gradient_norms(entries)
    norms = []
    for entry in entries:
        # the sign that `maximize` turns is kept in the previous gradient
        previous = -entry.state["previous_grad"] if group["maximize"] else entry.state["previous_grad"]
        wide = entry.grad.to(state_dtype(entry.param))
        norms.append(torch.linalg.vector_norm(corrected_gradient(wide, previous, group, entry.state["step"] + 1)))
    return norms
