"""A model's config and weights → the encoder of transformers, and low-rank adapters in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import nn

from asr.errors import did_you_mean, first_line
from asr.models.pretrained.files import find_snapshot, without_code
from asr.options import Positive, Probability


class Lora(BaseModel):
    """``encoder.lora``: options of peft's LoraConfig, in its names."""

    model_config = ConfigDict(extra="forbid", strict=True)
    r: PositiveInt = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    target_modules: str | list[str] = ["q_proj", "v_proj"]


def describe(model: str) -> dict[str, str]:
    """Return what a run records of a model, as texts: ``config`` and ``inputs`` are JSON.

    Raises:
        ValueError: the model cannot be read, or its weights.
    """
    snapshot = find_snapshot(model)
    snapshot.weights()  # refused now, and not after data were prepared
    return {
        "config": json.dumps(snapshot.options()),
        "inputs": json.dumps(snapshot.inputs()),
        "license": snapshot.license(),
        "revision": snapshot.revision,
        "sha256": snapshot.digest(),
    }


def build_model(
    options: Mapping[str, Any], uses_masks: bool, model: str | None = None, source: Mapping[str, str] | None = None
) -> Any:
    """Return the encoder that a config describes.

    Args:
        options: of the model's config, with its ``model_type``.
        uses_masks: whether there is a vector for masked frames.
        model: whose weights it gets; None: it gets random ones, or none on the meta device.
        source: what `describe` has said of that model.

    Raises:
        ValueError: transformers knows no such model, or the weights are others.
        ImportError: transformers is not installed.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    transformers.logging.set_verbosity_error()  # it would report the heads that are not read
    transformers.logging.disable_progress_bar()
    # LayerDrop leaves parameters without gradients, which several processes wait for
    fixed = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    fixed |= {"mask_time_prob": float(uses_masks), "mask_feature_prob": 0.0}
    try:
        config = transformers.AutoConfig.for_model(
            **without_code(options) | {key: fixed[key] for key in fixed if key in options}
        )
        model_class: Any = MODEL_MAPPING[type(config)]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"transformers {transformers.__version__} has no model of the type {options['model_type']!r}: {error}"
        ) from error
    if model_class.main_input_name not in ("input_values", "input_features"):
        raise ValueError(f"a model of the type {options['model_type']!r} does not read audio")
    if getattr(config, "add_adapter", False):
        raise ValueError("add_adapter=true in the model's config: its convolutions would count padding")
    attention = "sdpa" if model_class._supports_sdpa else "eager"
    if model is None or source is None:
        built: Any = model_class._from_config(config, attn_implementation=attention)
        lacking = []
    else:
        snapshot = find_snapshot(model, source["revision"] or None)
        if (digest := snapshot.digest()) != source["sha256"]:
            raise ValueError(
                f"{snapshot.folder} holds other weights than the run was trained with: their SHA-256 is {digest}, and "
                f"was {source['sha256']}; give the model as it was"
            )
        built, loading = model_class.from_pretrained(
            None, config=config, state_dict=snapshot.weights(), attn_implementation=attention, output_loading_info=True
        )
        lacking = [*loading["missing_keys"], *(mismatch[0] for mismatch in loading["mismatched_keys"])]
    if config.is_encoder_decoder:
        built, lacking = built.get_encoder(), [name for name in lacking if name.startswith("encoder.")]
    if others := sorted({*lacking} - {"masked_spec_embed"}):
        raise ValueError(f"the weights of {model} lack {len(others)} of its encoder's, such as {others[0]}")
    # transformers (5.24) and peft (0.21) make some tensors on the CPU, wherever the others are
    return built.float().to(torch.get_default_device())


def encoder_of(model: Any) -> Any:
    """Return the part of a model that has its layers."""
    return getattr(model, "encoder", model)


def add_adapters(model: nn.Module, lora: Lora) -> None:
    """Put low-rank adapters into a model; nothing else of it is trained then.

    Raises:
        ValueError: no layer that can be adapted has one of the names.
        ImportError: peft is not installed.
    """
    from peft import LoraConfig, inject_adapter_in_model

    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for target in [] if isinstance(lora.target_modules, str) else lora.target_modules:
        found = [module for name, module in model.named_modules() if f".{name}".endswith(f".{target}")]
        # peft (0.21) ignores a name if it finds another, and cannot merge into convolutions with groups
        if not found or any(getattr(module, "groups", 1) > 1 for module in found):
            raise ValueError(
                f"lora.target_modules: {target!r} names no layer that can be adapted."
                f"{did_you_mean(target, linear)} Allowed: {', '.join(sorted(linear))}"
            )
    options: Any = {"r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
    try:
        inject_adapter_in_model(LoraConfig(**options, target_modules=lora.target_modules), model)
    except ValueError as error:
        raise ValueError(
            f"lora.target_modules={lora.target_modules}: {first_line(error)} It has {', '.join(sorted(linear))}"
        ) from error
    model.to(torch.get_default_device())


def merge_adapters(model: nn.Module) -> None:
    """Add what adapters have learned to the weights that they belong to."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer) and not module.merged:
            module.merge()
