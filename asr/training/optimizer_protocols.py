"""Protocols of optimizers: eval and train mode, found_inf, closures, steps in the backward pass, changed options."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asr.models import devices
from asr.training.processes import console
from werdict.errors import Diverged

SET_BY_SCHEDULES = ("lr", "initial_lr", "betas", "momentum")


@runtime_checkable
class HasEvalMode(Protocol):
    """An optimizer with weights for evaluation beside those that it trains, as schedule-free ones have."""

    @property
    def has_eval_mode(self) -> bool:
        """Whether it has such weights."""

    @property
    def is_evaluating(self) -> bool:
        """Whether the parameters are the weights for evaluation."""

    def eval(self) -> None:
        """Put the weights for evaluation into the parameters."""

    def train(self) -> None:
        """Put back the weights for training, bit for bit."""


def to_eval_mode(optimizers: Sequence[Optimizer]) -> list[HasEvalMode]:
    """Put the weights for evaluation into the parameters; return the optimizers that had others there."""
    moved: list[HasEvalMode] = []
    for optimizer in optimizers:
        if isinstance(optimizer, HasEvalMode) and not optimizer.is_evaluating:
            optimizer.eval()
            moved.append(optimizer)
    return moved


def to_train_mode(optimizers: Iterable[Optimizer | HasEvalMode]) -> None:
    """Put back the weights for training."""
    for optimizer in optimizers:
        if isinstance(optimizer, HasEvalMode):
            optimizer.train()


@contextlib.contextmanager
def in_eval_mode(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Keep the weights for evaluation in the parameters for a while; afterwards those that were there before."""
    moved = to_eval_mode(optimizers)
    try:
        yield
    finally:
        to_train_mode(moved)


@runtime_checkable
class SupportsFoundInf(Protocol):
    """An optimizer that can skip a step although the host does not know that it should.

    Attributes:
        capturable: whether it can do so now; then a CUDA graph can replay its updates, too.
        found_inf: (), on the device: a step changes nothing if it is not zero.
    """

    capturable: bool
    found_inf: Tensor | None

    def make_capturable(self) -> None:
        """Compute all that changes from update to update on the device; a ValueError if it cannot."""

    def update(self) -> None:
        """Move the parameters by the gradients that are there."""

    def run_updates_by(self, runner: Callable[[], None] | None) -> None:
        """Have ``step`` call this function, which calls `update` or replays it; None: `update` itself."""


@runtime_checkable
class ReplacesParams(Protocol):
    """An optimizer that checks its options when it is built, and can then be given the parameters that it updates."""

    def replace_params(self, params: Mapping[str, nn.Parameter]) -> None:
        """Update other parameters of the same names, as if built of them."""


def replaces_params(optimizer: Optimizer) -> bool:
    """Return whether an optimizer, with all its members, is a `ReplacesParams`."""
    return all(isinstance(member, ReplacesParams) for member in members_of(optimizer))


def members_of(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that step as one, or the optimizer itself."""
    members: list[Optimizer] = getattr(optimizer, "optimizers", [optimizer])
    return members


def calls_closure(optimizer: Optimizer) -> bool:
    """Make a trial update; return whether ``step`` calls its closure, as Lightning expects.

    Args:
        optimizer: of parameters that are thrown away.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    calls = 0

    def closure() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    parameters = inspect.signature(optimizer.step).parameters.values()
    if any(p.name == "closure" or p.kind is p.VAR_KEYWORD for p in parameters):
        optimizer.step(closure=closure)  # LBFGS needs it
    else:
        optimizer.step()
    return calls > 0


def compute_gradients_first(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call the closure in the place of a ``step`` that would not; a hook of torch's, registered before all others."""
    if (closure := kwargs.get("closure")) is not None:
        closure()
    return args, {name: value for name, value in kwargs.items() if name != "closure"}


@runtime_checkable
class StepsInBackward(Protocol):
    """An optimizer whose parameters step as soon as they have a gradient.

    Attributes:
        before_step: called with every gradient before its step, which False leaves out.
    """

    before_step: Callable[[Tensor], bool] | None

    def remove(self) -> None:
        """Stop stepping in the backward pass."""


class GradientsInBackward:
    """Scales gradients on their way to the optimizer, which sees each of them alone, and remembers their norms.

    What decides about an update is known before its backward pass, except whether its gradients are finite: if they
    are not, parameters have moved already, and the run ends.
    """

    def __init__(self) -> None:
        self.scale: float | None = None
        self.norms: list[Tensor] = []

    def begin(self, loss: Tensor, num_tokens: Tensor) -> None:
        """Decide about the update whose backward pass follows: a loss that is not finite leaves it out.

        Args:
            loss: () in nats, summed over the utterances.
            num_tokens: (), target tokens of the update.
        """
        # waits for the device, as the sums over ranks do after a usual backward pass
        loss_value, tokens = devices.to_host(torch.stack([loss.detach(), num_tokens.to(loss)]))
        self.scale = 1 / max(1, tokens) if math.isfinite(loss_value) else None

    def __call__(self, gradient: Tensor) -> bool:
        """Scale a gradient (…) to nats per token; return whether its parameter may step."""
        if self.scale is None:
            return False
        self.norms.append(torch.linalg.vector_norm(gradient))
        gradient.mul_(self.scale)
        return True

    def end(self, update: int) -> Tensor:
        """Return the norm of all gradients of the update, before they were scaled.

        Raises:
            Diverged: it is not finite.
        """
        norms, self.norms, self.scale = self.norms, [], None
        norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
        if not math.isfinite(devices.to_host(norm)):
            raise Diverged(
                f"the gradients of update {update} are not finite, and with trainer.step_in_backward=true the weights "
                "had changed before this was known; resume the run from its last checkpoint with "
                "trainer.step_in_backward=false, which skips such updates, or lower optimizer.lr"
            )
        return norm


def apply_to_checkpoint(
    state: dict[str, Any],
    changed: Collection[str],
    optimizer: Optimizer,
    schedule_factory: Callable[[Optimizer], LRScheduler],
) -> LRScheduler:
    """Set the options and learning rates in a checkpoint's states to the current ones, at the same update.

    Args:
        state: content of a checkpoint, changed in place.
        changed: names of options; others stay as they were saved, because some optimizers keep statistics in groups.
        optimizer: new, with the current options.
        schedule_factory: optimizer → schedule.

    Returns:
        The new schedule.

    Raises:
        ValueError: the optimizer has other groups of parameters.
    """
    groups = state["optimizer_states"][0]["param_groups"]
    _refuse_other_groups(groups, optimizer.param_groups)
    options = [{*group} - {*changed, *SET_BY_SCHEDULES} for group in optimizer.param_groups]
    schedule = schedule_factory(optimizer)
    _advance(schedule, state["global_step"], state["epoch"])
    state["lr_schedulers"][0] = dict(schedule.state_dict())
    for saved, new, unchanged in zip(groups, optimizer.param_groups, options, strict=True):
        # some schedules add options of their own
        saved.update({key: copy.deepcopy(new[key]) for key in new if key not in unchanged})
    return schedule


class NamedParameters(list[tuple[str, nn.Parameter]]):
    """Names and parameters of a model, for a factory of optimizers, which may ask its modules what these are.

    Args:
        model: of the parameters.
        small: others in their place, of as many dimensions, with at most two rows and columns.
    """

    def __init__(self, model: nn.Module, *, small: bool = False) -> None:
        self.model = model
        for name, p in model.named_parameters():
            trial = nn.Parameter(torch.ones([min(2, size) for size in p.shape]), p.requires_grad) if small else p
            self.append((name, trial))


def _refuse_other_groups(saved: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what torch would not notice: it matches parameters by their order."""
    for place, (saved_group, new_group) in enumerate(zip(saved, new, strict=False)):
        if other := sorted(set(saved_group["param_names"]) ^ set(new_group["param_names"])):
            raise ValueError(f"group {place} of the optimizer has other parameters: {', '.join(other[:3])} moved")
    if len(saved) != len(new):
        raise ValueError(f"the optimizer has {len(new)} groups, but had {len(saved)}")


def _advance(schedule: LRScheduler, update: int, epoch: int) -> None:
    """Bring a new schedule, and the groups of its optimizer, to where they are after ``update`` updates."""
    if hasattr(schedule, "step_epoch"):
        schedule.step_epoch(epoch)
    if hasattr(schedule, "step_batch"):  # a closed form, as all of ours are
        schedule.step_batch(update)
        return
    console.print_line(
        f"{type(schedule).__name__} is stepped through {update} updates to find its current learning rate"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses updates of the optimizer
        for _ in range(update):
            schedule.step()
