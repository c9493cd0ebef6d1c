"""Folders for transformers, decoded by its pipeline, and ONNX of pretrained encoders."""

import numpy as np
import pytest
import torch

from asr.decoding.greedy import CtcGreedy
from asr.export.graphs import export_of
from asr.features.log_mel import GlobalNorm
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerHead
from asr.models.recognizer import Recognizer
from asr.text.tokenizer import CharacterTokenizer

pytest.importorskip("transformers", reason="transformers is not installed (extra pretrained)")
pytest.importorskip("peft", reason="peft is not installed (extra pretrained)")

from transformers import AutoModel, pipeline

from asr.export.write import write_huggingface, write_onnx_files
from asr.models.encoders.pretrained import Lora, PretrainedEncoder
from tests.models.pretrained import save_model

FRAME, RATE = 160, 16_000
PIECES = ["<blk>", "<unk>", "\u2581", *"abcdefg'"]
WEIGHTS = ["wav2vec2, group norm", "wav2vec2, layer norm", "hubert, group norm", "wavlm, layer norm", "data2vec"]


def fine_tuned(folder, name, make_head=CtcHead, **options):
    """Return a recognizer whose every trained weight has moved, and whose texts are not empty."""
    save_model(folder, name)
    encoder = PretrainedEncoder(FRAME, str(folder), **options)
    made = Recognizer(encoder, make_head(encoder.d_model, len(PIECES)), GlobalNorm([0.0] * FRAME, [1.0] * FRAME))
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
        if isinstance(made.head, CtcHead):
            made.head.project.weight *= 30
    return made.eval()


def recordings():
    generator = np.random.default_rng(3)
    loudness = [generator.uniform(0.01, 0.5, size=num).repeat(1600) for num in (5, 9, 14)]
    return [(scale * generator.standard_normal(len(scale))).astype(np.float32) for scale in loudness]


def texts_of(recognizer):
    tokenizer = CharacterTokenizer(PIECES)
    found = []
    for audio in recordings():
        frames = torch.from_numpy(audio).unflatten(0, (-1, FRAME))[None]
        with torch.inference_mode():
            encodings, lengths = recognizer(frames, torch.tensor([frames.shape[1]]))
            ((best,),) = CtcGreedy()(recognizer.head, encodings, lengths)
        found.append(tokenizer.decode(best.tokens))
    return found


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in WEIGHTS),
        ("wav2vec2, group norm", {"train": "adapters", "lora": Lora(r=2)}),
        ("wavlm, layer norm", {"train": "last_n", "last_n": 1}),
    ],
    ids=str,
)
def test_the_pipeline_of_transformers_writes_the_same_texts(tmp_path, name, options):
    recognizer = fine_tuned(tmp_path / "source", name, **options)
    expected = texts_of(recognizer)
    (tmp_path / "out").mkdir()
    write_huggingface(recognizer, PIECES, tmp_path / "out")
    decode = pipeline("automatic-speech-recognition", model=str(tmp_path / "out"))
    found = [decode({"raw": audio, "sampling_rate": RATE})["text"] for audio in recordings()]
    # its tokenizer writes unknown characters as they are called, and keeps the spaces at the ends
    assert [" ".join(text.replace("<unk>", "\u2047").split()) for text in found] == expected
    assert len({*expected}) == len(expected)


def test_adapters_are_in_the_weights(tmp_path):
    recognizer = fine_tuned(tmp_path / "source", "hubert, group norm", train="adapters", lora=Lora(r=2))
    (tmp_path / "out").mkdir()
    write_huggingface(recognizer, PIECES, tmp_path / "out")
    before, after = (AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("source", "out"))
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in after if name.endswith(("q_proj.weight", "v_proj.weight"))}


@pytest.mark.parametrize(
    ("name", "options", "make_head", "pieces"),
    [
        ("whisper", {}, CtcHead, PIECES),
        ("wav2vec2, group norm", {"layers": "weighted"}, CtcHead, PIECES),
        ("wav2vec2, group norm", {}, TransducerHead, PIECES),
        ("wav2vec2, group norm", {}, CtcHead, [*PIECES[:-1], "ab"]),
    ],
)
def test_what_transformers_has_no_place_for_is_refused(tmp_path, name, options, make_head, pieces):
    recognizer = fine_tuned(tmp_path / "source", name, make_head, **options)
    with pytest.raises(ValueError, match="format=huggingface"):
        write_huggingface(recognizer, pieces, tmp_path)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("layers", ["last", "weighted"])
def test_onnx_gives_what_the_encoder_gives(tmp_path, name, layers):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")
    recognizer = fine_tuned(tmp_path / "source", name, layers=layers)
    # it raises if a log-probability differs
    (line,) = write_onnx_files(export_of(recognizer, "ctc", False), recognizer.normalize, tmp_path, quantize=False)
    assert "model.onnx" in line


@pytest.mark.parametrize("name", ["whisper", "w2v-bert"])
def test_features_that_cannot_be_traced_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="format=safetensors"):
        export_of(fine_tuned(tmp_path, name), "ctc", False)
