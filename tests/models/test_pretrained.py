"""Pretrained encoders: as transformers' own on each utterance alone; what of them is trained, saved and refused."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.models.encoders import middle_of_what_is_seen
from tests.models.pretrained import LETTERS, MODELS, save_ctc_model, save_model

pytest.importorskip("transformers")
pytest.importorskip("peft")

from asr.features.log_mel import GlobalNorm
from asr.models.encoders.pretrained import Lora, Masks, PretrainedEncoder, normalized, span_masks
from asr.models.heads.ctc import CtcHead
from asr.models.pretrained import ctc_head, describe, find_snapshot
from asr.models.recognizer import Recognizer, initialize
from asr.training.checkpoints import load_weights

FRAMES = [91, 40, 64, 64]
ADAPTED = {"train": "adapters", "lora": Lora(r=2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "wav2vec2"
    save_model(place)
    return place


def audio(*frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return 0.1 * torch.randn(len(frames), max(frames), 160, generator=generator), torch.tensor(frames)


def encoder_for(folder: Path, **options: Any) -> PretrainedEncoder:
    torch.manual_seed(5)
    return PretrainedEncoder(160, str(folder), **options)


def theirs(kind: str, model: Any, samples: Tensor) -> Any:
    """Return what transformers makes of the audio of one utterance."""
    import transformers

    classes = {"whisper": "WhisperFeatureExtractor", "wav2vec2-bert": "SeamlessM4TFeatureExtractor"}
    extractor_class = getattr(transformers, classes.get(kind, "Wav2Vec2FeatureExtractor"))
    options = {} if kind in classes else {"do_normalize": kind != "wavlm"}
    inputs = extractor_class(**options)(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    return (model.get_encoder() if kind == "whisper" else model)(**inputs, output_hidden_states=True)


def gradients(model: Any) -> Iterator[tuple[str, Tensor]]:
    return ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)


@pytest.mark.parametrize("name", MODELS)
def test_padded_utterances_are_encoded_as_transformers_encodes_each_alone(name, tmp_path):
    kind, _ = MODELS[name]
    model = save_model(tmp_path, name)
    encoder = encoder_for(tmp_path, freeze_convolutions=False).eval()
    features, num_frames = audio(*FRAMES)
    dirty = features.clone()
    for row, frames in enumerate(FRAMES):
        dirty[row, frames:] = 1e3
    inner_layers = [] if kind == "sew" else [1, 2]  # whose layers have half the rate
    states, lengths = encoder.encode_layers(dirty, num_frames, inner_layers)
    assert lengths.tolist() == encoder.output_frames(num_frames).tolist()
    weights = torch.randn(encoder.d_model, generator=torch.Generator().manual_seed(2))
    expected_loss = loss = torch.zeros(())
    for row, length in enumerate(lengths):
        expected = theirs(kind, model, features[row, : FRAMES[row]].flatten())
        assert kind in ("whisper", "wav2vec2-bert") or len(expected.last_hidden_state[0]) == length
        pairs = [(states[-1], expected.last_hidden_state)]
        pairs += [(states[at - 1], expected.hidden_states[at]) for at in inner_layers]
        # their filter banks are rounded to 32 bits, which layers enlarge
        atol = 1e-4 if kind == "wav2vec2-bert" else 1e-5
        for state, alone in pairs:
            torch.testing.assert_close(state[row, :length], alone[0, :length], rtol=1e-5, atol=atol)
        loss = loss + (states[-1][row, :length] @ weights).square().mean()
        expected_loss = expected_loss + (expected.last_hidden_state[0, :length] @ weights).square().mean()
    (loss.backward(), expected_loss.backward())
    ours = dict(gradients(encoder.model))
    reference = dict(gradients(model.get_encoder() if kind == "whisper" else model))
    assert "embed_positions.weight" not in ours
    assert ours.keys() == reference.keys()
    largest = max(float(gradient.abs().max()) for gradient in reference.values())
    for parameter, gradient in reference.items():
        torch.testing.assert_close(ours[parameter], gradient, rtol=1e-4, atol=atol * max(1.0, largest), msg=parameter)


@pytest.mark.parametrize("name", ["wav2vec2, layer norm", "w2v-bert", "whisper"])
def test_an_encoding_is_in_the_middle_of_the_audio_that_it_is_made_of(name, tmp_path, monkeypatch):
    monkeypatch.setattr("asr.models.encoders.pretrained.normalized", lambda x, *_, **__: x)  # it sees all
    save_model(tmp_path, name)
    encoder = encoder_for(tmp_path).eval()
    num_frames = 3000 if name == "whisper" else 60
    features, lengths = audio(num_frames)

    def front_end(frames: Tensor) -> Tensor:
        if name == "whisper":
            mels = encoder.mels(frames.flatten(1))
            return encoder.model.conv2(encoder.model.conv1(mels)).mT
        samples = frames.flatten(1)
        return encoder.mels(samples, 160 * lengths) if encoder.mels else encoder.model.feature_extractor(samples).mT

    samples = features.reshape(1, -1, 1)
    middle = middle_of_what_is_seen(lambda x: front_end(x.reshape(1, -1, 160)), samples, 8) / 160
    assert middle == pytest.approx(encoder.center_frames + 8 * encoder.subsampling_factor, abs=0.1)


def test_an_utterance_too_short_for_an_encoding_spoils_nothing(folder):
    encoder = encoder_for(folder).eval()
    encodings, lengths = encoder(*audio(30, 1, 2))
    assert lengths.tolist() == [14, 0, 0]
    assert encodings.isfinite().all()
    alone, _ = encoder(*audio(30))
    torch.testing.assert_close(encodings[:1], alone, rtol=1e-5, atol=1e-5)
    assert encoder(*audio(1))[1].tolist() == [0]


def test_audio_longer_than_whispers_window_is_encoded_window_by_window(tmp_path):
    model = save_model(tmp_path, "whisper", max_source_positions=50)  # of a second
    encoder = encoder_for(tmp_path).eval()
    features, num_frames = audio(150, 90)
    (encodings,), lengths = encoder.encode_layers(features, num_frames, ())
    assert (lengths.tolist(), encodings.shape[1]) == ([75, 45], 75)
    with torch.no_grad():
        second = features[:1, 100:].flatten(1)
        window = torch.nn.functional.pad(second, (0, 50 * 160))
        expected = model.get_encoder()(encoder.mels(window)).last_hidden_state  # type: ignore[misc]
    torch.testing.assert_close(encodings[0, 50:], expected[0, :25], rtol=1e-5, atol=1e-5)


def test_layers_are_weighted_by_what_is_learned(folder):
    encoder = encoder_for(folder, layers="weighted", train="head").eval()
    features, num_frames = audio(60, 50)
    *inner, mean = encoder.encode_layers(features, num_frames, [1, 2])[0]
    last = encoder_for(folder, train="head").eval()(features, num_frames)[0]
    with torch.no_grad():
        encoder.layer_logits.copy_(torch.tensor([-100.0, 0.0, -100.0, 0.0]))
    torch.testing.assert_close(encoder(features, num_frames)[0], (inner[0] + last) / 2)
    assert not torch.allclose(mean, last)
    encoder.train()(features, num_frames)[0].sum().backward()
    assert [name for name, _ in gradients(encoder)] == ["layer_logits"]


TRAINED = {
    "all": ({}, r"model\.(masked_spec_embed|feature_projection|encoder)\b.*"),
    "all, with convolutions": ({"freeze_convolutions": False}, r"model\..*"),
    "head": ({"train": "head"}, r"nothing"),
    "last_n": ({"train": "last_n", "last_n": 2}, r"model\.encoder\.layers\.[12]\..*"),
    "adapters": (ADAPTED, r"model\.encoder\.layers\.\d\.attention\.[qv]_proj\.lora_[AB]\.default\.weight"),
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", TRAINED)
def test_what_is_trained_gets_gradients_and_is_saved_and_nothing_else(case, checkpointing, folder):
    options, pattern = TRAINED[case]
    masks = Masks(time_share=0.3)
    encoder = encoder_for(folder, masks=masks, gradient_checkpointing=checkpointing, layers="weighted", **options)
    encodings, _ = encoder(*audio(60, 50))
    encodings.square().sum().backward()
    trained = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in encoder.named_parameters() if re.fullmatch(pattern, name)} | {"layer_logits"}
    assert trained == {name for name, _ in gradients(encoder)}
    assert encoder.unsaved == (
        set() if case.startswith("all") else {n for n, _ in encoder.named_parameters()} - trained
    )


@pytest.mark.parametrize(
    ("options", "is_frozen", "moves"),
    [
        ({}, False, True),
        ({}, True, False),  # during the first updates
        ({"train": "head"}, False, False),
        ({"train": "adapters", "lora": Lora(target_modules=["linear_q"])}, False, False),
    ],
)
def test_statistics_of_a_frozen_batch_norm_stand_still(options, is_frozen, moves, tmp_path):
    save_model(tmp_path, "conformer")
    encoder = encoder_for(tmp_path, **options)
    encoder.is_frozen = is_frozen
    before = {name: tensor.clone() for name, tensor in encoder.named_buffers() if "running" in name}
    encoder(*audio(*FRAMES))
    moved = [name for name, tensor in encoder.named_buffers() if name in before and (tensor != before[name]).any()]
    assert len(before) == 2 * encoder.num_layers
    assert len(moved) == len(before) * moves


def test_masks_depend_on_torchs_generator_alone_and_cover_their_share():
    torch.manual_seed(1)
    drawn = span_masks([400, 200], 400, 0.3, 10)
    torch.manual_seed(1)
    assert torch.equal(drawn, span_masks([400, 200], 400, 0.3, 10))
    assert not drawn[1, 200:].any()
    # spans meet: 12 of 10 starts among 391 cover at most 120 frames, and hardly less than half of them
    assert 60 <= int(drawn[0].sum()) <= 130


@pytest.mark.parametrize("name", ["wav2vec2, group norm", "whisper"])
def test_masks_can_be_drawn_for_a_page_as_spans_of_frames(name, tmp_path):
    save_model(tmp_path / "model", name)
    encoder = encoder_for(tmp_path / "model", masks=Masks(time_share=0.4))
    _, num_frames = audio(*FRAMES)
    drawn = torch.stack([encoder.example_masks(num_frames) for _ in range(50)])
    assert drawn.shape == (50, len(FRAMES), max(FRAMES))
    assert 0.1 < drawn[:, 0].float().mean() < 0.45
    save_model(tmp_path / "sew", "sew")  # of which nothing can be masked
    assert not encoder_for(tmp_path / "sew").example_masks(num_frames).any()


def test_training_draws_masks_and_dropout_and_evaluation_does_not(folder):
    encoder = encoder_for(folder, masks=Masks(time_share=0.3, channel_share=0.3))

    def encode(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return encoder(*audio(60))[0]

    assert torch.equal(encode(1), encode(1))
    assert not torch.allclose(encode(1), encode(2))
    encoder.eval()
    assert torch.equal(encode(1), encode(2))


def recognizer_for(folder: Path, **options: Any) -> Recognizer:
    encoder = encoder_for(folder, **options)
    recognizer = Recognizer(encoder, CtcHead(encoder.d_model, 6), GlobalNorm([0.0] * 160, [1.0] * 160))
    initialize(recognizer)
    return recognizer


def test_a_checkpoint_holds_what_was_trained_and_is_loaded_onto_the_same_base(folder):
    first = recognizer_for(folder, **ADAPTED)
    with torch.no_grad():
        for parameter in first.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    saved = {name: tensor for name, tensor in first.state_dict().items() if name not in first.unsaved}
    num_saved = sum(tensor.numel() for tensor in saved.values())
    adapters = 3 * 2 * 2 * (16 + 16)  # layers, projections, rank, sizes
    assert num_saved == adapters + 6 * 16 + 6 + 2 * 160  # and the head, and a normalization that changes nothing
    second = recognizer_for(folder, **ADAPTED)
    load_weights(second, saved)
    features, num_frames = audio(60, 50)
    expected = first.eval()(features, num_frames)[0]
    assert torch.equal(second.eval()(features, num_frames)[0], expected)
    second.encoder.merge_adapters()
    torch.testing.assert_close(second(features, num_frames)[0], expected, rtol=1e-4, atol=1e-5)
    from transformers import AutoModel

    plain = AutoModel.from_pretrained(folder).eval()
    plain.load_state_dict(second.encoder.merged_weights(), strict=False)
    alone = plain(torch.nn.functional.layer_norm(features[:1].flatten(1), (9600,))).last_hidden_state
    torch.testing.assert_close(alone[0], expected[0], rtol=1e-3, atol=1e-3)  # another epsilon in their normalization


def test_a_ctc_head_and_its_tokens_are_taken_from_a_model_of_transformers(tmp_path):
    model = save_ctc_model(tmp_path)
    pieces, weights = ctc_head(find_snapshot(str(tmp_path)))
    assert pieces == ["<blk>", "<unk>", "\u2581", *LETTERS]
    recognizer = recognizer_for(tmp_path).eval()
    head = CtcHead(16, len(pieces))
    head.load_state_dict({name.removeprefix("head."): weight for name, weight in weights.items()})
    features, num_frames = audio(60)
    ours = head.frame_log_probs(recognizer(features, num_frames)[0])
    logits = model(normalized(features.flatten(1), 160 * num_frames)).logits
    torch.testing.assert_close(ours, logits[..., [0, 3, *range(4, 9)]].log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_a_model_without_a_ctc_head_of_characters_is_no_source(folder, tmp_path):
    with pytest.raises(ValueError, match="CTC head"):
        ctc_head(find_snapshot(str(folder)))
    save_ctc_model(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "<unk>": 1, "word": 2}))
    with pytest.raises(ValueError, match="word"):
        ctc_head(find_snapshot(str(tmp_path)))


def test_initialization_leaves_a_pretrained_encoder_alone(folder):
    weights = find_snapshot(str(folder)).weights()
    for name, tensor in recognizer_for(folder).encoder.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_other_weights_than_those_of_the_run_are_refused(folder, tmp_path):
    source = encoder_for(folder).source
    save_model(tmp_path, hidden_size=16, layer_norm_eps=1e-6, num_hidden_layers=2)
    with pytest.raises(ValueError, match="SHA-256"):
        encoder_for(tmp_path, source=source)


@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        ({"model_type": "unheard"}, {}, "unheard"),
        ({"model_type": "bert"}, {}, "bert"),
        ({"model_type": None}, {}, "model_type"),
        ({"num_hidden_layers": 4}, {}, "lack"),
        ({"add_adapter": True}, {}, "add_adapter"),
        ({}, {"train": "adapters", "lora": Lora(target_modules=["unheard"])}, "target_modules"),
        ({}, {"train": "adapters", "lora": Lora(target_modules=["q_proj", "value"])}, "'value'"),
        ({}, {"train": "adapters", "lora": Lora(target_modules=["q_proj", "conv"])}, "'conv'"),
        ({}, {"train": "adapters", "lora": Lora(target_modules=[])}, "target_modules"),
        ({}, {"train": "last_n"}, "last_n"),
        ({}, {"train": "last_n", "last_n": 4}, "last_n"),
    ],
)
def test_what_cannot_work_is_refused(change, options, named, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=named):
        encoder_for(tmp_path, **options)


def test_a_models_files_run_no_code(folder, tmp_path):
    """What names code in a config is dropped, and a pickle that would run some is not opened."""

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    code = {"auto_map": {"AutoModel": "modeling.Own"}, "_attn_implementation": "somebody/kernel", "dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config | code))
    (tmp_path / "modeling.py").write_text("raise SystemExit")
    encoder = encoder_for(tmp_path)
    source = encoder.source | {"config": json.dumps(config | code)}  # as a checkpoint of others may have it
    for built in (encoder, encoder_for(tmp_path, source=source)):
        assert built.model.config._attn_implementation == "sdpa"
        assert not hasattr(built.model.config, "auto_map")
    (tmp_path / "model.safetensors").unlink()
    torch.save({"weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        encoder_for(tmp_path)
    assert not (tmp_path / "ran").exists()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 380267417\n"


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        *((name, lambda _: POINTER, "git lfs pull") for name in ("model.safetensors", "pytorch_model.bin")),
        *((name, lambda content: content[:2000], "damaged") for name in ("model.safetensors", "pytorch_model.bin")),
        *((name, lambda _: b"", "damaged") for name in ("model.safetensors", "pytorch_model.bin")),
        ("pytorch_model.bin", lambda _: b"<html>", "damaged"),
        ("pytorch_model.bin", lambda _: pickle.dumps({"a": Path()}), "more than tensors"),
        ("model.safetensors.index.json", lambda _: b"{}", "weight_map"),
        ("config.json", lambda _: POINTER, "git lfs pull"),
    ],
)
def test_files_of_a_model_that_are_not_whole_are_named_in_one_line(name, change, named, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if name == "pytorch_model.bin":
        torch.save(safetensors.torch.load_file(tmp_path / "model.safetensors"), tmp_path / name)
        (tmp_path / "model.safetensors").unlink()
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match=named) as refused:
        describe(str(tmp_path))
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(value, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    state = safetensors.torch.load_file(folder / "model.safetensors")
    state["encoder.layer_norm.weight"][3] = value
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: encoder\.layer_norm\.weight"):
        describe(str(tmp_path))


def test_a_name_that_the_hub_cannot_be_asked_for_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("nobody/nothing", str(tmp_path / "nowhere")):
        with pytest.raises(ValueError, match=name):
            find_snapshot(name)


def test_the_licence_is_read_from_the_models_card(folder, tmp_path):
    assert find_snapshot(str(folder)).license() == "not named"
    for card, named in (
        ("---\nlicense: apache-2.0\ntags: [a]\n---\nA model", "apache-2.0"),
        ("license: mit", "not named"),
    ):
        (tmp_path / "README.md").write_text(card)
        assert find_snapshot(str(tmp_path)).license() == named
