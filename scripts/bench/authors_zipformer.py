"""The Zipformer of its authors, to compare ours with: three files of the package ``zipformer``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor, nn

VERSION = "0.1.3"
FILES = ("scaling", "subsampling", "zipformer")


def find_package(cache: Path) -> Path:
    """Return the folder of the package: the installed one, or one downloaded into ``cache``, without dependencies."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        package = importlib.metadata.distribution("zipformer")
        if package.version == VERSION:
            return Path(str(package.locate_file("zipformer")))
    if not (cache / "zipformer").is_dir():
        _download(cache)
    return cache / "zipformer"


def _download(cache: Path) -> None:
    """Put the package there in one step, for others may wait for it."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*install, f"zipformer=={VERSION}"], check=True)
        try:
            (Path(folder) / "zipformer").rename(cache / "zipformer")
        except OSError:
            # another process was faster
            if not (cache / "zipformer").is_dir():
                raise


def load(package: Path, compiled: bool = False, precise: bool = False) -> SimpleNamespace:
    """Import the three files.

    Args:
        package: their package's folder.
        compiled: whether activations are compiled by torch, as they are for its users.
        precise: whether gradients are computed in float64 wherever the package computes them in float32.
    """
    utils = ModuleType("zipformer.utils")
    vars(utils)["torch_autocast"] = _autocast
    named = {"zipformer": ModuleType("zipformer"), "zipformer.modules": ModuleType("modules"), utils.__name__: utils}
    modules = {}
    sys.modules.update(named)
    try:
        for file in FILES:
            name, path = f"zipformer.modules.{file}", package / "modules" / f"{file}.py"
            module = sys.modules[name] = modules[file] = ModuleType(name)
            source = path.read_text()
            if precise and file == "scaling":
                source = source.replace("torch.float32", "torch.float64")
            exec(compile(source, str(path), "exec"), vars(module))
            if not compiled and file == "scaling":
                vars(module)["torch_compile"] = lambda function, *args, **kwargs: function
    finally:
        for name in named if compiled else (*named, *(f"zipformer.modules.{file}" for file in FILES)):
            sys.modules.pop(name, None)
    return SimpleNamespace(**modules)


@contextlib.contextmanager
def _autocast(device_type: str = "cuda", enabled: bool = True) -> Iterator[None]:
    with torch.amp.autocast(device_type=device_type, enabled=enabled):
        yield


def draw_always(modules: SimpleNamespace, number: float) -> None:
    """Let Python's random numbers, as the package sees them, always be ``number``."""
    numbers = SimpleNamespace(random=lambda: number, choice=lambda choices: choices[0])
    modules.scaling.random = modules.zipformer.random = numbers


class Reference(nn.Module):
    """The package's front end and stacks, joined as its model joins them.

    Args:
        modules: see `load`.
        sizes: options of our encoder, one number per stack.
        causal: whether it works in chunks.
        chunk_size: of a chunk; -1: all.
        left_context_frames: that a chunk sees before itself; -1: all.
    """

    def __init__(
        self,
        modules: SimpleNamespace,
        sizes: dict[str, Sequence[int]],
        causal: bool,
        chunk_size: int = -1,
        left_context_frames: int = -1,
    ) -> None:
        super().__init__()

        def dropout() -> nn.Module:
            return modules.scaling.ScheduledFloat((0.0, 0.3), (20000.0, 0.1))

        self.encoder_embed = modules.subsampling.Conv2dSubsampling(80, sizes["encoder_dim"][0], dropout=dropout())
        self.encoder = modules.zipformer.Zipformer(
            downsampling_factor=tuple(sizes["downsampling_factor"]),
            encoder_dim=tuple(sizes["encoder_dim"]),
            encoder_unmasked_dim=tuple(sizes["encoder_unmasked_dim"]),
            num_encoder_layers=tuple(sizes["num_encoder_layers"]),
            feedforward_dim=tuple(sizes["feedforward_dim"]),
            num_heads=tuple(sizes["num_heads"]),
            cnn_module_kernel=tuple(sizes["cnn_module_kernel"]),
            query_head_dim=(32,),
            value_head_dim=(12,),
            pos_head_dim=(4,),
            pos_dim=48,
            dropout=dropout(),
            causal=causal,
            chunk_size=(chunk_size,),
            left_context_frames=(left_context_frames,),
        )

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode features (B, T, F) of lengths (B,); return encodings (B, T', D) and lengths (B,)."""
        x, lengths = self.encoder_embed(features, num_frames)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        encodings, lengths = self.encoder(x.transpose(0, 1), lengths, padding)
        return encodings.transpose(0, 1), lengths

    def set_time(self, num_batches: float) -> None:
        """Set the time of everything scheduled."""
        for module in self.modules():
            if hasattr(module, "batch_count"):
                vars(module)["batch_count"] = num_batches
