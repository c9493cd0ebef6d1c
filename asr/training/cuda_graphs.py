"""``trainer.capture``: passes of an encoder as CUDA graphs, a graph for each shape.

A small batch takes a GPU less time than Python takes to launch its kernels. A graph launches all of them at once.

B utterances, T frames, F mel bins, D width.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from asr.console import console
from asr.models import devices
from asr.training.captured_update import CapturedUpdate, naming_capture
from asr.training.module import TrainingModule
from asr.training.optimizer_protocols import SupportsFoundInf, members_of

STEPS = 12  # sizes per doubling: fewer pad more, and more make more graphs
MAX_GRAPHS = 256


def rounded(size: int) -> int:
    """Return the next size of which there are ``STEPS`` between a power of two and the next one."""
    power = 1 << (size.bit_length() - 1)
    steps = -(-(size - power) * STEPS // power)
    return power + steps * power // STEPS


@dataclass
class Pass:
    """A forward and a backward pass that graphs replay, between tensors that stay where they are.

    Attributes:
        features: (B, T, F), read by ``forward``.
        num_frames: (B,).
        layers: encodings (B, T', D) of each layer that is asked for, written by ``forward``.
        lengths: (B,).
        gradients: (B, T', D) by each of the encodings, read by ``backward``.
        used: parameters that the pass depends on, and the gradients that ``backward`` adds to.
    """

    features: Tensor
    num_frames: Tensor
    forward: torch.cuda.CUDAGraph
    layers: list[Tensor]
    lengths: Tensor
    backward: torch.cuda.CUDAGraph
    gradients: list[Tensor]
    used: list[tuple[nn.Parameter, Tensor]]


class _Replay(Function):
    """Encodings (B, T', D) of a replayed pass, from an anchor () that has autograd call the backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, encoder: CapturedForward, of_shape: Pass) -> tuple[Tensor, ...]:
        ctx.encoder, ctx.of_shape = encoder, of_shape
        of_shape.forward.replay()
        return tuple(layer.detach() for layer in of_shape.layers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        torch._foreach_copy_(ctx.of_shape.gradients, gradients)
        ctx.encoder.add_gradients(ctx.of_shape)
        return None, None, None


class CapturedForward:
    """Encodes as an encoder does, in training on a GPU, by passes that are replayed from CUDA graphs.

    Batches are padded to one of a few shapes. The first pass of a shape is computed as always, the second one is
    captured, later ones are replayed: each has the same numbers, as far as kernels are deterministic. An encoder that
    draws in Python has a method ``begin_pass``, as `ZipformerEncoder.begin_pass`.

    A pass is captured again if parameters are frozen, trained again or replaced, and if a flag or a rate (an attribute
    of a module that is a bool or a float, such as ``training`` and a dropout's ``p``) or a buffer is another one.

    Args:
        encoder: whose passes in training neither wait for the GPU nor depend on anything but their arguments, its
            parameters, buffers, flags and rates, and torch's generators.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        # of all shapes: what a pass reads and writes outside of the memory of graphs
        self.memory: dict[Hashable, Tensor] = {}
        modules = list(encoder.modules())
        self.parameter_slots = [(module._parameters, name) for module in modules for name in module._parameters]
        self.buffer_slots = [(module._buffers, name) for module in modules for name in module._buffers]
        self.flag_slots = [
            (vars(module), name) for module in modules for name, x in vars(module).items() if type(x) in (bool, float)
        ]
        self._begin()

    def _begin(self) -> None:
        """Forget all passes: they hold for the parameters that are trained."""
        self.places = self._places()
        self.held = list(self.encoder.parameters())  # so that no other one gets the id of one that is replaced
        self.parameters = [parameter for parameter in self.held if parameter.requires_grad]
        # one memory for the gradients of all graphs
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        # what makes autograd call the backward pass: features have no gradient
        self.anchor = torch.zeros((), device=self.held[0].device, requires_grad=True)
        # a pool ends with its last graph
        self.pool: Any = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        # by shape and state; the one that was used last is at the end
        self.passes, self.is_pending = OrderedDict[Hashable, Any](), False

    def _places(self) -> list[tuple[int, int, bool]]:
        held = (slots[name] for slots, name in self.parameter_slots)
        return [(id(x), x.data_ptr(), x.requires_grad) for x in held if x is not None]

    def _python_state(self) -> Hashable:
        """Return what Python decides by."""
        buffers = (slots[name] for slots, name in self.buffer_slots)
        addresses = tuple(None if x is None else x.data_ptr() for x in buffers)
        return addresses, tuple(slots.get(name) for slots, name in self.flag_slots)

    def __call__(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, T, F) of lengths (B,), as the encoder does; the encodings may have more padding."""
        (encodings,), lengths = self.encode_layers(features, num_frames, ())
        return encodings, lengths

    def encode_layers(
        self, features: Tensor, num_frames: Tensor, numbers: Collection[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Encode as the encoder's ``encode_layers`` does.

        Args:
            features: (B, T, F).
            num_frames: (B,) int64 valid frames.
            numbers: of inner layers, from 1.

        Returns:
            Encodings (B, T', D) of the inner layers and the last, and their valid lengths (B,).
        """
        if self._places() != self.places:
            self._begin()
        if not self.encoder.training or not torch.is_grad_enabled() or not self.parameters:
            return self._compute(features, num_frames, numbers)
        size, num = features.shape[:2]
        more = rounded(size) - size, rounded(num) - num
        features, num_frames = F.pad(features, (0, 0, 0, more[1], 0, more[0])), F.pad(num_frames, (0, more[0]))
        layers, lengths = self._encode(features, num_frames, numbers)
        return [layer[:size] for layer in layers], lengths[:size]

    def _compute(self, features: Tensor, num_frames: Tensor, numbers: Collection[int]) -> tuple[list[Tensor], Tensor]:
        encoder: Any = self.encoder
        if numbers:
            layers, lengths = encoder.encode_layers(features, num_frames, numbers)
            return layers, lengths
        encodings, lengths = encoder(features, num_frames)
        return [encodings], lengths

    def _encode(self, features: Tensor, num_frames: Tensor, numbers: Collection[int]) -> tuple[list[Tensor], Tensor]:
        state = self._python_state()
        begin: Callable[[torch.device], Hashable] | None = getattr(self.encoder, "begin_pass", None)
        drawn = () if begin is None else begin(features.device)
        key = drawn, features.shape, features.dtype, tuple(numbers), state
        # a replay overwrites what the backward pass of the replay before it still needs
        if self.is_pending:
            return self._compute(features, num_frames, numbers)
        captured = self.passes.get(key)
        if captured is None:
            # kernels are chosen, and libraries prepared, in a pass that is not captured
            layers, lengths = self._compute(features, num_frames, numbers)
            self.passes[key] = [torch.empty_like(x, device="meta") for x in (*layers, lengths)]
            if len(self.passes) > MAX_GRAPHS:
                self.passes.popitem(last=False)
            return layers, lengths
        self.passes.move_to_end(key)
        if not isinstance(captured, Pass):
            if not _has_room():
                return self._compute(features, num_frames, numbers)
            with naming_capture():
                captured = self.passes[key] = self._captured(features, num_frames, numbers, *captured)
        captured.features.copy_(features)
        captured.num_frames.copy_(num_frames)
        self.is_pending = True
        return list(_Replay.apply(self.anchor, self, captured)), captured.lengths

    def _captured(self, features: Tensor, num_frames: Tensor, numbers: Collection[int], *like: Tensor) -> Pass:
        features, num_frames = self._kept("features", features), self._kept("num_frames", num_frames)
        *layers, lengths = [self._kept(("encoded", i), x) for i, x in enumerate(like)]
        gradients = [self._kept(("gradient", i), x) for i, x in enumerate(layers)]
        # other threads, such as the one that pins batches, go on calling CUDA meanwhile
        options = {"pool": self.pool, "capture_error_mode": "thread_local"}
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # 16-bit copies of weights are made in the graph, at each replay, as often as in a pass that is not captured
        torch.clear_autocast_cache()
        with torch.cuda.graph(forward, **options):
            encoded, num_encoded = self._compute(features, num_frames, numbers)
            with torch.no_grad():
                torch._foreach_copy_(layers, encoded)
                lengths.copy_(num_encoded)
        torch.clear_autocast_cache()
        # backward passes are outside of autocast
        with torch.cuda.graph(backward, **options), torch.autocast("cuda", enabled=False):
            of_pass = torch.autograd.grad(encoded, self.parameters, gradients, allow_unused=True)
            of_parameters = zip(self.parameters, self.gradients, of_pass, strict=True)
            used = [(parameter, total, new) for parameter, total, new in of_parameters if new is not None]
            torch._foreach_add_([total for _, total, _ in used], [new for *_, new in used])
        pairs = [(parameter, total) for parameter, total, _ in used]
        return Pass(features, num_frames, forward, layers, lengths, backward, gradients, pairs)

    def _kept(self, name: Hashable, like: Tensor) -> Tensor:
        """Return memory for one tensor of a pass, which those of other shapes use too."""
        key = name, like.dtype
        if key not in self.memory or self.memory[key].numel() < like.numel():
            # larger than needed, so that few sizes make another one; graphs keep the former
            size = 1 << max(0, like.numel() - 1).bit_length()
            self.memory[key] = torch.zeros(size, dtype=like.dtype, device=self.anchor.device)
        return self.memory[key][: like.numel()].view(like.shape)

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
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - allocated - devices.idle_graph_memory()
    return 2 * (torch.cuda.max_memory_allocated() - allocated) <= free


class CudaGraphs(pl.Callback):
    """Replays passes of the encoder in training from CUDA graphs, and updates of the optimizer if asked for.

    Args:
        any_encoder: whether to capture any encoder; else one that says ``can_be_captured``.
        updates: whether to capture updates of optimizers that can be captured.
    """

    def __init__(self, any_encoder: bool, updates: bool = False) -> None:
        self.any_encoder, self.updates = any_encoder, updates
        self.optimizers: list[SupportsFoundInf] = []

    def captures(self, encoder: nn.Module) -> bool:
        """Return whether passes of an encoder are captured."""
        return self.any_encoder or getattr(encoder, "can_be_captured", False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of the encoder, and of the updates."""
        assert isinstance(pl_module, TrainingModule)
        encoder, (optimizer,) = pl_module.recognizer.encoder, trainer.optimizers
        if not self.captures(encoder):
            return
        pl_module.captured_encoder = CapturedForward(encoder)
        for member in members_of(optimizer):
            if isinstance(member, SupportsFoundInf):
                with suppress(ValueError):  # it decides by numbers
                    member.make_capturable()
                    if self.updates:
                        member.run_updates_by(CapturedUpdate(member, pl_module.captured_encoder))
                        self.optimizers.append(member)
        replayed = "passes of the encoder" + (" and updates of the optimizer" if self.optimizers else "")
        if trainer.is_global_zero:
            console.print_line(
                f"{trainer.precision}; {replayed} are replayed from CUDA graphs (trainer.capture=false turns that off)"
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Forget a pass that had no backward pass, such as one without a feasible utterance."""
        assert isinstance(pl_module, TrainingModule)
        if pl_module.captured_encoder is not None:
            pl_module.captured_encoder.is_pending = False

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Free the memory of all graphs: test sets are decoded next."""
        assert isinstance(pl_module, TrainingModule)
        pl_module.captured_encoder = None
        for optimizer in self.optimizers:
            optimizer.run_updates_by(None)
        self.optimizers = []
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Do the same."""
        self.on_train_end(trainer, pl_module)
