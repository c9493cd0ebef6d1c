"""Give the weights of a Zipformer of icefall, or of the package ``zipformer``, the names of our encoder's.

    python scripts/convert_zipformer.py exp/pretrained.pt zipformer_s.pt --encoder zipformer_s [--causal]

The file holds a model's state, alone or under ``model``; nothing but tensors and plain data is read from it. Prints
what became of its tensors. Load what is written with ``ZipformerEncoder.load_state_dict(torch.load(file))``, and give
the encoder what icefall's recipes give it: 80 log-mel bins of lhotse's ``Fbank``, as ours are, but not normalized.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor

from asr.models.encoders.zipformer.convert import convert
from asr.models.encoders.zipformer.encoder import ZipformerEncoder

CONFIGS = Path(__file__).parents[1] / "configs" / "encoder"
FIRST_FRONT_END, FIRST_PROJECTION = "encoder_embed.conv.0.weight", "encoder_embed.out.weight"


def model_state(file: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a model by their names.

    Raises:
        ValueError: the file cannot be read, or holds something else.
    """
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    # an untrusted file can make the unpickler raise anything
    except Exception as error:
        first_line, _, _ = str(error).partition("\n")
        raise ValueError(
            f"{file} cannot be read, or holds more than tensors and plain data: {type(error).__name__}: {first_line}; "
            "of a training's own checkpoint, icefall's export.py makes one that does not"
        ) from error
    state = state.get("model", state) if isinstance(state, Mapping) else state
    if not isinstance(state, Mapping) or FIRST_FRONT_END not in state or FIRST_PROJECTION not in state:
        raise ValueError(f"{file} holds no Zipformer: there is no {FIRST_FRONT_END}, or no {FIRST_PROJECTION}")
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()):
        raise ValueError(f"{file} holds more than tensors and their names")
    return state


def preset(name: str) -> dict[str, Any]:
    """Return the options of an encoder of configs/encoder."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        options = OmegaConf.to_container(compose(name))
    assert isinstance(options, dict)
    return {str(key): value for key, value in options.items() if key != "_target_"}


def build(name: str, causal: bool, num_features: int) -> ZipformerEncoder:
    """Return an encoder of configs/encoder with fresh weights."""
    return ZipformerEncoder(**{**preset(name), "num_features": num_features, "causal": causal})


def main() -> int:
    """Convert a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("output", type=Path)
    sizes = sorted(path.stem for path in CONFIGS.glob("zipformer_*.yaml"))
    parser.add_argument("--encoder", choices=sizes, default="zipformer_m", help="its size (default: %(default)s)")
    parser.add_argument("--causal", action="store_true", help="it was trained to stream")
    parser.add_argument("--num-features", type=int, default=80)
    options = parser.parse_args()
    if options.output.exists():
        parser.error(f"{options.output} is there already; choose another name")
    if not options.output.resolve().parent.is_dir():
        parser.error(f"there is no folder {options.output.resolve().parent}; make it first")
    try:
        encoder = build(options.encoder, options.causal, options.num_features)
        converted = convert(model_state(options.checkpoint), encoder.state_dict())
    except ValueError as error:
        parser.error(str(error))
    encoder.load_state_dict(converted.weights)
    torch.save(encoder.state_dict(), options.output)
    num_parameters = sum(parameter.numel() for parameter in encoder.parameters())
    print(f"{options.output}: {num_parameters:,} parameters of the encoder")
    for what, names in (("left out, read by nothing", converted.unused), ("left out, no encoder", converted.other)):
        print(f"{what}: {len(names)} tensors", *names, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
