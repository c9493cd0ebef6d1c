"""``trainer.compile=true``: the layers of an encoder, or all of an encoder of one's own, as code that torch compiles.

B batch, T frames, F mel bins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from asr.console import console
from asr.training.module import TrainingModule

BACKEND = "inductor"
# torch's code depends on the sizes that it first sees, and is other code for one utterance than for several
EXAMPLES = ((4, 400), (1, 400))  # B, T


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
        pl_module.recognizer.set_batch_count(0.0)
        with torch.random.fork_rng([pl_module.device] if pl_module.device.type == "cuda" else []):
            for example in EXAMPLES:
                _differentiate(trainer, encoder, torch.zeros(*example, num_features, device=pl_module.device))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the layers back."""
        assert isinstance(pl_module, TrainingModule)
        for module in pl_module.recognizer.encoder.modules():
            vars(module).pop("forward", None)


def compile_layers(encoder: nn.Module) -> None:
    """Have the layers compiled when they are first used in training; in evaluation they stay as they are.

    A layer may have a method ``is_plain``: a forward pass in which it is false uses the layer as it is.
    """
    layers = getattr(encoder, "layers_to_compile", (encoder,))
    # beyond its limit torch (2.13) silently leaves what it has not compiled as it is
    limit = max(torch._dynamo.config.recompile_limit, len(EXAMPLES) * len(layers))
    torch._dynamo.config.recompile_limit = limit
    # sizes and offsets that are equal in the examples by chance must not have to be equal later
    torch.fx.experimental._config.use_duck_shape = False
    # one function of all layers, whose weights are its arguments: those of one size share its code
    compiled = torch.compile(_apply, dynamic=True, backend=BACKEND)
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer, compiled)


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
