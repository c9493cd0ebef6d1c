"""Weights of the authors' package become ours: every tensor is accounted for, and outputs and gradients are theirs."""

from __future__ import annotations

import io

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
from torch import Tensor

from asr.data.features import LogMel
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.icefall_weights import convert_encoder
from asr.run.parts import outline_recognizer
from asr.run.restore import recognizer_of
from asr.run.start import read_source
from asr.text.tokenizer import icefall_tokenizer
from asr.training.checkpoints import load_checkpoint
from tests.configs import composed
from tests.models.zipformer.reference import Reference
from tests.models.zipformer.sizes import SMALL, WAVE, L, M, S


@pytest.fixture
def theirs(authors) -> dict[str, torch.Tensor]:
    return dict(Reference(authors, SMALL, causal=True).state_dict())


@pytest.fixture
def ours() -> dict[str, torch.Tensor]:
    return ZipformerEncoder(80, **SMALL, causal=True).state_dict()


def test_every_tensor_is_taken_over_or_named(theirs, ours):
    heads = {"ctc_output.1.weight": torch.zeros(5, 32), "joiner.output_linear.bias": torch.zeros(5)}
    weights, unused = convert_encoder({**theirs, **heads}, ours)
    assert weights.keys() == ours.keys()
    assert len(unused) == sum(SMALL["num_encoder_layers"])
    assert heads.keys().isdisjoint(unused)
    taken = [name for name in weights if not name.endswith(".probability")]
    assert len(taken) + len(unused) == len(theirs)
    assert all(weights[name].shape == ours[name].shape for name in taken)


def test_what_is_not_known_missing_or_of_another_size_is_refused(theirs, ours):
    first = "encoder_embed.out.weight"
    for name, changed in {
        "encoder.new.weight": {**theirs, "encoder.new.weight": torch.zeros(1)},
        first: {name: value for name, value in theirs.items() if name != first},
        "encoder_embed.out.bias": {**theirs, "encoder_embed.out.bias": torch.zeros(1)},
    }.items():
        with pytest.raises(ValueError, match=f"1 tensors do not fit the encoder: {name} "):
            convert_encoder(changed, ours)


@pytest.mark.parametrize(
    ("size", "sizes", "num_parameters"),
    [("s", S, 21_989_779), ("m", M, 63_994_103), ("l", L, 146_625_594)],
)
def test_presets_have_the_authors_sizes(script, size, sizes, num_parameters):
    options = script("bench.configs").options_from(f"encoder=zipformer_{size}").encoder.plain()
    del options["_target_"]
    assert {name: tuple(options[name]) for name in sizes} == sizes
    with torch.device("meta"):
        encoder = ZipformerEncoder(80, **options)
    unused = sum(width * num for width, num in zip(sizes["encoder_dim"], sizes["num_encoder_layers"], strict=True))
    assert sum(p.numel() for p in encoder.parameters()) == num_parameters - unused


PIECES = 20
HEADS = {
    "ctc_output.1.weight": (PIECES, 32),
    "ctc_output.1.bias": (PIECES,),
    "decoder.embedding.weight": (PIECES, 16),
    "decoder.conv.weight": (16, 4, 2),
    "joiner.encoder_proj.weight": (24, 32),
    "joiner.encoder_proj.bias": (24,),
    "joiner.decoder_proj.weight": (24, 16),
    "joiner.decoder_proj.bias": (24,),
    "joiner.output_linear.weight": (PIECES, 24),
    "joiner.output_linear.bias": (PIECES,),
    "simple_am_proj.weight": (PIECES, 32),
    "simple_am_proj.bias": (PIECES,),
    "simple_lm_proj.weight": (PIECES, 16),
    "simple_lm_proj.bias": (PIECES,),
}
SIZES = [f"encoder.{name}={list(value)}".replace(" ", "") for name, value in SMALL.items()]
WORDS = [
    *("model=pretrained.pt", "bpe_model=bpe.model", "encoder=zipformer_s", "head=transducer_ctc", "output=ours.ckpt"),
    *("head.predictor_dim=16", "head.joiner_dim=24", "data.text.case=upper", *SIZES),
]


@pytest.fixture
def exported(authors, tmp_path) -> tuple[Reference, dict[str, Tensor]]:
    """A model as icefall's export.py leaves it, with its tokenizer."""
    torch.manual_seed(0)
    encoder = Reference(authors, SMALL, causal=False).eval()
    heads = {name: torch.randn(shape) for name, shape in HEADS.items()}
    torch.save({"model": {**encoder.state_dict(), **heads}}, tmp_path / "pretrained.pt")
    texts = [f"{a} {b}" for a in ("ONE", "TWO", "THREE", "FOUR") for b in ("FIVE", "SIX", "SEVEN")] * 20
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=trained,
        vocab_size=PIECES,
        model_type="unigram",
        user_defined_symbols=["<blk>", "<sos/eos>"],
        unk_id=2,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "bpe.model").write_bytes(trained.getvalue())
    return encoder, heads


def test_a_model_becomes_a_checkpoint_that_scores_alike(exported, programs, tmp_path):
    ended = programs.run("convert", *WORDS, cwd=tmp_path)
    assert ended.printed.splitlines()[-1] == "checkpoint: ours.ckpt"
    encoder, heads = exported
    checkpoint = load_checkpoint(tmp_path / "ours.ckpt")
    recognizer = recognizer_of(checkpoint)
    features, num_frames = torch.randn(2, 60, 80), torch.tensor([60, 47])
    with torch.inference_mode():
        there, lengths = encoder(features, num_frames)
        here, found = recognizer(features, num_frames)
        torch.testing.assert_close(here[0], there[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, lengths)
        logits = there @ heads["ctc_output.1.weight"].T + heads["ctc_output.1.bias"]
        order = [0, 2, 1, *range(3, PIECES)]
        log_probs = recognizer.head.frame_log_probs(here)
        torch.testing.assert_close(log_probs[0], logits.log_softmax(dim=-1)[0, :, order], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(recognizer.head.joiner.output_linear.bias, heads["joiner.output_linear.bias"][order])
        torch.testing.assert_close(recognizer.head.joiner.encoder_proj.weight, heads["joiner.encoder_proj.weight"])
    again = programs.run("convert", *WORDS, cwd=tmp_path, code=2)
    assert "'ours.ckpt' exists; name another file" in again.printed


def test_a_training_starts_from_its_encoder(exported, tmp_path):
    options = composed("encoder=zipformer_s", *SIZES, f"init.path={tmp_path}/pretrained.pt").options
    source = read_source(options, LogMel(), outline_recognizer(options, PIECES, 80).state_dict())
    assert source is not None
    assert source.tokenizer is None
    encoder = ZipformerEncoder(80, **SMALL).eval()
    own = {name.removeprefix("encoder."): weight for name, weight in source.weights.items()}
    missing, unknown = encoder.load_state_dict(own, strict=False)
    assert all(name.endswith(".probability") for name in missing)
    assert set(unknown) == {"normalize.mean", "normalize.inverse_std"}
    features, num_frames = torch.randn(1, 60, 80), torch.tensor([60])
    with torch.inference_mode():
        there, here = exported[0](features, num_frames)[0], encoder(features, num_frames)[0]
    torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)
    assert not source.weights["normalize.mean"].any()
    assert (source.weights["normalize.inverse_std"] == 1).all()


def test_its_tokenizer_cuts_text_alike(exported, tmp_path):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bpe.model"))
    ours, order = icefall_tokenizer((tmp_path / "bpe.model").read_bytes())
    assert ours.pieces[:3] == ["<blk>", "<unk>", "<sos/eos>"]
    for text in ("ONE TWO", "SEVEN", "FOURTEEN", "OX Z", "ＯＮＥ"):
        assert [order[token] for token in ours.encode(text)] == theirs.encode(text)
        assert ours.decode(ours.encode(text)).replace("\u2047", "⁇") == theirs.decode(theirs.encode(text)).replace(
            " ⁇ ", "⁇"
        )
    # a text is never a mark
    assert {0, 2}.isdisjoint(ours.encode("<blk> <sos/eos>"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=other.pt"], "contains no Zipformer"),
        (["bpe_model=text.pt"], "bpe_model: text.pt: "),
        (["output=ours.pt"], "output must be a name that ends with .ckpt, given 'ours.pt'"),
        (["encoder.num_encoder_layers=[1,1,1]"], "tensors do not fit the encoder"),
        (["head.joiner_dim=20"], "joiner.encoder_proj.weight has shape [24, 32] there and [20, 32] here"),
        (["head=ctc_attention"], "do not fit the head"),
        (["data.text.case=keep"], "data.text.case=upper"),
    ],
)
def test_what_cannot_be_converted_is_said_and_leaves_no_file(exported, programs, tmp_path, words, said):
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"model": {"weight": torch.zeros(1)}}, tmp_path / "other.pt")
    replaced = {word.partition("=")[0] for word in words}
    kept = [
        word
        for word in WORDS
        if word.partition("=")[0] not in replaced and not (replaced == {"head"} and "head." in word)
    ]
    ended = programs.run("convert", *kept, *words, "decoder=ctc_greedy", cwd=tmp_path, code=2)
    assert said in ended.printed
    assert not list(tmp_path.glob("ours.*"))


def test_a_converted_model_decodes_transcribes_and_aligns(exported, programs, tmp_path):
    programs.run("convert", *WORDS, cwd=tmp_path)
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 32_000)
    soundfile.write(tmp_path / "a.wav", noise, 16_000)
    (tmp_path / "my.tsv").write_text("audio\ttext\na.wav\tone two\n")
    ended = programs.run("transcribe", "run=ours.ckpt", "audio=a.wav", cwd=tmp_path)
    assert ended.last_line.startswith("a.wav\t"), ended.printed
    for command in ("evaluate", "align"):
        programs.run(command, "run=ours.ckpt", "manifest=my.tsv", f"output_dir={command}", cwd=tmp_path)
    assert (tmp_path / "evaluate" / "my.hyp.txt").read_text().count("\n") == 1
    words = [line.split(" ")[4] for line in (tmp_path / "align" / "my.ctm").read_text().splitlines()]
    assert words == ["ONE", "TWO"]


NEVER, ALWAYS = 0.999999, 0.0
CONTEXT = 64
NOT_CAUSAL, UNCHUNKED, CHUNK = 0, -1, 16
CASES = [
    pytest.param(SMALL, NOT_CAUSAL, id="small"),
    pytest.param(SMALL, CHUNK, id="small-causal"),
    pytest.param(SMALL, UNCHUNKED, id="small-causal-unchunked"),
    pytest.param(WAVE, NOT_CAUSAL, id="wave"),
    pytest.param(WAVE, CHUNK, id="wave-causal"),
    pytest.param(S, NOT_CAUSAL, id="S"),
    pytest.param(S, CHUNK, id="S-causal"),
]


def pair(authors, sizes, chunk: int) -> tuple[Reference, ZipformerEncoder]:
    """Return theirs and ours with the same weights, all of which matter."""
    torch.manual_seed(0)
    causal = chunk != NOT_CAUSAL
    theirs = Reference(authors, sizes, causal, chunk if causal else -1, CONTEXT)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.01 + 0.3 * parameter.abs().mean()))
    ours = ZipformerEncoder(80, **sizes, causal=causal, chunk_size=[chunk or -1], left_context_frames=[CONTEXT])
    ours.load_state_dict(convert_encoder(theirs.state_dict(), ours.state_dict())[0])
    return theirs, ours


def backward(encoder, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return encodings and the features' gradient of a loss with random weights."""
    features = features.clone().requires_grad_()
    torch.manual_seed(1)
    encodings, _ = encoder(features, num_frames)
    torch.manual_seed(2)
    (encodings * torch.randn(encodings.shape)).sum().backward()
    return encodings.detach(), features.grad


def check_gradients(theirs: Reference, ours: ZipformerEncoder, tolerance: float) -> None:
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.named_parameters()}
    expected = convert_encoder(gradients, ours.state_dict())[0]
    for name, parameter in ours.named_parameters():
        error = (parameter.grad - expected[name]).norm()
        assert error <= tolerance * expected[name].norm() + 1e-12, name


@pytest.mark.parametrize(("sizes", "chunk"), CASES)
def test_a_padded_batch_is_encoded_as_the_authors_encode_each_utterance_alone(authors, decide, sizes, chunk):
    decide(NEVER)
    theirs, ours = (encoder.eval() for encoder in pair(authors, sizes, chunk))
    # the authors shorten the chunks of an utterance that is shorter than one
    lengths = torch.tensor([203, 130, 50 if chunk else 9])
    features = torch.randn(3, 203, 80)
    with torch.no_grad():
        encodings, num_frames = ours(features, lengths)
        for i, length in enumerate(lengths):
            expected, expected_length = theirs(features[i : i + 1, :length], lengths[i : i + 1])
            assert num_frames[i] == expected_length
            torch.testing.assert_close(encodings[i, : num_frames[i]], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("sizes", "chunk"), CASES)
def test_gradients_are_the_authors(authors, decide, double, sizes, chunk):
    decide(NEVER)
    theirs, ours = (encoder.eval() for encoder in pair(authors, sizes, chunk))
    features, num_frames = torch.randn(2, 101, 80), torch.tensor([101, 101])
    expected, expected_gradient = backward(theirs, features, num_frames)
    encodings, gradient = backward(ours, features, num_frames)
    torch.testing.assert_close(encodings, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9)
    check_gradients(theirs, ours, 1e-7)


@pytest.fixture
def same_masks(monkeypatch):
    """Let a mask depend on its utterance and on whether its channel is even: the authors draw in another order."""
    by_utterance = torch.tensor([[0.2, 0.9], [0.04, 0.5], [0.9, 0.1]])

    def rand(*shape, device=None, **options) -> torch.Tensor:
        sizes = tuple(shape[0]) if isinstance(shape[0], tuple | list | torch.Size) else shape
        place = [1] * len(sizes)
        place[sizes.index(len(by_utterance))] = len(by_utterance)
        parity = torch.arange(sizes[-1]) % 2 if place[-1] == 1 else torch.zeros(1, dtype=torch.int64)
        numbers = by_utterance[:, parity].to(torch.get_default_dtype())
        return numbers.view(*place[:-1], -1).expand(sizes) if place[-1] == 1 else numbers[:, 0].expand(sizes)

    def dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
        kept = torch.randint(100, (x.numel(),), generator=torch.Generator().manual_seed(7)) >= 100 * p
        return x * kept.view(x.shape) / (1 - p) if training else x

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)


@pytest.mark.parametrize("number", [NEVER, ALWAYS], ids=["seldom", "often"])
@pytest.mark.parametrize(("sizes", "chunk"), CASES[:5])
def test_training_is_the_authors_with_all_that_is_random_and_scheduled(
    authors, decide, double, same_masks, sizes, chunk, number
):
    """Dropout, skipped modules and layers, masked channels, balancers, whitening and limits."""
    decide(number)
    theirs, ours = (encoder.train() for encoder in pair(authors, sizes, chunk))
    theirs.set_time(2000.0)
    ours.set_trained_seconds(audio_s=1_200_000.0)
    features, num_frames = torch.randn(3, 131, 80), torch.tensor([131, 131, 131])
    expected, expected_gradient = backward(theirs, features, num_frames)
    encodings, gradient = backward(ours, features, num_frames)
    torch.testing.assert_close(encodings, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-8)
    check_gradients(theirs, ours, 1e-6)
