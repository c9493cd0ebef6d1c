"""``trainer.capture``: passes of an encoder, a graph for each shape, and updates of an optimizer as CUDA graphs.

A small batch takes a GPU less time than Python takes to launch its kernels. A graph launches all of them at once.

B utterances, T frames, F mel bins, D width.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Function

from asr.console import console
from asr.training.decides_on_device import DecidesOnDevice, members_of
from asr.training.loop_counters import ends_update
from asr.training.module import TrainingModule

STEPS = 16  # sizes per doubling
MAX_GRAPHS = 256


def rounded(size: int) -> int:
    """Return the next size of which there are ``STEPS`` between a power of two and the next one."""
    step = max(1, (1 << (size.bit_length() - 1)) // STEPS)
    return -(-size // step) * step


@dataclass
class Pass:
    """A forward and a backward pass that graphs replay, between tensors that stay where they are.

    Attributes:
        features: (B, T, F), read by ``forward``.
        num_frames: (B,).
        encodings: (B, T', D), written by ``forward``.
        lengths: (B,).
        gradient: (B, T', D) by the encodings, read by ``backward``.
        used: parameters that the pass depends on, and the gradients that ``backward`` adds to.
    """

    features: Tensor
    num_frames: Tensor
    forward: torch.cuda.CUDAGraph
    encodings: Tensor
    lengths: Tensor
    backward: torch.cuda.CUDAGraph
    gradient: Tensor
    used: list[tuple[nn.Parameter, Tensor]]


class _Replay(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, encoder: CapturedForward, of_shape: Pass) -> Tensor:
        ctx.encoder, ctx.of_shape = encoder, of_shape
        of_shape.forward.replay()
        return of_shape.encodings.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.of_shape.gradient.copy_(gradient)
        ctx.encoder.add_gradients(ctx.of_shape)
        return None, None, None


class CapturedForward:
    """What takes the place of an encoder's ``forward`` in training on a GPU.

    Batches are padded to one of a few shapes. The first pass of a shape is computed as always, the second one is
    captured, later ones are replayed: each has the same numbers, as far as kernels are deterministic. An encoder that
    draws in Python has a method ``begin_pass``, as `ZipformerEncoder.begin_pass`.

    Args:
        encoder: whose passes in training neither wait for the GPU nor depend on anything but their arguments, its
            parameters and buffers, and torch's generators.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder, self.compute, self.all = encoder, encoder.forward, list(encoder.parameters())
        self.pool: Any = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        # what makes autograd call the backward pass: features have no gradient
        self.anchor = torch.zeros((), device=self.all[0].device, requires_grad=True)
        self._begin()

    def _begin(self) -> None:
        """Forget all passes: they hold for the parameters that are trained."""
        self.is_trained = [parameter.requires_grad for parameter in self.all]
        self.parameters = [parameter for parameter in self.all if parameter.requires_grad]
        # one memory for the gradients of all graphs
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.passes: dict[Hashable, Pass | None] = {}
        self.is_pending = False

    def __call__(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, T, F) of lengths (B,), as the encoder does; the encodings may have more padding."""
        if [parameter.requires_grad for parameter in self.all] != self.is_trained:
            self._begin()
        if not self.encoder.training or not torch.is_grad_enabled() or not self.parameters:
            return self.compute(features, num_frames)
        size, num = features.shape[:2]
        more = rounded(size) - size, rounded(num) - num
        features, num_frames = F.pad(features, (0, 0, 0, more[1], 0, more[0])), F.pad(num_frames, (0, more[0]))
        encodings, lengths = self._encode(features, num_frames)
        return encodings[:size], lengths[:size]

    def _encode(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        begin: Callable[[torch.device], Hashable] | None = getattr(self.encoder, "begin_pass", None)
        drawn = () if begin is None else begin(features.device)
        key = drawn, features.shape, features.dtype
        # a replay overwrites what the backward pass of the replay before it still needs
        if self.is_pending or (key not in self.passes and len(self.passes) == MAX_GRAPHS):
            return self.compute(features, num_frames)
        if key not in self.passes:
            self.passes[key] = None  # kernels are chosen, and libraries prepared, in a pass that is not captured
            return self.compute(features, num_frames)
        found = self.passes[key]
        if found is None:
            if not _has_room():
                return self.compute(features, num_frames)
            try:
                found = self.passes[key] = self._captured(features, num_frames)
            except RuntimeError as error:
                error.add_note("trainer.capture=false trains without CUDA graphs")
                raise
        found.features.copy_(features)
        found.num_frames.copy_(num_frames)
        self.is_pending = True
        encodings: Tensor = _Replay.apply(self.anchor, self, found)
        return encodings, found.lengths

    def _captured(self, features: Tensor, num_frames: Tensor) -> Pass:
        features, num_frames = features.clone(), num_frames.clone()
        # other threads, such as the one that pins batches, go on calling CUDA meanwhile
        options = {"pool": self.pool, "capture_error_mode": "thread_local"}
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # 16-bit copies of weights are made in the graph, at each replay, as often as in a pass that is not captured
        torch.clear_autocast_cache()
        with torch.cuda.graph(forward, **options):
            encodings, lengths = self.compute(features, num_frames)
        torch.clear_autocast_cache()
        gradient = torch.zeros_like(encodings)
        # backward passes are outside of autocast
        with torch.cuda.graph(backward, **options), torch.autocast("cuda", enabled=False):
            gradients = torch.autograd.grad(encodings, self.parameters, gradient, allow_unused=True)
            of_parameters = zip(self.parameters, self.gradients, gradients, strict=True)
            used = [(parameter, total, new) for parameter, total, new in of_parameters if new is not None]
            torch._foreach_add_([total for _, total, _ in used], [new for *_, new in used])
        pairs = [(parameter, total) for parameter, total, _ in used]
        return Pass(features, num_frames, forward, encodings.detach(), lengths, backward, gradient, pairs)

    def add_gradients(self, of_shape: Pass) -> None:
        """Replay a backward pass, and add its gradients to those of the parameters."""
        self.is_pending = False
        others = [(parameter, total) for parameter, total in of_shape.used if parameter.grad is not total]
        if fresh := [total for parameter, total in others if parameter.grad is None]:
            torch._foreach_zero_(fresh)
        for parameter, total in others:
            if parameter.grad is not None:
                total.copy_(parameter.grad)
            parameter.grad = total
        of_shape.backward.replay()


def _has_room() -> bool:
    """Return whether the largest pass so far fits into what is left twice: graphs have memory of their own."""
    allocated = torch.cuda.memory_allocated()
    left = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated
    return 2 * (torch.cuda.max_memory_allocated() - allocated) <= left


class CapturedUpdate:
    """What takes the place of an optimizer's ``update``.

    The first update from gradients at some places in memory is computed as always, the second one is captured, later
    ones are replayed.

    Args:
        optimizer: whose updates are captured; it has become capturable.
        pool: memory that it shares with other graphs.
    """

    def __init__(self, optimizer: Any, pool: Any) -> None:
        self.optimizer, self.compute, self.pool = optimizer, optimizer.update, pool
        self.holds_for: Any = None  # options, and places of parameters
        self.gradients: list[Tensor | None] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Update."""
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        options = [
            {k: x for k, x in group.items() if isinstance(x, bool | int | float | str | tuple)} for group in groups
        ]
        gradients = [parameter.grad for parameter in parameters]
        holds_for = options, [parameter.data_ptr() for parameter in parameters]
        if holds_for != self.holds_for or not all(map(operator.is_, gradients, self.gradients)):
            self.holds_for, self.gradients, self.graph = holds_for, gradients, None
            self.compute()
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
                self.compute()
            self.graph = graph
        self.graph.replay()


def at_once(tensors: Sequence[Tensor], collective: Callable[[Tensor], Any]) -> None:
    """Apply a collective operation in place, once for all tensors of a dtype."""
    for dtype in dict.fromkeys(x.dtype for x in tensors):  # in the same order on all ranks
        alike = [x for x in tensors if x.dtype == dtype]
        flat = _flatten_dense_tensors(alike)
        collective(flat)
        torch._foreach_copy_(alike, _unflatten_dense_tensors(flat, alike))


class CudaGraphs(pl.Callback):
    """Replays passes of the encoder in training, and updates of optimizers that can be captured, from CUDA graphs.

    On several GPUs this also takes the place of DistributedDataParallel, which graphs' gradients would go past: at the
    end of an update all gradients are averaged at once, and the first rank's buffers are sent to the others.

    Args:
        any_encoder: whether to capture any encoder; else one that says ``can_be_captured``.
    """

    def __init__(self, any_encoder: bool) -> None:
        self.any_encoder, self.is_on = any_encoder, False
        self.captured: CapturedForward | None = None
        self.optimizers: list[Any] = []
        self.buffers: list[Tensor] = []  # of all modules, which buffers() would walk through at each update

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin all ranks with the same weights, without DistributedDataParallel."""
        assert isinstance(pl_module, TrainingModule)
        self.is_on = self.any_encoder or getattr(pl_module.recognizer.encoder, "can_be_captured", False)
        if self.is_on and isinstance(trainer.strategy, DDPStrategy):
            vars(trainer.strategy)["configure_ddp"] = partial(_sync_module_states, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of the encoder's forward pass, and of the updates."""
        assert isinstance(pl_module, TrainingModule)
        encoder, (optimizer,) = pl_module.recognizer.encoder, trainer.optimizers
        if not self.is_on:
            return
        self.captured = vars(encoder)["forward"] = CapturedForward(encoder)
        pl_module.keeps_gradients, self.buffers = True, list(pl_module.buffers())
        for member in members_of(optimizer):
            if isinstance(member, DecidesOnDevice):
                with suppress(ValueError):  # it decides by numbers
                    member.make_capturable()
                    vars(member)["update"] = CapturedUpdate(member, self.captured.pool)
                    self.optimizers.append(member)
        what = "passes of the encoder" + (" and updates of the optimizer" if self.optimizers else "")
        if trainer.is_global_zero:
            console.print_line(
                f"{trainer.precision}; {what} are replayed from CUDA graphs (trainer.capture=false turns that off)"
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Forget a pass that had no backward pass, such as one without a feasible utterance."""
        if self.captured is not None:
            self.captured.is_pending = False

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do for several ranks, at the end of an update, what DistributedDataParallel does.

        Raises:
            RuntimeError: a parameter has no gradient, which other ranks might have.
        """
        if not self.is_on or trainer.world_size == 1 or not ends_update(trainer):
            return
        assert isinstance(pl_module, TrainingModule)
        gradients = [p.grad for p in pl_module.all_parameters if p.requires_grad and p.grad is not None]
        if len(gradients) < sum(p.requires_grad for p in pl_module.all_parameters):
            missing = [name for name, p in pl_module.named_parameters() if p.requires_grad and p.grad is None]
            raise RuntimeError(
                f"parameters without a gradient: {', '.join(missing[:3])}; with trainer.capture=true on several GPUs "
                "each trained parameter needs one in every update: freeze or remove others"
            )
        at_once(gradients, lambda flat: dist.all_reduce(flat.div_(trainer.world_size)))
        at_once(self.buffers, lambda flat: dist.broadcast(flat, src=0))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the encoder's own forward pass and the updates back."""
        assert isinstance(pl_module, TrainingModule)
        vars(pl_module.recognizer.encoder).pop("forward", None)
        pl_module.keeps_gradients = False
        for optimizer in self.optimizers:
            vars(optimizer).pop("update", None)
