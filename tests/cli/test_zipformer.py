"""A causal Zipformer from the command line to a stream."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.cli.builders.restore import recognizer_of
from asr.models.recognizer import Recognizer
from asr.training.checkpoints import checkpoint_file, load_checkpoint
from tests.cli.conftest import TINY, Workplace

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SIZES = (
    "encoder_dim=[16,24,16]",
    "encoder_unmasked_dim=[16,16,16]",
    "feedforward_dim=[16,16,16]",
    "num_encoder_layers=[1,1,1]",
)
CHUNKS = ("causal=true", "chunk_size=[16,8,-1]", "left_context_frames=[32]", "subsampling_channels=[2,4,4]")
OPTIONS = (
    *(word for word in TINY if not word.startswith("encoder.")),
    "encoder=zipformer_xs",
    *(f"encoder.{word}" for word in (*SIZES, *CHUNKS)),
    "trainer.max_steps=4",
    "trainer.val_check_interval=2",
    "weights=average",
    "logger=csv",
)
NUM_FRAMES = 203


def chunks_of(features: Tensor, size: int, shift: int) -> list[tuple[Tensor, Tensor]]:
    starts = range(0, features.shape[1], shift)
    parts = [features[:, start : start + size] for start in starts]
    return [(F.pad(part, (0, 0, 0, size - part.shape[1])), torch.tensor([part.shape[1]])) for part in parts]


def streamed(recognizer: Recognizer, features: Tensor) -> Tensor:
    """Run the README's lines, and return their log-probabilities."""
    section = README.split("\n## Zipformer\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    before, _, loop = code.partition("# each (1,")
    names: dict = {}
    exec(before, names)
    assert all(map(torch.equal, names["recognizer"].parameters(), recognizer.parameters()))
    names["chunks"] = chunks_of(features, names["streaming"].num_features, names["streaming"].shift_features)
    names["found"] = []
    exec(f"# each (1,{loop}    found.append(log_probs[:, : int(lengths)])\n", names)
    return torch.cat(names["found"], dim=1)


def test_it_trains_decodes_and_streams_as_the_readme_shows(trained, tmp_path, monkeypatch):
    printed = Workplace(tmp_path).run("train", *OPTIONS, f"data.dir={trained.folder / 'data' / 'digits'}")
    assert "WER" in printed
    monkeypatch.chdir(tmp_path)
    recognizer = recognizer_of(load_checkpoint(checkpoint_file("runs/latest")))
    features = torch.randn(1, NUM_FRAMES, 80)
    found = streamed(recognizer, features)
    with torch.inference_mode():
        encodings, lengths = recognizer(features, torch.tensor([NUM_FRAMES]))
        whole = recognizer.head.frame_log_probs(encodings)
    assert found.shape == (1, int(lengths), whole.shape[2])
    torch.testing.assert_close(found, whole[:, : int(lengths)], rtol=1e-5, atol=1e-5)
