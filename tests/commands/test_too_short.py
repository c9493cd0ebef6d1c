"""Utterances that are too short for the encoder of a run: left out, counted and listed by each run."""

import numpy as np
import soundfile

from tests.small_runs import TINY_MODEL

RATE_HZ = 16_000


def test_a_run_lists_the_cuts_that_are_too_short_in_its_folder(programs, tmp_path):
    rows = ["audio\ttext\tsplit"]
    # of a second of audio a transformer leaves 24 frames
    for index, (text, split) in enumerate([("ab", "train"), ("ab" * 13, "train"), ("ab", "dev"), ("ba", "test")]):
        audio = np.random.default_rng(index).normal(size=RATE_HZ) * 0.1
        soundfile.write(tmp_path / f"{index}.wav", audio, RATE_HZ)
        rows.append(f"{index}.wav\t{text}\t{split}")
    (tmp_path / "table.tsv").write_text("\n".join(rows))
    words = ("recipe=custom/transformer_ctc", "data.source=table.tsv", "run_dir=run", *TINY_MODEL)
    ended = programs.run("train", *words, cwd=tmp_path)
    assert ended.code == 0, ended.printed
    listed = (tmp_path / "run" / "too_short.tsv").read_text().splitlines()
    assert listed == ["split\titem\treason", "train\t1\ttoo short for its transcript: 24 frames, 26 needed"]
