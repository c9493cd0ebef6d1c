import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse.qa import validate_recordings_and_supervisions

from asr.recipes.custom.prepare import prepare_custom


def wavs(folder: Path, count: int) -> list[str]:
    rng = np.random.default_rng(0)
    names = [f"audio {index}.wav" for index in range(count)]
    for name in names:
        soundfile.write(folder / name, rng.normal(size=8000) * 0.1, 8000)
    return names


def table(folder: Path, *lines: str) -> str:
    (folder / "table.tsv").write_text("\n".join(lines))
    return str(folder / "table.tsv")


def ids(corpus) -> dict[str, list[str]]:
    return {name: [s.id for s in manifests.supervisions] for name, manifests in corpus.splits.items()}


def test_a_table_with_splits_is_taken_as_it_is(tmp_path, capsys):
    a, b, c, d = wavs(tmp_path, 4)
    source = table(
        tmp_path,
        "split\ttext\taudio\tspeaker\tmood",
        f'train\tğüzel “quoted” "text"\t{a}\tanna\thappy',
        f"dev\tमुझे हिन्दी\t{b}\tbea\t",
        f"test-other\t你\u2028好\t{tmp_path / c}\tcem\t",
        f"test-clean\tcafe\u0301\t{d}\t\t",
    )
    corpus = prepare_custom(tmp_path / "out", source=source)
    assert set(corpus.splits) == {"train", "dev", "test-other", "test-clean"}
    texts = {s.text for manifests in corpus.splits.values() for s in manifests.supervisions}
    assert texts == {'ğüzel “quoted” "text"', "मुझे हिन्दी", "你\u2028好", "cafe\u0301"}
    assert "not used: mood" in capsys.readouterr().out.replace("\n", " ")
    for manifests in corpus.splits.values():
        validate_recordings_and_supervisions(manifests.recordings, manifests.supervisions)


def test_missing_splits_hold_out_whole_speakers(tmp_path):
    names = wavs(tmp_path, 40)
    source = table(tmp_path, "audio\ttext\tspeaker", *(f"{n}\thi\tspeaker{i % 10}" for i, n in enumerate(names)))
    corpus = prepare_custom(tmp_path, source=source)
    speakers = {name: {s.speaker for s in m.supervisions} for name, m in corpus.splits.items()}
    assert set(speakers) == {"train", "dev", "test"}
    assert sum(map(len, speakers.values())) == 10
    assert ids(prepare_custom(tmp_path, source=source)) == ids(corpus)
    assert ids(prepare_custom(tmp_path, source=source, seed=2)) != ids(corpus)


def test_options_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.source"):
        prepare_custom(tmp_path)
    with pytest.raises(ValueError, match="dev_fraction"):
        prepare_custom(tmp_path, source=str(tmp_path), dev_fraction=0.9)


def test_real_telephone_prompts_are_read(shared_data, tmp_path):
    with tarfile.open(shared_data / "asterisk_en.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "asterisk_en"
    lines = (folder / "transcripts.tsv").read_text().splitlines()
    source = table(folder, "audio\tspeaker\ttext\tsplit", *lines)
    corpus = prepare_custom(tmp_path, source=source)
    assert sum(map(len, ids(corpus).values())) == len(lines)
    assert corpus.dropped == []
    assert set(corpus.splits) == {"train", "dev", "test"}
