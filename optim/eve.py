"""Eve: Adam that shrinks a tensor only while it is larger than a target size."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from torch import Tensor

from optim.engine.chain import Chain, ChainOptions
from optim.engine.options import SWITCH
from optim.engine.param_batch import Group, ParamBatch, Update
from optim.engine.transform import Transform
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import LearningRate, shrink


class Eve(Chain):
    """Adam that shrinks a tensor, by a fraction that does not follow lr, only while its RMS is above a target.

    In order: `ShrinkAbove`, then `Adam`. The decay is not multiplied by lr, so a schedule does not anneal it.

    Use: on networks that hardly depend on the scale of their matrices, with `Eden`.

    State: 8 bytes per float32 parameter: Adam's averages (``exp_avg``, ``exp_avg_sq``).

    Args:
        params: parameters, (name, parameter) pairs, or groups.
        lr: learning rate, at least 0; a tensor of one element is allowed.
        betas: decay of the averages of g and of g², each in [0, 1).
        eps: added to the root, at least 0.
        weight_decay: fraction taken off per step, in [0, 0.1].
        target_rms: in (0, 10].
        cautious_weight_decay: see `shrink`.
        common: see `ChainOptions`.

    Raises:
        ValueError: an option is unknown or out of range, or a parameter is not real floating point.

    Reference:
        github.com/k2-fsa/icefall/blob/master/egs/librispeech/ASR/pruned_transducer_stateless2/optim.py, class Eve
        (Povey 2022); no paper. Also the defaults, those of the code.
        Differs: never logs nor draws random numbers; the decay is not rounded to float32 in float64.

    Examples:
        >>> large, small = nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 0.05))
        >>> optimizer = optim.Eve([large, small], weight_decay=0.1, target_rms=0.1)
        >>> large.grad, small.grad = torch.zeros(4), torch.zeros(4)
        >>> optimizer.step()
        >>> large.data, small.data
        (tensor([0.9000, 0.9000, 0.9000, 0.9000]), tensor([0.0500, 0.0500, 0.0500, 0.0500]))
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 1e-3,
        target_rms: float = 0.1,
        *,
        cautious_weight_decay: bool = False,
        **common: Unpack[ChainOptions],
    ) -> None:
        # a decay that asks the update comes after it; the other one before, so that torch's kernel can do the rest
        decays = [kind(weight_decay, target_rms, cautious_weight_decay) for kind in (ShrinkAbove, CautiousShrinkAbove)]
        transforms = [decays[0], Adam(betas, eps), decays[1], LearningRate()]
        super().__init__(params, transforms, lr=lr, **common)


class ShrinkAbove(Transform):
    """Shrinks every tensor whose RMS is above a target; single elements and the update are left alone.

        p ← p (1 − weight_decay)     if N > 1 and rms(p) > target_rms

    Args:
        weight_decay: fraction per step, not multiplied by lr, in [0, 0.1].
        target_rms: in (0, 10].
        cautious_weight_decay: leave it to `CautiousShrinkAbove`, which asks the update.
        name: see `Transform`.
    """

    weight_decay: Annotated[float, "[0, 0.1]"]
    target_rms: Annotated[float, "(0, 10]"]
    cautious_weight_decay: Annotated[bool, SWITCH] = False
    foreach = shardable = asks_single = True

    def is_noop(self, group: Group) -> bool:
        """Return whether the other of both does it."""
        return bool(group["cautious_weight_decay"])

    def __call__(self, update: Update, batch: ParamBatch) -> Update:
        """Shrink the parameters."""
        fraction = batch.group["weight_decay"]
        if fraction > 0 and not batch.single_element:
            norm, limit = batch.norm(batch.param), batch.group["target_rms"] * batch.numel**0.5
            if isinstance(norm, Tensor):
                # decided on the device, in the parameter's dtype: bool times float would have the default one
                shrink(update, batch, fraction * (norm > limit).to(batch.param.dtype))
            elif norm > limit:
                # on a CPU the norm is a number: most tensors are small enough and cost no pass over the elements
                shrink(update, batch, fraction)
        return update


class CautiousShrinkAbove(ShrinkAbove):
    """`ShrinkAbove` of elements that the update does not move away from zero, see `shrink`; follows the update."""

    def is_noop(self, group: Group) -> bool:
        """Return whether the other of both does it."""
        return not group["cautious_weight_decay"]
