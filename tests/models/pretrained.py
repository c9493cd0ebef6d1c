"""Small pretrained models with random weights, in folders as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

SIZE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
CONVOLUTIONS: dict[str, Any] = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
WHISPER = {"d_model": 16, "encoder_layers": 3, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8, "vocab_size": 60}
# name: type of the model, options
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2, group norm": ("wav2vec2", SIZE | CONVOLUTIONS),
    "wav2vec2, layer norm": ("wav2vec2", SIZE | CONVOLUTIONS | STABLE),
    "hubert, group norm": ("hubert", SIZE | CONVOLUTIONS),
    "hubert, layer norm": ("hubert", SIZE | CONVOLUTIONS | STABLE),
    "wavlm, group norm": ("wavlm", SIZE | CONVOLUTIONS),
    "wavlm, layer norm": ("wavlm", SIZE | CONVOLUTIONS | STABLE),
    "data2vec": ("data2vec-audio", SIZE | CONVOLUTIONS | {"num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5}),
    "unispeech": ("unispeech-sat", SIZE | CONVOLUTIONS),
    "sew": ("sew", SIZE | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "squeeze_factor": 2}),
    "conformer": ("wav2vec2-conformer", SIZE | CONVOLUTIONS | {"conv_depthwise_kernel_size": 5}),
    "w2v-bert": ("wav2vec2-bert", SIZE | {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 5}),
    "whisper": ("whisper", WHISPER | DECODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
}


LETTERS = "EORI"


def save_ctc_model(folder: Path) -> Any:
    """Write a model with a CTC head over some letters to a folder, and return it."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(4)
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, **{x: 5 + i for i, x in enumerate(LETTERS)}}
    model = Wav2Vec2ForCTC(Wav2Vec2Config(**MODELS["wav2vec2, group norm"][1], vocab_size=len(vocabulary))).eval()
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return model


def save_model(folder: Path, name: str = "wav2vec2, group norm", **others: Any) -> Any:
    """Write a model with random weights to a folder, and return it."""
    from transformers import AutoConfig, AutoModel

    kind, options = MODELS[name]
    torch.manual_seed(3)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **options | others)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that an error is seen
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    inputs = {"sampling_rate": 16_000, "do_normalize": kind != "wavlm"}
    (folder / "preprocessor_config.json").write_text(json.dumps(inputs))
    return model
