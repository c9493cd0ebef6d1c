"""Every kind of export in onnxruntime, TorchScript and sherpa-onnx, against PyTorch."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from asr.decoding.greedy import CtcGreedy, TransducerGreedy
from asr.export.graphs import export_of
from asr.export.write import check_close, check_equal, write_onnx_files, write_torchscript
from asr.features.log_mel import GlobalNorm
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.heads.transducer import TransducerCtcHead, TransducerHead
from asr.models.recognizer import Recognizer
from tests.models.encoders import CASES, make_zapformer
from werdict.errors import RunFailed

from .recognizers import NUM_FEATURES, RATE, VOCAB, features_of, noises, recognizer, sherpa, text_of, write_tokens

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")

from asr.export.onnx_files import onnx_session


def transformer():
    return TransformerEncoder(NUM_FEATURES, d_model=24, num_layers=1, num_heads=3, d_feedforward=32)


def zipformer(causal=True, chunk_size=(8,), num_features=NUM_FEATURES, channels=(2, 4, 8), left=(16,)):
    return ZipformerEncoder(
        num_features,
        encoder_dim=[16, 24],
        encoder_unmasked_dim=[16, 16],
        feedforward_dim=[24, 32],
        num_encoder_layers=[1, 2],
        num_heads=[4, 2],
        cnn_module_kernel=[7, 5],
        downsampling_factor=[1, 4],
        subsampling_channels=channels,
        causal=causal,
        chunk_size=chunk_size,
        left_context_frames=left,
    )


def streaming_zapformer():
    return make_zapformer(causal=True, chunk_size=8)


def transducer(width, head=TransducerHead):
    return head(width, VOCAB, predictor_dim=8, joiner_dim=16)


def with_ctc(width):
    return transducer(width, TransducerCtcHead)


@dataclass(frozen=True)
class Kind:
    name: str
    encoder: object
    head: object
    model_type: str
    streaming: bool


def ctc(width):
    return CtcHead(width, VOCAB)


KINDS = [
    *(Kind(f"CTC, {case.name}", case.make, ctc, "ctc", False) for case in CASES),
    Kind("offline transducer", transformer, transducer, "transducer", False),
    Kind("streaming CTC", zipformer, ctc, "ctc", True),
    Kind("streaming transducer", zipformer, transducer, "transducer", True),
    Kind("streaming, CTC of both", zipformer, with_ctc, "ctc", True),
    Kind("streaming CTC of a Zapformer", streaming_zapformer, ctc, "ctc", True),
    Kind("streaming transducer of a Zapformer", streaming_zapformer, transducer, "transducer", True),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def written(request, tmp_path_factory):
    """Return the kind, the recognizer, its export and the folder, in which what was written was checked."""
    kind, folder = request.param, tmp_path_factory.mktemp("written")
    made = recognizer(kind.encoder, kind.head)
    export = export_of(made, kind.model_type, kind.streaming)
    lines = [
        *write_onnx_files(export, made.normalize, folder, quantize=True),
        *write_torchscript(export, made.normalize, folder),
    ]
    assert len(lines) == 3
    assert not made.training
    return kind, made, export, folder


def test_files_have_the_names_that_users_of_sherpa_expect(written):
    kind, _, _, folder = written
    names = ["model"] if kind.model_type == "ctc" else ["decoder", "encoder", "joiner"]
    small = [name for name in names if name != "decoder"]
    expected = [
        *(f"{name}.{end}" for name in names for end in ("onnx", "pt")),
        *(f"{name}.int8.onnx" for name in small),
    ]
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".txt") == sorted(expected)


def test_sherpa_writes_the_texts_that_pytorch_writes(written):
    kind, made, export, folder = written
    if not export.encoder.in_sherpa:
        pytest.skip("sherpa-onnx has no such states")
    runtime = sherpa()
    shared = {"tokens": write_tokens(folder), "num_threads": 1, "sample_rate": RATE, "feature_dim": NUM_FEATURES}
    if kind.model_type == "ctc":
        online, offline = runtime.OnlineRecognizer.from_zipformer2_ctc, runtime.OfflineRecognizer.from_zipformer_ctc
        decoder = (online if kind.streaming else offline)(model=str(folder / "model.onnx"), **shared)
    else:
        files = {name: str(folder / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")}
        recognizers = runtime.OnlineRecognizer if kind.streaming else runtime.OfflineRecognizer
        decoder = recognizers.from_transducer(**files, **shared)
    search = CtcGreedy() if kind.model_type == "ctc" else TransducerGreedy(max_symbols=1)
    texts = []
    for audio in noises(8):
        stream = decoder.create_stream()
        stream.accept_waveform(RATE, audio)
        features = features_of(audio)
        if kind.streaming:
            stream.input_finished()
            while decoder.is_ready(stream):
                decoder.decode_stream(stream)
            texts.append(" ".join(decoder.get_result(stream).split()))
            chunks = export.encoder.chunks
            # it waits for one frame more than a chunk has
            num_chunks = -(-(features.shape[1] - chunks.num_features) // chunks.shift_features)
            features = features[:, : (num_chunks - 1) * chunks.shift_features + chunks.num_features]
            encodings, lengths = export.encoder.encodings(features, torch.tensor([features.shape[1]]))
            assert lengths.tolist() == [encodings.shape[1]] == [num_chunks * chunks.chunk_size // 2]
        else:
            decoder.decode_stream(stream)
            texts.append(" ".join(stream.result.text.split()))
            encodings, lengths = made(features, torch.tensor([features.shape[1]]))
        with torch.no_grad():
            ((found,),) = search(made.head, encodings, lengths)
        assert texts[-1] == text_of(found.tokens)
    assert len(set(texts)) > 1


@pytest.mark.parametrize("written", [kind for kind in KINDS if kind.name == "streaming CTC"], indirect=True)
def test_several_streams_are_decoded_at_once(written):
    folder = written[3]
    session = onnx_session(folder / "model.onnx")
    shapes = {one.name: [size if isinstance(size, int) else 3 for size in one.shape] for one in session.get_inputs()}
    zeros = {
        name: np.zeros(shape, np.int64 if name == "processed_lens" else np.float32) for name, shape in shapes.items()
    }
    noise = np.random.default_rng(0).standard_normal(shapes["x"]).astype(np.float32)
    (log_probs, *states) = session.run(None, zeros | {"x": noise})
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["model_type"], metadata["model_author"]) == ("zipformer2", "werdict")
    assert log_probs.shape == (3, 4, VOCAB)
    named = dict(zip([one.name for one in session.get_outputs()][1:], states, strict=True))
    assert {name.removeprefix("new_"): list(state.shape) for name, state in named.items()} == {
        name: shape for name, shape in shapes.items() if name != "x"
    }
    assert named["new_processed_lens"].tolist() == [8, 8, 8]


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (transformer, "TransformerEncoder"),
        (lambda: zipformer(causal=False), "causal"),
        (lambda: zipformer(left=(12,)), "left_context_frames 12"),
        (lambda: zipformer(num_features=100), "8 channels of 24 bins"),
        (lambda: zipformer(channels=(2, 4, 130)), "130 channels of 3 bins"),
    ],
)
def test_encoders_that_cannot_take_chunks_are_refused(encoder, said):
    made, norm = encoder(), GlobalNorm([0.0], [1.0])
    recognizer = Recognizer(made, CtcHead(made.d_model, VOCAB), norm).eval()
    with pytest.raises(ValueError, match=said):
        export_of(recognizer, "ctc", streaming=True)
    with pytest.raises(ValueError, match="model_type=transducer"):
        export_of(recognizer, "transducer", streaming=False)


def test_scores_that_are_not_finite_are_no_export(tmp_path):
    made = recognizer(CASES[2].make, ctc)
    torch.nn.init.constant_(made.head.project.weight, float("nan"))
    with pytest.raises(RunFailed, match="nan"):
        list(write_torchscript(export_of(made, "ctc", streaming=False), made.normalize, tmp_path))


def test_graphs_that_give_something_else_are_refused():
    made = recognizer(CASES[0].make, lambda width: CtcHead(width, VOCAB))
    export = export_of(made, "ctc", streaming=False)

    def call(name, inputs):
        with torch.no_grad():
            log_probs, lengths = export.expected(*inputs)
        return log_probs.roll(1, dims=-1) if wrong == "scores" else log_probs + noise, lengths + (wrong == "lengths")

    wrong, noise = "nothing", 1e-7
    assert check_equal(export, call, made.normalize) == pytest.approx(1e-7, rel=10)
    noise = 1e-3
    with pytest.raises(RunFailed, match=r"1\.0e-03"):
        check_equal(export, call, made.normalize)
    noise = float("nan")
    with pytest.raises(RunFailed, match="nan"):
        check_equal(export, call, made.normalize)
    wrong = "scores"
    with pytest.raises(RunFailed, match="eight bits"):
        check_close(export, call, made.normalize)
    wrong = "lengths"
    with pytest.raises(
        RunFailed, match=r"utterances of \[3\] frames become \[1\] in the export, \[0\] in the recognizer"
    ):
        check_equal(export, call, made.normalize)
