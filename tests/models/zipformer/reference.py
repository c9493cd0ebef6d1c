"""The Zipformer of its authors: the package ``zipformer`` 0.1.3, of which three files need torch alone."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor, nn

REQUIREMENT = "zipformer==0.1.3"
FILES = ("scaling", "subsampling", "zipformer")


def find_package(cache: Path) -> Path:
    """Return the folder of the package: the installed one, or one downloaded into ``cache``, without dependencies."""
    spec = importlib.util.find_spec("zipformer")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if not (cache / "zipformer").is_dir():
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), REQUIREMENT]
        subprocess.run(download, check=True)
        (wheel,) = cache.glob("zipformer-*.whl")
        zipfile.ZipFile(wheel).extractall(cache)
    return cache / "zipformer"


def load(package: Path) -> SimpleNamespace:
    """Import the three files, uncompiled, and with float64 wherever gradients are computed in float32."""
    utils = ModuleType("zipformer.utils")
    utils.torch_autocast = _autocast
    named = {"zipformer": ModuleType("zipformer"), "zipformer.modules": ModuleType("modules"), utils.__name__: utils}
    modules = {}
    sys.modules.update(named)
    try:
        for file in FILES:
            name = f"zipformer.modules.{file}"
            module = sys.modules[name] = modules[file] = ModuleType(name)
            source = (package / "modules" / f"{file}.py").read_text()
            if file == "scaling":
                source = source.replace("torch.float32", "torch.float64")
            exec(compile(source, name, "exec"), vars(module))
            if file == "scaling":
                vars(module)["torch_compile"] = lambda function, *args, **kwargs: function
    finally:
        for name in (*named, *(f"zipformer.modules.{file}" for file in FILES)):
            sys.modules.pop(name, None)
    return SimpleNamespace(**modules)


@contextlib.contextmanager
def _autocast(device_type: str = "cuda", **options: bool) -> Iterator[None]:
    with torch.amp.autocast(device_type=device_type, **options):
        yield


def decide(modules: SimpleNamespace, number: float) -> None:
    """Let Python's random numbers, as the package sees them, always be ``number``."""
    numbers = SimpleNamespace(random=lambda: number, choice=lambda choices: choices[0])
    modules.scaling.random = modules.zipformer.random = numbers


class Reference(nn.Module):
    """The package's front end and stacks, joined as its model joins them."""

    def __init__(
        self,
        modules: SimpleNamespace,
        sizes: dict[str, Sequence[int]],
        causal: bool,
        chunk_frames: int = -1,
        left_context_frames: int = -1,
    ) -> None:
        super().__init__()

        def dropout() -> nn.Module:
            return modules.scaling.ScheduledFloat((0.0, 0.3), (20000.0, 0.1))

        self.encoder_embed = modules.subsampling.Conv2dSubsampling(80, sizes["d_model"][0], dropout=dropout())
        self.encoder = modules.zipformer.Zipformer(
            downsampling_factor=tuple(sizes["downsampling"]),
            encoder_dim=tuple(sizes["d_model"]),
            encoder_unmasked_dim=tuple(sizes["unmasked_width"]),
            num_encoder_layers=tuple(sizes["num_layers"]),
            feedforward_dim=tuple(sizes["d_feedforward"]),
            num_heads=tuple(sizes["num_heads"]),
            cnn_module_kernel=tuple(sizes["kernel_width"]),
            query_head_dim=(32,),
            value_head_dim=(12,),
            pos_head_dim=(4,),
            pos_dim=48,
            dropout=dropout(),
            causal=causal,
            chunk_size=(chunk_frames,),
            left_context_frames=(left_context_frames,),
        )

    def forward(self, features: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.encoder_embed(features, num_frames)
        padding = torch.arange(x.shape[1]) >= lengths.unsqueeze(1)
        encodings, lengths = self.encoder(x.transpose(0, 1), lengths, padding)
        return encodings.transpose(0, 1), lengths

    def set_time(self, num_batches: float) -> None:
        for module in self.modules():
            if hasattr(module, "batch_count"):
                module.batch_count = num_batches
