"""``asr-convert``: a Zipformer of icefall and its tokenizer → a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig

from asr.commands.output_file import new_file
from asr.config.build import build_decoder, build_recognizer, check_decoder, part, plain
from asr.console import PlainConsole
from asr.errors import ConfigError
from asr.safe_io import named_path, write_new
from asr.text.subword import SubwordTokenizer, icefall_tokenizer
from asr.training.checkpoints.icefall import convert_weights
from asr.training.checkpoints.loading import FORMAT, PREFIX

ENDING = ".ckpt"
OWN_KEYS = ("model", "bpe_model", "output")

console = PlainConsole()


def run(options: DictConfig) -> None:
    """Convert weights and tokenizer, write the checkpoint, and say what was left out."""
    output = new_file(options.output)
    if output.suffix != ENDING:
        raise ConfigError(f"output must be a name that ends with {ENDING}, given {str(options.output)!r}")
    model, bpe_model = named_path(options.model), named_path(options.bpe_model)
    config = {key: value for key, value in plain(options).items() if key not in OWN_KEYS}
    try:
        tokenizer, order = icefall_tokenizer(bpe_model.read_bytes())
    except ValueError as error:
        raise ConfigError(f"bpe_model: {bpe_model}: {error}") from error
    _check_case(tokenizer, config)
    num_features = part(config, "features").num_features
    recognizer = build_recognizer(config, tokenizer.vocab_size, [0.0] * num_features, [1.0] * num_features)
    check_decoder(build_decoder(config), recognizer.head)
    try:
        weights, unused = convert_weights(model, recognizer.state_dict(), order)
    except ValueError as error:
        raise ConfigError(f"model: {model}: {error}") from error
    state = {
        "state_dict": {f"{PREFIX}{name}": weight for name, weight in weights.items()},
        "global_step": 0,
        "werdict": {
            "format": FORMAT,
            "config": config,
            "tokenizer": tokenizer.state(),
            "data": {
                "fingerprint": "none",
                "folder": "",
                "notes": [f"weights of icefall, converted from {model.name}"],
            },
        },
    }
    content = io.BytesIO()
    torch.save(state, content)
    write_new(output, content.getvalue())
    num_parameters = sum(parameter.numel() for parameter in recognizer.parameters())
    console.print(f"{num_parameters:,} parameters, {tokenizer.vocab_size} tokens")
    if unused:
        console.print_line(f"left out {len(unused)} tensors that are not used here: {', '.join(unused[:3])} …")
    console.print_line(f"checkpoint: {output}")


def _check_case(tokenizer: SubwordTokenizer, config: Mapping[str, Any]) -> None:
    """Refuse to normalize transcripts to a case whose letters no token has."""
    letters = "".join(tokenizer.pieces[3:])
    for case, other in (("upper", "lower"), ("lower", "upper")):
        unchanged = letters == getattr(letters, case)() != getattr(letters, other)()
        if unchanged and config["data"]["text"]["case"] != case:
            raise ConfigError(
                f"data.text.case={config['data']['text']['case']}: all letters of the tokenizer are {case} case; give "
                f"data.text.case={case}, so that transcripts have the same case"
            )
