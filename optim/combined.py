"""Several optimizers as one: each has its own parameters, and trainers see a single optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from optim.engine.chain import Chain, refuse_step_while_evaluating
from optim.engine.distributed import all_finite, on_cpu
from optim.engine.saved_state import with_states


class Combined(Optimizer):
    """Steps several optimizers together.

    Its groups and its state are the members' own, in the members' order: schedules, loggers and checkpoints need not
    know about the members. If any member was built with ``skip_nonfinite``, all skip together.

    Args:
        optimizers: at least one; no two share a parameter.

    Raises:
        ValueError: two members have a parameter in common.

    Examples:
        >>> model = nn.Linear(3, 2)
        >>> members = [optim.Muon([model.weight], lr=0.01), optim.AdamW([model.bias], lr=0.001)]
        >>> optimizer = optim.Combined(members)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.001]
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # torch refuses a parameter that is in two groups
        super().__init__([{"params": group["params"]} for o in optimizers for group in o.param_groups], {})
        self.optimizers = list(optimizers)
        # what every group has: some of torch's schedules ask here which options they may set
        common = set[str].intersection(*(set(optimizer.defaults) for optimizer in self.optimizers))
        self.defaults = {key: value for key, value in self.optimizers[0].defaults.items() if key in common}
        self._join()

    def _join(self) -> None:
        """Make the members' groups and states this optimizer's own.

        The same objects and not copies: a schedule sets the lr in these groups, and members read it there.
        """
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        # one state for all: what a member adds in its first step then appears here too
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        for optimizer in self.optimizers:
            state.update(optimizer.state)
            optimizer.state = state
        self.state = state

    def __getstate__(self) -> dict[str, Any]:
        # groups and state are pickled once: references within one pickle stay shared
        return {**super().__getstate__(), "optimizers": self.optimizers}

    @_disable_dynamo  # as of the members
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the closure, if there is one, and step every member.

        Returns:
            The closure's result, or None.

        Raises:
            RuntimeError: parameters are in eval mode; nothing was changed.
        """
        refuse_step_while_evaluating(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        chains = self._chains()
        gradients = [param.grad for group in self.param_groups for param in group["params"] if param.grad is not None]
        # before any member steps: half an update would be worse than none
        if any(chain.skip_nonfinite for chain in chains) and not all_finite(gradients):
            for chain in chains:
                chain.count("skipped_steps")
            return loss
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    @property
    def has_eval_mode(self) -> bool:
        """Return whether the model should be evaluated between `eval` and `train`."""
        return any(chain.has_eval_mode for chain in self._chains())

    @property
    def is_evaluating(self) -> bool:
        """Return whether any parameters are in eval mode."""
        return any(chain.is_evaluating for chain in self._chains())

    def eval(self) -> None:
        """Let every member put its weights for evaluation into its parameters; see `Chain.eval`."""
        for chain in self._chains():
            chain.eval()

    def train(self) -> None:
        """Let every member put back the values for training."""
        for chain in self._chains():
            chain.train()

    def _chains(self) -> list[Chain]:
        return [optimizer for optimizer in self.optimizers if isinstance(optimizer, Chain)]

    def replace_params(self, params: Mapping[str, nn.Parameter]) -> None:
        """Let members that are all a `Chain` update other parameters, as `Chain.replace_params` does."""
        for chain in self._chains():
            chain.replace_params(params)
        self._join()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse, because the member that the group is for is unknown.

        Raises:
            ValueError: always, after construction.
        """
        # torch's constructor calls this method too
        if hasattr(self, "optimizers"):
            raise ValueError("add the group to one of `optimizers`, then combine them again")
        super().add_param_group(param_group)

    def whole_state_dict(self) -> dict[str, Any]:
        """Return what `state_dict` would if no parameter were sharded; see `Chain.whole_state_dict`."""
        states: dict[Tensor, Any] = {}
        for member in self.optimizers:
            if isinstance(member, Chain):
                states |= member.whole_states()
            else:
                params = [param for group in member.param_groups for param in group["params"]]
                states |= {p: {key: on_cpu(x) for key, x in self.state[p].items()} for p in params if p in self.state}
        return with_states(self, states)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into every member its part of what `state_dict` returned.

        Raises:
            ValueError: the number of groups differs, or a member refuses its part.
        """
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(f"the saved state has {len(groups)} groups, this optimizer has {len(self.param_groups)}")
        for optimizer in self.optimizers:
            own, groups = groups[: len(optimizer.param_groups)], groups[len(optimizer.param_groups) :]
            # torch numbers the parameters of all groups in order, and a member must find only its own
            places = {place for group in own for place in group["params"]}
            state = {place: value for place, value in state_dict["state"].items() if place in places}
            optimizer.load_state_dict({"state": state, "param_groups": own})
        self._join()  # loading has replaced the members' groups and states by new objects
