"""Small recognizers with random weights, and what decodes their exports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from asr.data.features import LogMel
from asr.features.log_mel import GlobalNorm
from asr.models.heads.protocols import Head
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import UNKNOWN_ID
from tests.models.encoders import NUM_FEATURES

VOCAB = 9
PIECES = ["<blk>", "<unk>", "\u2581", *"abcdef"]
RATE = 16_000
LOG_MEL = LogMel(NUM_FEATURES)


def recognizer(make_encoder: Callable[[], nn.Module], make_head: Callable[[int], Head]) -> Recognizer:
    """Return a recognizer whose encodings differ from frame to frame, so that its texts do."""
    torch.manual_seed(5)
    encoder = make_encoder()
    made = Recognizer(encoder, make_head(encoder.d_model), GlobalNorm([-6.0] * NUM_FEATURES, [3.0] * NUM_FEATURES))
    made.eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        encoded = [made(features, torch.tensor([features.shape[1]]))[0][0] for features in map(features_of, noises(4))]
        std, mean = torch.std_mean(torch.cat(encoded), dim=0)
        for layer in _first_layers(made.head):
            layer.weight *= 2 / std.clamp(min=0.1)
            layer.bias -= layer.weight @ mean
        for name, parameter in made.head.named_parameters():
            if name.endswith(("project.bias", "output_linear.bias")):
                # sherpa-onnx leaves unknown tokens out
                parameter[UNKNOWN_ID] = -30.0
    return made


def _first_layers(head: nn.Module) -> list[nn.Linear]:
    """Return the layers that see encodings."""
    found = []
    for name in ("ctc.project", "project", "joiner.encoder_proj"):
        with contextlib.suppress(AttributeError):
            if isinstance(layer := head.get_submodule(name), nn.Linear):
                found.append(layer)
    return found


def noises(num: int) -> list[np.ndarray]:
    """Return recordings of noise whose loudness and color change, from half a second to two seconds long."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(num):
        pieces = []
        for _ in range(generator.integers(5, 20)):
            noise = generator.standard_normal(1600) * 10 ** generator.uniform(-3, -0.5)
            pieces.append(np.convolve(noise, generator.standard_normal(8), "same"))
        found.append(np.concatenate(pieces).clip(-1, 1).astype(np.float32))
    return found


def features_of(audio: np.ndarray) -> torch.Tensor:
    """Return features (1, T, F)."""
    return torch.from_numpy(LOG_MEL.extractor.extract(audio, RATE))[None]


def write_tokens(folder: Path) -> str:
    """Write the tokens, and return the file."""
    path = folder / "tokens.txt"
    path.write_text("".join(f"{piece} {number}\n" for number, piece in enumerate(PIECES)))
    return str(path)


def text_of(tokens: list[int]) -> str:
    """Return tokens as sherpa-onnx writes them."""
    return " ".join("".join(PIECES[token] for token in tokens).replace("\u2581", " ").split())


def sherpa():
    """Return sherpa-onnx, or skip."""
    return pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed (group dev)")
