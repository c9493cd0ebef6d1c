"""asr-export: what lies in the folder, and what is refused."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import soundfile

from asr.config.restore import recognizer_of
from asr.training.checkpoints.loading import checkpoint_file, load_checkpoint
from tests.small_runs import TINY

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "new" / "out"
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={folder}", "quantize=int8")
    assert ended.code == 0, ended.printed
    return folder, ended.printed


def test_a_folder_holds_all_that_decoding_needs(exported):
    folder, printed = exported
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    wavs = ["test_wavs/0.wav", "test_wavs/trans.txt"]
    assert sorted(files) == ["README.md", "model.int8.onnx", "model.onnx", *wavs, "tokens.txt"]
    assert soundfile.info(folder / "test_wavs" / "0.wav").samplerate == 16_000
    lines = (folder / "tokens.txt").read_text().splitlines()
    assert lines[:3] == ["<blk> 0", "<unk> 1", "\u2581 2"]
    assert re.search(
        r"model\.onnx: 0\.\d MB, log-probabilities differ from PyTorch's by at most \d\.\de-0[5-9]", printed
    )
    assert "model.int8.onnx: 0" in printed
    assert re.search(r"^test_wavs/0\.wav: digits-test-\d+ of \S+data/digits/\S+, with its transcript", printed, re.M)
    assert printed.splitlines()[-1] == f"exported: {folder}"


def test_no_recording_is_given_away_where_none_shall_be(small_run, tmp_path):
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={tmp_path}/out", "test_wav=false")
    assert ended.code == 0, ended.printed
    assert not (tmp_path / "out" / "test_wavs").exists()
    assert "FILE.wav" in (tmp_path / "out" / "README.md").read_text()


def test_shards_of_features_hold_no_recording(small_run, tmp_path):
    shards = ("data.storage=shar", f"data.storage.dir={tmp_path}/shards", f"data.dir={tmp_path}/data", "augment=none")
    words = (*TINY, "features=log_mel_precomputed", *shards, "decode_test=false", f"run_dir={tmp_path}/run")
    ended = small_run.run("train", *words)
    assert ended.code == 0, ended.printed
    ended = small_run.run("export", f"run={tmp_path}/run", f"output={tmp_path}/out")
    assert ended.code == 0, ended.printed
    assert "hold features, no audio: no recording is exported (test_wav=false asks for none)" in ended.printed
    assert "FILE.wav" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.skipif(find_spec("sherpa_onnx") is None, reason="sherpa-onnx is not installed (extra dev)")
def test_the_page_beside_it_decodes(exported):
    folder, _ = exported
    page = (folder / "README.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert f"The text is `{' '.join(done.stdout.split())}`." in page


def test_nothing_is_overwritten(exported, small_run):
    folder, _ = exported
    before = (folder / "README.md").stat()
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={folder}")
    assert ended.code == 2
    assert ended.last_line == f"asr-export: output: '{folder}' exists; name another folder, or remove it"
    assert (folder / "README.md").stat() == before


def test_a_graph_that_gives_something_else_leaves_nothing(small_run, tmp_path):
    exact = {"asr.export.verify.LARGEST_DIFFERENCE": 0.0}
    words = (f"run={small_run.run_dir}", f"output={tmp_path}/out")
    ended = small_run.run("export", *words, constants=exact)
    assert ended.code == 1
    assert ended.last_line.startswith("asr-export: log-probabilities of the export differ from the recognizer's by ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["format=torch", "quantize=int8"], "quantize=int8 is for format=onnx, given format=torch"),
        (["format=safetensors", "streaming=true"], "format=safetensors is all weights of the run; leave streaming and"),
        (["streaming=true"], "streaming=true: TransformerEncoder sees whole utterances"),
        (["model_type=transducer"], "model_type=transducer: CtcHead has none; give model_type=ctc"),
        (["format=tflite"], "given 'tflite'"),
        (["quantize=int4"], "given 'int4'"),
    ],
)
def test_options_that_cannot_be_are_refused(small_run, tmp_path, words, said):
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={tmp_path}/out", *words)
    assert (ended.code, said in ended.printed) == (2, True), ended.printed
    assert list(tmp_path.iterdir()) == []


def test_weights_alone_are_those_of_the_checkpoint(small_run, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed (extra export)")
    words = (f"run={small_run.run_dir}", f"output={tmp_path}/out", "format=safetensors")
    ended = small_run.run("export", *words)
    assert ended.code == 0, ended.printed
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("README.md", "config.json", "model.safetensors", "tokens.txt")
    ]
    weights = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    made = recognizer_of(load_checkpoint(checkpoint_file(str(small_run.run_dir))))
    made.load_state_dict(weights)
    assert "head.project.weight" in weights
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["encoder"]["_target_"] == "asr.models.encoders.transformer.TransformerEncoder"


def test_torchscript_is_read_by_torch_alone(small_run, tmp_path):
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={tmp_path}/out", "format=torch")
    assert ended.code == 0, ended.printed
    program = (
        "import torch; m = torch.jit.load('model.pt'); print(*m(torch.zeros(2, 50, 80), torch.tensor([50, 40]))[1])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "tensor(11) tensor(9)"


def test_a_missing_package_is_named(small_run, tmp_path):
    words = (f"run={small_run.run_dir}", f"output={tmp_path}/out")
    ended = small_run.run(
        "export", *words, constants={"asr.export.write.PACKAGES": {"onnx": ("onnx", "no_such_package")}}
    )
    assert (ended.code, "format=onnx needs the packages of the extra export" in ended.printed) == (1, True)
    assert "no_such_package is missing: python3 scripts/setup.py export" in ended.printed
