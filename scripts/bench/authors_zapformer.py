"""The Zapformer of its authors, to compare ours with: files of a checkout of icefall's pull request 2082."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from asr.models.kernels import is_padding

FOLDER = Path("egs/librispeech/ASR/zapformer")
FILES = ("zapformer_utils", "zapformer_modules", "encoder_interface", "subsampling", "zapformer")
LIMITER_SCALE = 0.0125  # after 2000 batches


def load(checkout: Path, compiled: bool = False) -> SimpleNamespace:
    """Import the files, whose other imports are not needed.

    Args:
        checkout: of the pull request.
        compiled: whether activations are compiled by torch, as they are for its users.
    """
    utils = ModuleType("icefall.utils")
    vars(utils)["make_pad_mask"] = lambda lengths: is_padding(lengths, int(lengths.max()))
    sys.modules.update({"k2": ModuleType("k2"), "icefall": ModuleType("icefall"), utils.__name__: utils})
    modules = {}
    for name in FILES:
        path = checkout / FOLDER / f"{name}.py"
        module = sys.modules[name] = modules[name] = ModuleType(name)
        exec(compile(path.read_text(), str(path), "exec"), vars(module))
        if not compiled and name == "zapformer_modules":
            vars(module)["torch_compile"] = lambda function, *args, **kwargs: function
    return SimpleNamespace(**modules)


class Reference(nn.Module):
    """Their front end and stacks, joined as their model joins them.

    Args:
        modules: see `load`.
        sizes: options of our encoder.
    """

    def __init__(self, modules: SimpleNamespace, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        of_stacks = ("downsampling_factor", "encoder_dim", "num_encoder_layers", "feedforward_multiple")
        of_heads = {"num_heads": 4, "query_head_dim": 64, "value_head_dim": 96, "pos_head_dim": 4, "num_freqs": 64}
        first, second, third = sizes.get("subsampling_channels", (16, 64, 128))
        self.encoder_embed = modules.subsampling.Conv2dSubsampling(80, sizes["input_dim"], first, second, third)
        self.encoder = modules.zapformer.Zapformer(
            input_dim=sizes["input_dim"],
            conv_params=tuple(sizes["cnn_module_kernel"]),
            **{name: tuple(sizes[name]) for name in of_stacks},
            **{name: sizes.get(name, default) for name, default in of_heads.items()},
        )

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features (B, T, F) of lengths (B,); return encodings (B, T', D) and lengths (B,)."""
        x, lengths = self.encoder_embed(features, num_frames, aux_loss_scale=LIMITER_SCALE)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        encodings, lengths = self.encoder(x.transpose(0, 1), lengths, padding, aux_loss_scale=LIMITER_SCALE)
        return encodings.transpose(0, 1), lengths
