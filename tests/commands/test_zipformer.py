"""A causal Zipformer from the command line to a stream."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import soundfile

from tests.commands.conftest import TINY, Workplace

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


def streamed_text(samples: np.ndarray) -> str:
    """Run the README's lines, and return the text of the last one, with the finals before it."""
    section = README.split("\n## Live streams\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    names: dict = {
        "microphone": np.array_split(samples, 37),
        "finals": [],
        "print": lambda text: names["finals"].append(text),
    }
    exec(re.sub(r"\n(    partial = .*)", r"\n\1\n    finals += [partial.text] * partial.is_final", code), names)
    return " ".join(filter(None, names["finals"]))


def test_it_trains_decodes_and_streams_as_the_readme_shows(trained, tmp_path, monkeypatch):
    workplace = Workplace(tmp_path)
    printed = workplace.run("train", *OPTIONS, f"data.dir={trained.folder / 'data' / 'digits'}")
    assert "WER" in printed
    monkeypatch.chdir(tmp_path)
    samples = np.random.default_rng(0).normal(0, 0.1, 48_000 * 3).astype(np.float32)
    soundfile.write("noise.wav", samples, 48_000, subtype="FLOAT")
    transcribed = workplace.run("transcribe", "run=runs/latest", "audio=noise.wav", "max_segment_s=10")
    assert streamed_text(samples) == transcribed.splitlines()[-1].partition("\t")[2]
