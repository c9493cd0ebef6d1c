"""``asr-convert``: a Zipformer of icefall and its tokenizer, or a run on a pretrained model → a whole checkpoint."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.commands.results import new_file
from asr.models.icefall_weights import convert_weights
from asr.run.instantiate import build_component
from asr.run.options import Convert, Target
from asr.run.parts import build_decoder, build_recognizer, check_decoder
from asr.run.restore import model_options, recognizer_of
from asr.run.start import PRETRAINED
from asr.text.tokenizer import SubwordTokenizer, icefall_tokenizer
from asr.training import checkpoints
from werdict.console import PlainConsole
from werdict.errors import ConfigError, naming_place
from werdict.files import named_path, write_new

ENDING = ".ckpt"
OWN_KEYS = ("model", "bpe_model", "run", "trust", "output")

console = PlainConsole()


def run(options: Convert) -> None:
    """Convert weights and tokenizer, write the checkpoint, and say what was left out."""
    output = new_file(options.output)
    if output.suffix != ENDING:
        raise ConfigError(f"output must be a name that ends with {ENDING}, given {str(options.output)!r}")
    if len({options.model is None, options.bpe_model is None, options.run is not None}) != 1:
        raise ConfigError("model and bpe_model of icefall must be given, or run= alone")
    if options.run is not None:
        file = checkpoints.checkpoint_file(str(options.run))
        checkpoint = checkpoints.load_checkpoint(file, to_resume=True)
        encoder = model_options(checkpoint).encoder
        if checkpoints.has_parts(file) and (encoder.target != PRETRAINED or encoder.train == "all"):
            checkpoints.write(checkpoint.state, output)
            console.print_line(f"checkpoint: {output}")
            return
        _write_whole(output, *_merged(checkpoint, options.encoder.plain().get("model")))
        return
    model, bpe_model = named_path(options.model), named_path(options.bpe_model)
    with naming_place(f"bpe_model: {bpe_model}"):
        tokenizer, order = icefall_tokenizer(bpe_model.read_bytes())
    _check_case(tokenizer, options.data.text)
    num_features = build_component(options.features, "features").num_features
    recognizer = build_recognizer(options, tokenizer.vocab_size, [0.0] * num_features, [1.0] * num_features)
    check_decoder(build_decoder(options.decoder), recognizer.head)
    with naming_place(f"model: {model}"):
        weights, unused = convert_weights(model, recognizer.state_dict(), order)
    data = {"fingerprint": "none", "folder": "", "notes": [f"weights of icefall, converted from {model.name}"]}
    num_parameters = sum(parameter.numel() for parameter in recognizer.parameters())
    console.print(f"{num_parameters:,} parameters, {tokenizer.vocab_size} tokens")
    if unused:
        console.print_line(f"left out {len(unused)} tensors that are not used here: {', '.join(unused[:3])} …")
    config = {key: value for key, value in options.plain().items() if key not in OWN_KEYS}
    _write_whole(output, weights, {"config": config, "tokenizer": tokenizer.state(), "data": data})


def _merged(checkpoint: checkpoints.LoadedCheckpoint, base: object) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights of a run and of its pretrained model as one, adapters merged, and what goes with them."""
    encoder_options = model_options(checkpoint).encoder
    if encoder_options.target != PRETRAINED or encoder_options.train == "all":
        raise ConfigError(f"run: {checkpoint.path} holds all weights already: copy that file")
    recognizer = recognizer_of(checkpoint, base)
    encoder: Any = recognizer.encoder
    weights = {
        name: weight for name, weight in recognizer.state_dict().items() if not name.startswith("encoder.model.")
    }
    weights |= {f"encoder.model.{name}": weight for name, weight in encoder.merged_weights().items()}
    whole_encoder = encoder_options.updated(train="all", last_n=None, model_folder=None)
    whole = {**checkpoint.config, "encoder": whole_encoder.plain()}
    return weights, {"config": whole, "tokenizer": checkpoint.tokenizer, "data": checkpoint.data}


def _write_whole(output: Path, weights: Mapping[str, Tensor], contents: Mapping[str, Any]) -> None:
    """Write a checkpoint that holds all weights."""
    state = {
        "state_dict": {f"{checkpoints.PREFIX}{name}": weight for name, weight in weights.items()},
        "global_step": 0,
        "werdict": {"format": checkpoints.FORMAT, **contents},
    }
    content = io.BytesIO()
    torch.save(state, content)
    write_new(output, content.getvalue())
    console.print_line(f"checkpoint: {output}")


def _check_case(tokenizer: SubwordTokenizer, rules: Target) -> None:
    """Refuse to normalize transcripts to a case whose letters no token has."""
    letters = "".join(tokenizer.pieces[3:])
    for case, other in (("upper", "lower"), ("lower", "upper")):
        unchanged = letters == getattr(letters, case)() != getattr(letters, other)()
        if unchanged and rules.case != case:
            raise ConfigError(
                f"data.text.case={rules.case}: all letters of the tokenizer are {case} case; give "
                f"data.text.case={case}, so that transcripts have the same case"
            )
