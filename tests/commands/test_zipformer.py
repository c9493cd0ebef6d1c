"""A causal Zipformer from the command line to a stream."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import soundfile

from tests.commands.conftest import TINY, Workplace

PAGE = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
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


def streamed_text() -> str:
    """Run the block of the documentation that streams talk.flac, and return what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    printed: list[str] = []
    exec(code, {"print": printed.append})
    return " ".join(filter(None, printed))


def test_it_trains_decodes_and_streams_as_the_documentation_shows(trained, tmp_path, monkeypatch):
    workplace = Workplace(tmp_path)
    printed = workplace.run("train", *OPTIONS, "run_dir=runs/causal", f"data.dir={trained.folder / 'data' / 'digits'}")
    assert "WER" in printed
    monkeypatch.chdir(tmp_path)
    samples = np.random.default_rng(0).normal(0, 0.1, 48_000 * 3)
    soundfile.write("talk.flac", samples, 48_000)
    transcribed = workplace.run("transcribe", "run=runs/causal", "audio=talk.flac", "max_segment_s=10")
    assert streamed_text() == transcribed.splitlines()[-1].partition("\t")[2]
