"""CTC of whole utterances in onnxruntime, TorchScript and sherpa-onnx, against PyTorch."""

import pytest
import torch

from asr.decoding.ctc_greedy import CtcGreedy
from asr.errors import RunFailed
from asr.export.choose import export_of
from asr.export.verify import check_close, check_equal
from asr.export.write import write_onnx_files, write_torchscript
from asr.models.heads.ctc import CtcHead
from asr.models.heads.ctc_attention import CtcAttentionHead
from tests.models.encoders import CASES

from .recognizers import NUM_FEATURES, RATE, VOCAB, features_of, noises, recognizer, sherpa, text_of, write_tokens

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_encoder_gives_what_it_gives_in_pytorch(case, tmp_path):
    made = recognizer(case.make, lambda width: CtcHead(width, VOCAB))
    export = export_of(made, "ctc", streaming=False)
    for line in [
        *write_onnx_files(export, made.normalize, tmp_path, quantize=True),
        *write_torchscript(export, made.normalize, tmp_path),
    ]:
        print(line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.int8.onnx", "model.onnx", "model.pt"]
    assert not made.training


@pytest.mark.parametrize("weight", [3e38, float("nan")])
def test_scores_that_are_not_finite_are_no_export(weight, tmp_path):
    made = recognizer(CASES[2].make, lambda width: CtcHead(width, VOCAB))
    torch.nn.init.constant_(made.head.project.weight, weight)
    with pytest.raises(RunFailed, match="of the recognizer itself are not finite"):
        list(write_torchscript(export_of(made, "ctc", streaming=False), made.normalize, tmp_path))


def test_what_was_checked_is_what_onnxruntime_gives(tmp_path):
    from asr.export.onnx_files import onnx_session

    made = recognizer(CASES[2].make, lambda width: CtcHead(width, VOCAB))
    list(write_onnx_files(export_of(made, "ctc", streaming=False), made.normalize, tmp_path, quantize=False))
    session = onnx_session(tmp_path / "model.onnx")
    features, num_frames = torch.randn(2, 77, NUM_FEATURES) * 3 - 6, torch.tensor([77, 31])
    log_probs, lengths = session.run(None, {"x": features.numpy(), "x_lens": num_frames.numpy()})
    encodings, expected = made(features, num_frames)
    assert lengths.tolist() == expected.tolist() == [18, 6]
    own = made.head.frame_log_probs(encodings)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(torch.from_numpy(log_probs)[row, :length], own[row, :length], atol=1e-5, rtol=1e-5)
    metadata = session.get_modelmeta().custom_metadata_map
    assert (metadata["model_type"], metadata["model_author"]) == ("zipformer2_ctc", "werdict")


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: CASES[index].name)
def test_sherpa_writes_the_texts_that_pytorch_writes(index, tmp_path):
    made = recognizer(CASES[index].make, lambda width: CtcHead(width, VOCAB))
    list(write_onnx_files(export_of(made, "ctc", streaming=False), made.normalize, tmp_path, quantize=False))
    runtime = sherpa().OfflineRecognizer.from_zipformer_ctc(
        model=str(tmp_path / "model.onnx"),
        tokens=write_tokens(tmp_path),
        sample_rate=RATE,
        feature_dim=NUM_FEATURES,
    )
    texts = []
    for audio in noises(8):
        stream = runtime.create_stream()
        stream.accept_waveform(RATE, audio)
        runtime.decode_stream(stream)
        texts.append(" ".join(stream.result.text.split()))
        features = features_of(audio)
        encodings, lengths = made(features, torch.tensor([features.shape[1]]))
        ((found,),) = CtcGreedy()(made.head, encodings, lengths)
        assert texts[-1] == text_of(found.tokens)
    assert len(set(texts)) > 1


def test_an_attention_decoder_is_left_out(tmp_path):
    made = recognizer(CASES[0].make, lambda width: CtcAttentionHead(width, VOCAB, 1, 2, 8))
    (line,) = write_onnx_files(export_of(made, "ctc", streaming=False), made.normalize, tmp_path, quantize=False)
    assert line.startswith("model.onnx: ")


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
    with pytest.raises(RunFailed, match=r"differ from the recognizer's by 1\.0e-03"):
        check_equal(export, call, made.normalize)
    noise = float("nan")
    with pytest.raises(RunFailed, match="differ from the recognizer's by nan"):
        check_equal(export, call, made.normalize)
    wrong = "scores"
    with pytest.raises(RunFailed, match="in eight bits the probabilities of tokens change by"):
        check_close(export, call, made.normalize)
    wrong = "lengths"
    with pytest.raises(
        RunFailed, match=r"utterances of \[3\] frames become \[1\] in the export, \[0\] in the recognizer"
    ):
        check_equal(export, call, made.normalize)
