"""``trainer.compile=true``: the layers of an encoder as code that torch has compiled.

B batch, T frames, F mel bins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from asr.models.depthwise import DepthwiseConv1d
from asr.models.encoders.layered import LayeredEncoder
from asr.training.module import TrainingModule

BACKEND = "inductor"
# torch's code depends on the sizes that it first sees, and is other code for one utterance than for several
EXAMPLES = ((4, 400), (1, 400))  # B, T


def check_compilable(encoder: nn.Module) -> None:
    """Refuse an encoder whose code torch would compile again and again.

    Raises:
        ValueError: names the encoders that can be compiled.
    """
    if not isinstance(encoder, LayeredEncoder):
        raise ValueError(
            f"compile=true: {type(encoder).__name__} draws in Python what each update skips and how much, and would be "
            "compiled again for each draw; choose a transformer or a conformer, or trainer.compile=false"
        )


class CompiledEncoder(pl.Callback):
    """Has the layers of the encoder compiled before the first update, and puts them back after the last.

    Validation and decoding use the layers as they are. The code is made for any B and T, from examples and not from the
    first micro-batch, which is another one in a resumed run. Names of parameters stay the same.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compile the layers, forward and backward."""
        assert isinstance(pl_module, TrainingModule)
        encoder, num_features = pl_module.recognizer.encoder, len(pl_module.recognizer.normalize.mean)
        assert isinstance(encoder, LayeredEncoder)
        compile_layers(encoder)
        with torch.random.fork_rng([pl_module.device] if pl_module.device.type == "cuda" else []):
            for example in EXAMPLES:
                _differentiate(trainer, encoder, torch.zeros(*example, num_features, device=pl_module.device))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the layers back."""
        assert isinstance(pl_module, TrainingModule)
        restore_layers(pl_module.recognizer.encoder)


def compile_layers(encoder: LayeredEncoder) -> None:
    """Have the layers compiled when they are first used in training; in evaluation they stay as they are."""
    for module in encoder.modules():
        # on a CPU its code would hold for one T
        if isinstance(module, DepthwiseConv1d):
            vars(module)["forward"] = torch.compiler.disable(module.forward)
    # one function of all layers, whose weights are its arguments: they share its code
    compiled = torch.compile(_apply, dynamic=True, backend=BACKEND)
    for layer in encoder.layers:
        vars(layer)["forward"] = partial(_forward, layer, compiled)


def restore_layers(encoder: nn.Module) -> None:
    """Undo `compile_layers`."""
    for module in encoder.modules():
        vars(module).pop("forward", None)


def _apply(layer: nn.Module, *args: Any) -> Any:
    return type(layer).forward(layer, *args)


def _forward(layer: nn.Module, compiled: Callable[..., Any], *args: Any) -> Any:
    return (compiled if layer.training else _apply)(layer, *args)


def _differentiate(trainer: pl.Trainer, encoder: nn.Module, features: Tensor) -> None:
    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    num_frames = torch.full((len(features),), features.shape[1], device=features.device)
    with trainer.precision_plugin.train_step_context():
        loss = encoder(features, num_frames)[0].float().square().mean()
    if parameters:
        # not backward(): DDP would count these gradients as those of an update
        torch.autograd.grad(loss, parameters, allow_unused=True)
