"""A small corpus in the form that the recipe an4 reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SPEAKERS = {"train": ("fash", "fbbh", "mjwl", "mrcb", "mtcv"), "test": ("fcaw", "mmxg")}
TEXTS = ("yes", "u m n y h six", "rubout g m", "october twenty four", "enter seven")
SMALL = {"num_dev_speakers": 2}


def write_source(folder: Path, seed: int = 0) -> Path:
    """Write a small corpus in the recipe's own form; return its folder."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    lines, end = ["id\tspeaker\ttext\tsplit\tstart\tend"], 0
    for split, speakers in SPEAKERS.items():
        for speaker in speakers:
            for number, text in enumerate(TEXTS):
                start, end = end, end + int(rng.integers(120, 160))
                lines.append(f"an{number}-{speaker}-b\t{speaker}\t{text}\t{split}\t{start}\t{end}")
    (folder / "index.tsv").write_text("\n".join(lines) + "\n")
    np.savez_compressed(folder / "mfcc13.f16.npz", mfcc=rng.normal(size=(end, 13)).astype(np.float16))
    return folder
