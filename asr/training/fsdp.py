"""Trains a model that FSDP2 divides over processes: Lightning's strategy, what is divided, and norms of the parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from asr.training import sharded_checkpoints
from asr.training.checkpoints import write
from asr.training.lightning_internals import set_processes_of_a_model
from asr.training.processes import apply_coalesced
from werdict.errors import ConfigError

ENTRIES = ("losses", "encode_layers", "losses_of")
"""Methods of a recognizer that use its parameters, beside ``forward``."""


class FsdpStrategy(ModelParallelStrategy):
    """Divides parameters, gradients and statistics of the optimizer over processes.

    Validations gather the whole model in every process, because processes have different numbers of batches there.
    Buffers are those of the first process, as with DDP. What has no axis to divide stays whole.

    Args:
        replicate: number of groups of processes that each hold the whole model together, such as one per machine.
        shard: processes of a group; None: all of them.
        timeout_s: seconds to wait for another process; None: torch's default.

    Raises:
        ConfigError: when training starts, if ``replicate · shard`` is not the number of processes.
    """

    def __init__(self, replicate: int = 1, shard: int | None = None, timeout_s: int | None = None) -> None:
        self.patience: dict[str, Any] = {} if timeout_s is None else {"timeout": timedelta(seconds=timeout_s)}
        self.saving_group: Any = None
        # Lightning calls the two axes of its mesh by what it uses them for; the axes are those of HSDP here
        super().__init__(data_parallel_size=replicate, tensor_parallel_size=shard or "auto", **self.patience)
        self.replicate, self.shard = replicate, shard

    def check_sizes(self, world_size: int) -> None:
        """Settle how many processes share a model.

        Raises:
            ConfigError: the numbers do not fit.
        """
        shard = self.shard or world_size // self.replicate
        if self.replicate * shard != world_size:
            raise ConfigError(
                f"trainer.replicate={self.replicate} × trainer.shard={shard} must be the number of processes, "
                f"{world_size} (trainer.devices × trainer.num_nodes)"
            )
        set_processes_of_a_model(self, shard)

    def setup_environment(self) -> None:
        """Connect the processes, also before there is a module."""
        if self.lightning_module is None:
            self.connect(pl.LightningModule())
        super().setup_environment()

    @property
    def recognizer(self) -> Any:
        """The divided model."""
        assert self.lightning_module is not None
        return self.lightning_module.recognizer

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Continue with the first process's buffers."""
        buffers = [buffer for buffer in self.recognizer.buffers() if buffer.numel()]
        apply_coalesced(buffers, lambda flat: dist.broadcast(flat, src=0))

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Add up gradients of micro-batches in each process, without reducing them."""
        self.recognizer.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.recognizer.set_requires_gradient_sync(True)

    def on_validation_start(self) -> None:
        """Gather the whole model: processes validate at different speeds, and some have no batch."""
        for module in _divided(self.recognizer):
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def on_validation_end(self) -> None:
        """Divide the model again."""
        for module in _divided(self.recognizer):
            module.set_reshard_after_forward(module is not self.recognizer, recurse=False)
            module.reshard()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the parts of this process."""
        assert self.lightning_module is not None
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the parts of this process."""
        return getattr(optimizer, "optimizer", optimizer).state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint, or begin to: every process its part, at the same time."""
        io: Any = self.checkpoint_io
        stager = io.stager()
        if stager is not None and self.saving_group is None:
            # what is written in the background may not wait for what training sends, and NCCL sends no plain data
            self.saving_group = dist.new_group(backend="gloo", **self.patience)
        io.then(sharded_checkpoints.save(checkpoint, Path(filepath), write, stager, self.saving_group))

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Return a whole checkpoint, which may come from any number of processes."""
        content: dict[str, Any] = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        return content

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the parts of this process from whole weights."""
        assert self.lightning_module is not None
        options = StateDictOptions(full_state_dict=True, strict=strict)
        set_model_state_dict(self.lightning_module, checkpoint["state_dict"], options=options)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether `load_optimizer_state_dict` is called."""
        return True

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the parts of this process from whole statistics."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            # optimizers that know owners divide by themselves
            known = hasattr(optimizer, "whole_state_dict")
            optimizer.load_state_dict(state if known else divided_state(optimizer, state))


def divide(module: pl.LightningModule, recognizer: nn.Module) -> None:
    """Divide a recognizer over the processes of the mesh that the strategy has, if it has one, layer by layer.

    Args:
        module: knows the mesh, the precision, and the trainer.
        recognizer: changed in place. Its encoder's ``layers_to_shard`` are gathered one by one: modules that every
            forward pass calls once. Without them its ``layers_to_compile`` are, or the members of its `nn.ModuleList`s.
    """
    mesh = module.device_mesh
    if mesh is None or isinstance(recognizer, FSDPModule):
        return
    assert isinstance(mesh, DeviceMesh)
    # the reduction of gradients is a sum of as many numbers as there are processes
    mixed = module.trainer.precision == "bf16-mixed"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if mixed else None,
        reduce_dtype=torch.float32 if mixed else None,
        cast_forward_inputs=False,
    )
    if mesh.size(0) == 1:
        mesh = mesh[(mesh.mesh_dim_names or ())[-1]]
    encoder: Any = recognizer.encoder
    lists = [layer for child in encoder.children() if isinstance(child, nn.ModuleList) for layer in child]
    layers = getattr(encoder, "layers_to_shard", getattr(encoder, "layers_to_compile", lists))
    for part in (*layers, recognizer):
        # a tensor without an axis cannot be divided
        whole = {parameter for parameter in part.parameters() if parameter.dim() == 0}
        fully_shard(part, mesh=mesh, mp_policy=policy, ignored_params=whole)
    for name in ENTRIES:
        register_fsdp_forward_method(recognizer, name)
    if hasattr(recognizer, "set_reduce_scatter_unused_params"):  # since torch 2.13
        recognizer.set_reduce_scatter_unused_params(True)  # type: ignore[operator]


def _divided(recognizer: nn.Module) -> list[FSDPModule]:
    return [module for module in recognizer.modules() if isinstance(module, FSDPModule)]


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds, sharing its memory; a whole tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def average_whole(gradients: Sequence[Tensor]) -> None:
    """Average the gradients that are not divided, if others are: FSDP2 reduces those alone that it divides."""
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    if len(whole) < len(gradients):
        apply_coalesced(whole, lambda flat: (dist.all_reduce(flat), flat.div_(dist.get_world_size())))


def total_norm(tensors: Sequence[Tensor], norm_type: float = 2.0) -> Tensor:
    """Return the norm () of all tensors together; divided ones count once, and all processes must call this.

    Args:
        tensors: whole, or parts; those without parts are equal in all processes.
        norm_type: 2 or infinity.
    """
    parts = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
    if not parts:
        return get_total_norm(list(tensors), norm_type)
    largest = norm_type == float("inf")
    held = [part for part in map(local_part, parts) if part.numel()]
    norm = get_total_norm(held, norm_type) if held else parts[0].to_local().new_zeros(())
    norm = norm if largest else norm.square()
    dist.all_reduce(norm, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, parts[0].device_mesh.get_group(-1))
    norm = norm if largest else norm.sqrt()
    whole = [tensor for tensor in tensors if not isinstance(tensor, DTensor)]
    return get_total_norm([norm, *whole], norm_type) if whole else norm


def divided_state(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole statistics of one of torch's optimizers, divided as their parameters if they have their shape."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {
        place: {name: part_of(value, parameter) for name, value in state["state"][place].items()}
        for place, parameter in enumerate(parameters)
        if place in state["state"]
    }
    return {**state, "state": states}


def part_of(value: Any, like: Tensor) -> Any:
    """Return a whole tensor divided as another of its shape is; anything else as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    # None: every process has the whole, and nothing is sent
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def joined(part: Tensor, like: Tensor) -> Tensor:
    """Return what this process holds of a tensor as part of one that is divided as another of its shape is."""
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())
