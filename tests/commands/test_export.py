"""asr-export: what lies in the folder, and what is refused."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import soundfile

from asr.run.restore import recognizer_of
from asr.training.checkpoints import checkpoint_file, load_checkpoint

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra export)")


@pytest.fixture(scope="module")
def exported(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "new" / "out"
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={folder}", "quantize=int8")
    return folder, ended.printed


def test_a_folder_holds_all_that_decoding_needs(exported):
    folder, printed = exported
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    wavs = ["test_wavs/0.wav", "test_wavs/trans.txt"]
    assert sorted(files) == ["README.md", "model.int8.onnx", "model.onnx", *wavs, "tokens.txt"]
    assert soundfile.info(folder / "test_wavs" / "0.wav").samplerate == 16_000
    lines = (folder / "tokens.txt").read_text().splitlines()
    assert lines[:3] == ["<blk> 0", "<unk> 1", "\u2581 2"]
    assert re.search(r"model\.onnx: .* differ from PyTorch's by at most \d\.\de-0[5-9]", printed)
    assert re.search(r"^test_wavs/0\.wav: digits-test-\d+ of ", printed, re.M)


@pytest.mark.skipif(find_spec("sherpa_onnx") is None, reason="sherpa-onnx is not installed (group dev)")
def test_the_page_beside_it_decodes(exported):
    folder, _ = exported
    page = (folder / "README.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert f"The text is `{' '.join(done.stdout.split())}`." in page


def test_nothing_is_overwritten(exported, small_run):
    folder, _ = exported
    before = (folder / "README.md").stat()
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={folder}", code=2)
    assert f"output: '{folder}'" in ended.last_line
    assert (folder / "README.md").stat() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["format=torch", "quantize=int8"], "quantize=int8"),
        (["format=safetensors", "streaming=true"], "format=safetensors"),
        (["format=huggingface"], "format=huggingface"),
        (["streaming=true"], "streaming=true"),
        (["model_type=transducer"], "model_type=transducer"),
    ],
)
def test_options_that_cannot_be_are_refused(small_run, tmp_path, words, said):
    ended = small_run.run("export", f"run={small_run.run_dir}", f"output={tmp_path}/out", *words, code=2)
    assert said in ended.printed
    assert list(tmp_path.iterdir()) == []


def test_weights_alone_are_those_of_the_checkpoint(small_run, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed (extra export)")
    words = (f"run={small_run.run_dir}", f"output={tmp_path}/out", "format=safetensors")
    small_run.run("export", *words)
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
    words = ("format=torch", "test_wav=false")  # no recording is to be given away
    small_run.run("export", f"run={small_run.run_dir}", f"output={tmp_path}/out", *words)
    assert not (tmp_path / "out" / "test_wavs").exists()
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
