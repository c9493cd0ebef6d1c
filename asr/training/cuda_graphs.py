"""Replays passes of the encoder and updates from CUDA graphs, also with DDP, and compiles encoders."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.autograd import Function

from asr.models import devices
from asr.training.module import TrainingModule, ends_update
from asr.training.optimizer_protocols import SupportsFoundInf, members_of
from asr.training.processes import apply_coalesced
from werdict.console import console

STEPS = 12  # sizes per doubling: fewer pad more, and more make more graphs
MAX_GRAPHS = 256
BACKEND = "inductor"
# torch's code depends on the sizes that it first sees, and is other code for one utterance than for several
EXAMPLES = ((4, 400), (1, 400))  # B, T
ACTIVATION = ("value", "slope", "value_and_slope")  # what is compiled of one


@contextmanager
def naming_option() -> Iterator[None]:
    """Name the option that turns CUDA graphs off in an error of a capture."""
    try:
        yield
    except RuntimeError as error:
        error.add_note("trainer.cuda_graphs=false trains without CUDA graphs")
        raise


class GraphedUpdate:
    """Replays an optimizer's updates from a CUDA graph.

    The first update is computed as always, the second one is captured, later ones are replayed, as long as the same
    parameters have gradients, and rates, statistics and options are in the same places. Gradients that are elsewhere,
    such as those of a head, are copied to where the graph reads them.

    Args:
        optimizer: whose updates are captured; it has become capturable.
        passes: a `GraphedEncoder`, whose memory the graph shares; None: it has memory of its own.
    """

    def __init__(self, optimizer: Any, passes: Any = None) -> None:
        self.optimizer, self.compute, self.passes = optimizer, optimizer.update, passes
        self.holds_for: Any = None  # options, and which parameters have gradients, and where they are
        self.tensors: list[Tensor] = []  # rates and statistics
        self.gradients: dict[Tensor, Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Update."""
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        options = [
            {k: x for k, x in group.items() if isinstance(x, bool | int | float | str | tuple)} for group in groups
        ]
        holds_for = options, [(parameter.data_ptr(), parameter.grad is None) for parameter in parameters]
        self._move_gradients(parameters)
        tensors = list(self._tensors())
        is_same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        if holds_for != self.holds_for or not is_same:
            self.holds_for, self.graph = holds_for, None
            self.compute()
        else:
            if self.graph is None:
                graph, pool = torch.cuda.CUDAGraph(), getattr(self.passes, "pool", None)
                with naming_option(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                    self.compute()
                self.graph = graph
            self.graph.replay()
        self.tensors = list(self._tensors())

    def _move_gradients(self, parameters: list[Tensor]) -> None:
        moved = []
        for parameter in parameters:
            if parameter.grad is None:
                continue
            buffer = self.gradients.setdefault(parameter, parameter.grad)
            if buffer is not parameter.grad:
                moved.append((buffer, parameter.grad))
                parameter.grad = buffer
        if moved:
            torch._foreach_copy_([buffer for buffer, _ in moved], [gradient for _, gradient in moved])

    def _tensors(self) -> Iterator[Tensor]:
        holders = [*self.optimizer.param_groups, *self.optimizer.state.values()]
        holders += [group["shared_state"] for group in self.optimizer.param_groups]
        return (x for holder in holders for x in holder.values() if isinstance(x, Tensor))


def rounded(size: int) -> int:
    """Return the next size of which there are ``STEPS`` between a power of two and the next one."""
    power = 1 << (size.bit_length() - 1)
    steps = -(-(size - power) * STEPS // power)
    return power + steps * power // STEPS


@dataclass
class GraphedPass:
    """Forward and backward pass as CUDA graphs, between tensors that stay where they are.

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
    def forward(ctx: Any, anchor: Tensor, encoder: GraphedEncoder, of_shape: GraphedPass) -> tuple[Tensor, ...]:
        ctx.encoder, ctx.of_shape = encoder, of_shape
        of_shape.forward.replay()
        return tuple(layer.detach() for layer in of_shape.layers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        torch._foreach_copy_(ctx.of_shape.gradients, gradients)
        ctx.encoder.add_gradients(ctx.of_shape)
        return None, None, None


class GraphedEncoder:
    """Replays an encoder's passes from CUDA graphs, in training on a GPU.

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
        if not isinstance(captured, GraphedPass):
            if not _has_room():
                return self._compute(features, num_frames, numbers)
            with naming_option():
                captured = self.passes[key] = self._record(features, num_frames, numbers, *captured)
        captured.features.copy_(features)
        captured.num_frames.copy_(num_frames)
        self.is_pending = True
        return list(_Replay.apply(self.anchor, self, captured)), captured.lengths

    def _record(self, features: Tensor, num_frames: Tensor, numbers: Collection[int], *like: Tensor) -> GraphedPass:
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
        return GraphedPass(features, num_frames, forward, layers, lengths, backward, gradients, pairs)

    def _kept(self, name: Hashable, like: Tensor) -> Tensor:
        """Return memory for one tensor of a pass, which those of other shapes use too."""
        key = name, like.dtype
        if key not in self.memory or self.memory[key].numel() < like.numel():
            # larger than needed, so that few sizes make another one; graphs keep the former
            size = 1 << max(0, like.numel() - 1).bit_length()
            self.memory[key] = torch.zeros(size, dtype=like.dtype, device=self.anchor.device)
        return self.memory[key][: like.numel()].view(like.shape)

    def add_gradients(self, of_shape: GraphedPass) -> None:
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
        any_encoder: whether to capture any encoder; else one that says ``supports_cuda_graphs``.
        updates: whether to capture updates of optimizers that can be captured.
    """

    def __init__(self, any_encoder: bool, updates: bool = False) -> None:
        self.any_encoder, self.updates = any_encoder, updates
        self.optimizers: list[SupportsFoundInf] = []

    def captures(self, encoder: nn.Module) -> bool:
        """Return whether passes of an encoder are captured."""
        return self.any_encoder or getattr(encoder, "supports_cuda_graphs", False)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of the encoder, and of the updates."""
        assert isinstance(pl_module, TrainingModule)
        encoder, (optimizer,) = pl_module.recognizer.encoder, trainer.optimizers
        if not self.captures(encoder):
            return
        pl_module.graphed_encoder = GraphedEncoder(encoder)
        for member in members_of(optimizer):
            if isinstance(member, SupportsFoundInf):
                with suppress(ValueError):  # it decides by numbers
                    member.make_capturable()
                    if self.updates:
                        member.run_updates_by(GraphedUpdate(member, pl_module.graphed_encoder))
                        self.optimizers.append(member)
        replayed = "passes of the encoder" + (" and updates of the optimizer" if self.optimizers else "")
        if trainer.is_global_zero:
            console.print_line(
                f"{trainer.precision}; {replayed} are replayed from CUDA graphs (trainer.cuda_graphs=false turns that "
                "off)"
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Forget a pass that had no backward pass, such as one without a feasible utterance."""
        assert isinstance(pl_module, TrainingModule)
        if pl_module.graphed_encoder is not None:
            pl_module.graphed_encoder.is_pending = False

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Free the memory of all graphs: test sets are decoded next."""
        assert isinstance(pl_module, TrainingModule)
        pl_module.graphed_encoder = None
        for optimizer in self.optimizers:
            optimizer.run_updates_by(None)
        self.optimizers = []
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Free the memory of all graphs."""
        self.on_train_end(trainer, pl_module)


class GraphedDDPStrategy(DDPStrategy):
    """Averages all gradients at once at the end of an update, and sends the first rank's buffers to others.

    Nothing is sent during the backward pass, so ranks wait for 4 bytes of each parameter after it. A single rank needs
    no DistributedDataParallel in any case.

    Args:
        wraps: whether several ranks have DistributedDataParallel after all: nothing is captured there.
    """

    def __init__(self, wraps: bool, **options: Any) -> None:
        super().__init__(**options)
        self.wraps = wraps
        self.buffers: list[Tensor] = []  # of all modules, which buffers() would walk through at each update

    def configure_ddp(self) -> None:
        """Begin all ranks with the same weights."""
        if self.wraps and self.world_size > 1:
            super().configure_ddp()
            return
        assert self.model is not None
        weights = [x.detach() for x in (*self.model.parameters(), *self.model.buffers())]
        apply_coalesced(weights, lambda flat: dist.broadcast(flat, src=0))
        self.buffers = list(self.model.buffers())

    def post_backward(self, closure_loss: Tensor) -> None:
        """Average gradients at the end of an update; the loss () is only passed on.

        Raises:
            RuntimeError: a parameter has no gradient, which other ranks might have.
        """
        super().post_backward(closure_loss)
        module: Any = self.lightning_module
        if self.world_size == 1 or self.wraps or not ends_update(module.trainer):
            return
        trained = [p for p in module.all_parameters if p.requires_grad]
        gradients = [p.grad for p in trained if p.grad is not None]
        if len(gradients) < len(trained):
            missing = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
            raise RuntimeError(
                f"parameters without a gradient: {', '.join(missing[:3])}; with trainer.cuda_graphs=true on several "
                "GPUs each trained parameter needs one in every update: freeze or remove these"
            )
        apply_coalesced(gradients, lambda flat: dist.all_reduce(flat.div_(self.world_size)))
        apply_coalesced(self.buffers, lambda flat: dist.broadcast(flat, src=0))


class CompiledEncoder(pl.Callback):
    """Has the layers of the encoder compiled before the first update, and puts them back after the last.

    Validation and decoding use the layers as they are. The code is made for any B and T, from examples and not from the
    first micro-batch, which is another one in a resumed run. Names of parameters stay the same.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compile the layers, forward and backward."""
        assert isinstance(pl_module, TrainingModule)
        encoder, num_features = pl_module.recognizer.encoder, len(pl_module.recognizer.normalize.mean)
        if trainer.is_global_zero:
            console.print_line(
                "torch compiles the encoder before the first update, which takes minutes; later runs reuse the code"
            )
        compile_layers(encoder)
        pl_module.recognizer.set_trained_seconds(0.0)
        with torch.random.fork_rng([pl_module.device] if pl_module.device.type == "cuda" else []):
            for example in EXAMPLES:
                _differentiate(trainer, encoder, torch.zeros(*example, num_features, device=pl_module.device))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the layers back."""
        assert isinstance(pl_module, TrainingModule)
        encoder = pl_module.recognizer.encoder
        for module in encoder.modules():
            vars(module).pop("forward", None)
        for activation, name in itertools.product(getattr(encoder, "activations_to_compile", ()), ACTIVATION):
            vars(activation).pop(name, None)


def compile_layers(encoder: nn.Module) -> None:
    """Have the layers compiled when they are first used in training; in evaluation they stay as they are.

    A layer may have a method ``is_plain``: a forward pass in which it is false uses the layer as it is. Layers that
    cannot be compiled may leave that to their encoder's ``activations_to_compile``.
    """
    layers = getattr(encoder, "layers_to_compile", (encoder,))
    activations = getattr(encoder, "activations_to_compile", ())
    # beyond its limit torch (2.13) silently leaves what it has not compiled as it is; activations get rows, sequences
    # and images
    limit = max(torch._dynamo.config.recompile_limit, len(EXAMPLES) * (len(layers) + 6 * len(activations)))
    torch._dynamo.config.recompile_limit = limit
    # sizes and offsets that are equal in the examples by chance must not have to be equal later
    torch.fx.experimental._config.use_duck_shape = False
    # one function of all layers, whose weights are its arguments: those of one size share its code
    compiled = torch.compile(_apply, dynamic=True, backend=BACKEND)
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer, compiled)
    for activation, name in itertools.product(activations, ACTIVATION):
        vars(activation)[name] = torch.compile(getattr(activation, name), dynamic=True, backend=BACKEND)


def _apply(layer: nn.Module, *args: Any) -> Any:
    return type(layer).forward(layer, *args)


def _forward(layer: nn.Module, compiled: Callable[..., Any], *args: Any) -> Any:
    return (compiled if layer.training and _is_plain(layer) else _apply)(layer, *args)


def _is_plain(layer: nn.Module) -> bool:
    is_plain: Callable[[], bool] | None = getattr(layer, "is_plain", None)
    return is_plain is None or is_plain()


def _differentiate(trainer: pl.Trainer, encoder: nn.Module, features: Tensor) -> None:
    """Compute gradients of a forward pass that is compiled, and forget them."""
    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    num_frames = torch.full((len(features),), features.shape[1], device=features.device)
    is_compiled = False
    while not is_compiled:  # which passes are is drawn
        with trainer.precision_plugin.train_step_context():
            loss = encoder(features, num_frames)[0].float().square().mean()
        is_compiled = all(map(_is_plain, encoder.modules()))
    if parameters:
        # not backward(): DDP would count these gradients as those of an update
        torch.autograd.grad(loss, parameters, allow_unused=True)
