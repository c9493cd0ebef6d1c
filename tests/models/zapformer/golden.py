"""Golden files of the Zapformer: what its authors' own code computed, whole encoders by their configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.models.encoders.streaming import WHOLE
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.icefall_weights import convert_encoder

OUTPUTS, GRADIENTS = 1e-5, 1e-4  # absolute; relative to the largest


class Golden(Mapping[str, Tensor]):
    """The arrays of a file, or those with a prefix, and what is told of them."""

    def __init__(self, path: Path) -> None:
        self.arrays = np.load(path)
        self.meta: dict[str, Any] = json.loads(str(self.arrays["meta"]))
        self.names = [name for name in self.arrays.files if name != "meta"] + [*self.meta["same"]]

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[self.meta["same"].get(name, name)])

    def __iter__(self):
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the arrays under a prefix, by the rest of their names."""
        return {name.removeprefix(prefix): self[name] for name in self.names if name.startswith(prefix)}


def encoder_of(params: Golden, chunk_size: int = -1, left_context_frames: int = -1, **options: Any) -> ZapformerEncoder:
    """Return our encoder with the configuration and the weights of a file."""
    theirs, front_end = params.meta["config"]["encoder"], params.meta["config"]["encoder_embed"]
    num_stacks = len(theirs["downsampling_factor"])
    lists = {
        ours: [theirs[name]] * num_stacks if isinstance(theirs[name], int) else theirs[name]
        for ours, name in {
            **{name: name for name in ("encoder_dim", "feedforward_multiple", "num_encoder_layers")},
            **{"cnn_module_kernel": "conv_params", "downsampling_factor": "downsampling_factor"},
        }.items()
    }
    of_heads = {
        name: theirs[name] for name in ("num_heads", "query_head_dim", "value_head_dim", "pos_head_dim", "num_freqs")
    }
    encoder = ZapformerEncoder(
        front_end["in_channels"],
        theirs["input_dim"],
        **lists,
        **of_heads,
        subsampling_channels=tuple(front_end[f"layer{i}_channels"] for i in (1, 2, 3)),
        causal=theirs["causal"],
        chunk_size=[chunk_size],
        left_context_frames=[left_context_frames],
        noise=0.0,
        **options,
    )
    encoder.load_state_dict(convert_encoder(params.under("param/"), encoder.state_dict())[0])
    encoder.set_trained_seconds(0.0)
    return encoder


def encoded_as_theirs(encoder: ZapformerEncoder, features: Tensor, num_frames: Tensor) -> Tensor:
    """Encode a batch as the authors' code does, which sees what is in padding."""
    full = torch.full_like(num_frames, features.shape[1])
    x, num = encoder.encoder_embed(features, full)
    _, lengths = encoder.encoder_embed(features, num_frames)
    x = torch.cat((x, x[:, -1:].expand(-1, -x.shape[1] % encoder.multiple, -1)), dim=1)
    return encoder.through_stacks(x, lengths, encoder.next_chunks(x.device), WHOLE)[:, : (int(num[0]) + 1) // 2]


def worst(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest number of theirs."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
