"""Weights of the authors' package become ours: every tensor is accounted for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from asr.models.encoders.zipformer.convert import convert
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from tests.models.zipformer.reference import Reference, loaded
from tests.models.zipformer.sizes import SMALL, L, M, S

ROOT = Path(__file__).parents[3]


@pytest.fixture
def convert_script() -> ModuleType:
    return loaded("convert_zipformer")


@pytest.fixture
def theirs(authors) -> dict[str, torch.Tensor]:
    return dict(Reference(authors, SMALL, causal=True).state_dict())


@pytest.fixture
def ours() -> dict[str, torch.Tensor]:
    return ZipformerEncoder(80, **SMALL, causal=True).state_dict()


def test_every_tensor_is_taken_over_or_named(theirs, ours):
    heads = {"ctc_output.1.weight": torch.zeros(5, 32), "joiner.output_linear.bias": torch.zeros(5)}
    converted = convert({**theirs, **heads}, ours)
    assert converted.weights.keys() == ours.keys()
    assert converted.other == tuple(heads)
    assert len(converted.unused) == sum(SMALL["num_encoder_layers"])
    taken = [name for name in converted.weights if not name.endswith(".probability")]
    assert len(taken) + len(converted.unused) == len(theirs)
    assert all(converted.weights[name].shape == ours[name].shape for name in taken)


def test_what_is_not_known_missing_or_of_another_size_is_refused(theirs, ours):
    with pytest.raises(ValueError, match=r"encoder\.new\.weight is no tensor"):
        convert({**theirs, "encoder.new.weight": torch.zeros(1)}, ours)
    with pytest.raises(ValueError, match=r"missing, the first encoder_embed\.out\.weight"):
        convert({name: value for name, value in theirs.items() if name != "encoder_embed.out.weight"}, ours)
    with pytest.raises(ValueError, match=r"encoder_embed\.out\.bias .* has shape \(1,\), not \(24,\)"):
        convert({**theirs, "encoder_embed.out.bias": torch.zeros(1)}, ours)
    inner, other_name = "encoder.encoders.1.encoder.layers.0.norm.bias", "encoder.encoders.1.layers.0.norm.bias"
    with pytest.raises(ValueError, match=r"norm\.bias .* is there twice"):
        convert({**theirs, other_name: theirs[inner]}, ours)
    with pytest.raises(ValueError, match="is not in the encoder; compare"):
        convert(theirs, ZipformerEncoder(80, **SMALL, causal=False).state_dict())


@pytest.mark.parametrize(
    "spoil", [Tensor.int, Tensor.cfloat, Tensor.to_sparse, lambda bias: bias.to("meta"), lambda bias: bias * torch.nan]
)
def test_what_is_no_weight_is_refused(theirs, ours, spoil):
    with pytest.raises(ValueError, match="must hold finite floating-point numbers"):
        convert({**theirs, "encoder_embed.out.bias": spoil(theirs["encoder_embed.out.bias"])}, ours)


@pytest.mark.parametrize(
    ("size", "sizes", "num_parameters"),
    [("s", S, 21_989_779), ("m", M, 63_994_103), ("l", L, 146_625_594)],
)
def test_presets_have_the_authors_sizes(convert_script, size, sizes, num_parameters):
    options = convert_script.preset(f"zipformer_{size}")
    assert {name: tuple(options[name]) for name in sizes} == sizes
    with torch.device("meta"):
        encoder = ZipformerEncoder(80, **options)
    unused = sum(width * num for width, num in zip(sizes["encoder_dim"], sizes["num_encoder_layers"], strict=True))
    assert sum(p.numel() for p in encoder.parameters()) == num_parameters - unused


def test_the_script_converts_a_file_and_overwrites_none(authors, tmp_path):
    torch.manual_seed(0)
    theirs = Reference(authors, S, causal=False).eval()
    torch.save({"model": theirs.state_dict(), "best": 1.0}, tmp_path / "theirs.pt")
    command = [sys.executable, str(ROOT / "scripts" / "convert_zipformer.py"), "theirs.pt", "ours.pt"]
    command += ["--encoder", "zipformer_s"]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "21,986,835 parameters" in printed
    assert "encoder.encoders.1.encoder.layers.0.bypass_scale" in printed
    ours = ZipformerEncoder(80, **S).eval()
    ours.load_state_dict(torch.load(tmp_path / "ours.pt", weights_only=True))
    features, num_frames = torch.randn(1, 60, 80), torch.tensor([60])
    torch.testing.assert_close(ours(features, num_frames)[0], theirs(features, num_frames)[0], rtol=1e-5, atol=1e-5)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.pt", "ours.pt"], "none.pt cannot be read"),
        (["text.pt", "ours.pt"], "text.pt cannot be read"),
        (["empty.pt", "ours.pt"], "empty.pt cannot be read"),
        (["numbered.pt", "ours.pt"], "holds more than tensors and their names"),
        (["other.pt", "ours.pt"], "holds no Zipformer"),
        (["other.pt", "nowhere/ours.pt"], "make it first"),
        (["other.pt", "ours.pt", "--num-features", "3"], "num_features must be at least 7, given 3"),
    ],
)
def test_the_script_says_what_it_cannot_convert(convert_script, tmp_path, monkeypatch, capsys, words, said):
    (tmp_path / "text.pt").write_text("no checkpoint")
    (tmp_path / "empty.pt").touch()
    torch.save({"model": {"weight": torch.zeros(1)}}, tmp_path / "other.pt")
    weight = torch.zeros(1)
    named = {"encoder_embed.conv.0.weight": weight, "encoder_embed.out.weight": weight, 3: weight}
    torch.save(named, tmp_path / "numbered.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["convert", *words, "--encoder", "zipformer_xs"])
    with pytest.raises(SystemExit, match="2"):
        convert_script.main()
    assert said in capsys.readouterr().err
