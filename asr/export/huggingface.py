"""Fine-tuned CTC models as folders of transformers, which ``transformers.pipeline`` decodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.export.graphs import Call, export_of
from asr.export.write import check_equal
from asr.models.encoders.pretrained import FRAMES_HZ, PretrainedEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import SPACE_PIECE, SPECIAL_PIECES
from werdict.files import write_new

BLANK, UNKNOWN, SPACE = "<pad>", "<unk>", "|"  # as transformers writes them
NAMES = {SPECIAL_PIECES[0]: BLANK, SPECIAL_PIECES[1]: UNKNOWN, SPACE_PIECE: SPACE}


def write_huggingface(recognizer: Recognizer, pieces: Sequence[str], folder: Path) -> str:
    """Write a model, what it takes, and its vocabulary; return a line about them.

    Args:
        recognizer: in evaluation mode; adapters are merged into its weights.
        pieces: of its tokenizer.
        folder: to write into.

    Raises:
        ValueError: transformers has no place for a part of the recognizer.
        RunFailed: the model in the folder does not give what the recognizer gives.
    """
    from transformers import AutoModelForCTC, Wav2Vec2FeatureExtractor

    encoder, head = _checked(recognizer, pieces)
    config = encoder.model.config.to_dict() | {"vocab_size": len(pieces), "pad_token_id": 0}
    model = AutoModelForCTC.from_config(type(encoder.model.config).from_dict(config))
    model.base_model.load_state_dict(encoder.merged_weights())
    model.lm_head.load_state_dict(head.project.state_dict())
    model.save_pretrained(folder)
    layer_norm = config.get("feat_extract_norm") == "layer"  # others were trained without a mask
    options = {"sampling_rate": encoder.frame * FRAMES_HZ, "do_normalize": encoder.normalizes}
    extractor = Wav2Vec2FeatureExtractor(**options, return_attention_mask=layer_norm)
    extractor.save_pretrained(folder)
    vocabulary = {NAMES.get(piece, piece): number for number, piece in enumerate(pieces)}
    write_new(folder / "vocab.json", json.dumps(vocabulary, ensure_ascii=False) + "\n")
    options = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "bos_token": None, "eos_token": None}
    options |= {"pad_token": BLANK, "unk_token": UNKNOWN, "word_delimiter_token": SPACE}
    write_new(folder / "tokenizer_config.json", json.dumps(options | {"clean_up_tokenization_spaces": False}) + "\n")
    export = export_of(recognizer, "ctc", streaming=False)
    difference = check_equal(export, _transformers_call(folder), recognizer.normalize)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6
    return (
        f"{size:.1f} MB of {type(model).__name__}, log-probabilities differ from werdict's by at most {difference:.1e}"
    )


def _checked(recognizer: Recognizer, pieces: Sequence[str]) -> tuple[PretrainedEncoder, CtcHead]:
    encoder = recognizer.encoder
    if not isinstance(encoder, PretrainedEncoder) or encoder.mels is not None:
        raise ValueError("format=huggingface is for encoder=pretrained with a model that takes samples, as wav2vec2")
    if encoder.layer_logits is not None:
        raise ValueError("format=huggingface: transformers has no CTC of layers=weighted; train with layers=last")
    if not isinstance(recognizer.head, CtcHead):
        raise ValueError(f"format=huggingface is for head=ctc, given {type(recognizer.head).__name__}")
    if SPACE in pieces or any(len(piece) > 1 for piece in pieces[len(SPECIAL_PIECES) :]):
        raise ValueError(f"format=huggingface is for tokenizer=char of texts without {SPACE!r}")
    return encoder, recognizer.head


def _transformers_call(folder: Path) -> Call:
    """Return what runs the model of a folder on each utterance alone."""
    from transformers import AutoFeatureExtractor, AutoModelForCTC

    model: Any = AutoModelForCTC.from_pretrained(folder).eval()
    extractor: Any = AutoFeatureExtractor.from_pretrained(folder)

    def call(name: str, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        features, num_frames = inputs
        rows = []
        for frames, num in zip(features, num_frames, strict=True):
            samples = frames[:num].flatten().numpy()
            extracted = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt")
            with torch.no_grad():
                rows.append(model(**extracted).logits[0].log_softmax(dim=-1))
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    return call
