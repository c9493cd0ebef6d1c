"""What of the data depends on the encoder: which cuts are masked, and nothing that is stored."""

import numpy as np
import soundfile

from asr.commands import prepare
from asr.config.build import plain
from asr.config.data import data_for_run
from tests.commands.conftest import TINY
from tests.commands.test_configs import composed
from tests.data.corpora import contents, ids

RATE_HZ = 16_000
# of a second of audio a transformer leaves 24 frames, a Zipformer 23
FITS_TRANSFORMER = "ab" * 12


def words(folder, text=FITS_TRANSFORMER):
    utterances = [("ab", "train"), (text, "train"), ("ab", "dev"), ("ba", "test")]
    rows = ["audio\ttext\tsplit"]
    for index, (said, split) in enumerate(utterances):
        audio = np.random.default_rng(index).normal(size=RATE_HZ) * 0.1
        soundfile.write(folder / f"{index}.wav", audio, RATE_HZ)
        rows.append(f"{index}.wav\t{said}\t{split}")
    (folder / "table.tsv").write_text("\n".join(rows))
    return (
        "recipe=custom/transformer_ctc",
        f"data.source={folder / 'table.tsv'}",
        f"data.dir={folder / 'data'}",
        "features=log_mel_precomputed",
        "augment=specaugment",
    )


def test_an_encoder_with_another_front_end_uses_the_prepared_data_of_the_first(tmp_path, capsys):
    config = plain(composed(*words(tmp_path)))
    transformer = data_for_run(config)
    assert "too short" not in capsys.readouterr().out
    before = contents(tmp_path / "data")
    zipformer = data_for_run(plain(composed(*words(tmp_path), "encoder=zipformer_xs")))
    assert contents(tmp_path / "data") == before
    assert (transformer.fingerprint, ids(transformer, "train")) == (zipformer.fingerprint, ["0", "1"])
    assert ids(zipformer, "train") == ["0"]
    printed = capsys.readouterr().out
    assert "dropped from train: 1 × too short for its transcript\n" in printed
    assert "too short with this encoder: 1; a run lists each in too_short.tsv\n" in printed


def test_preparing_alone_says_what_is_too_short_for_the_encoder_of_the_recipe(tmp_path, capsys):
    prepare.run(composed(*words(tmp_path), "encoder=zipformer_xs", "data.by_corpus=false"))
    assert "too short with this encoder: 1;" in capsys.readouterr().out


def test_a_run_lists_the_cuts_that_are_too_short_in_its_folder(programs, tmp_path):
    tiny = [word for word in TINY if not word.startswith("data.prepare")]
    ended = programs.run("train", *words(tmp_path, "ab" * 13), *tiny, "logger=none", "run_dir=run", cwd=tmp_path)
    assert ended.code == 0, ended.printed
    listed = (tmp_path / "run" / "too_short.tsv").read_text().splitlines()
    assert listed == ["split\titem\treason", "train\t1\ttoo short for its transcript: 24 frames, 26 needed"]
