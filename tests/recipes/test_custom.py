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


def table(folder: Path, *lines: str, name: str = "table.tsv", newline: str = "\n") -> str:
    (folder / name).write_bytes(newline.join(lines).encode())
    return str(folder / name)


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


def test_windows_tables_are_read(tmp_path):
    a, b, c, d = wavs(tmp_path, 4)
    source = table(tmp_path, "\ufeffaudio\ttext", *(f"{name}\thello" for name in (a, b, c, d)), "", newline="\r\n")
    assert sum(map(len, ids(prepare_custom(tmp_path, source=source)).values())) == 4


def test_missing_splits_hold_out_whole_speakers(tmp_path):
    names = wavs(tmp_path, 40)
    source = table(tmp_path, "audio\ttext\tspeaker", *(f"{n}\thi\tspeaker{i % 10}" for i, n in enumerate(names)))
    corpus = prepare_custom(tmp_path, source=source)
    speakers = {name: {s.speaker for s in m.supervisions} for name, m in corpus.splits.items()}
    assert set(speakers) == {"train", "dev", "test"}
    assert sum(map(len, speakers.values())) == 10
    assert ids(prepare_custom(tmp_path, source=source)) == ids(corpus)
    assert ids(prepare_custom(tmp_path, source=source, seed=2)) != ids(corpus)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["audio\tmood", "audio 0.wav\thi"], "line 1: no column was recognized as text"),
        (["audio\ttext"], "nothing in it can be used"),
        (["audio\ttext", "audio 0.wav\thi", "audio 1.wav"], "line 3: 1 fields"),
        (["audio\ttext", "audio 0.wav\thi", "", "audio 0.wav\tho"], r"line 4: .*table\.tsv, line 2"),
        (["audio\ttext\tsplit", "audio 0.wav\thi\ttarin"], "line 2: there is no split 'tarin'; allowed are train"),
        (["audio\ttext", "\thi"], "line 2: no audio is given"),
        (["audio\ttext\tid", "audio 0.wav\thi\ta\u2028b"], "id 'a.u2028b'"),
    ],
)
def test_a_malformed_table_is_refused_with_its_line(tmp_path, lines, message):
    wavs(tmp_path, 2)
    with pytest.raises(ValueError, match=message):
        prepare_custom(tmp_path, source=table(tmp_path, *lines))


def test_other_words_for_splits_are_understood_and_said(tmp_path):
    names = wavs(tmp_path, 3)
    rows = [f"{name}\thi\t{split}" for name, split in zip(names, ("train", "valid", "test"), strict=True)]
    corpus = prepare_custom(tmp_path, source=table(tmp_path, "audio\ttext\tsplit", *rows))
    assert set(corpus.splits) == {"train", "dev", "test"}
    assert any("'valid' was read as 'dev'" in note for note in corpus.notes)


def test_other_files_and_folders_are_refused(tmp_path):
    (tmp_path / "cuts.jsonl").write_text("{]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.tsv").write_bytes("audio\ttext\nä.wav\tgrün".encode("latin-1"))
    for name, message in (
        ("cuts.jsonl", r"cuts\.jsonl, line 1"),
        ("empty", "can be read as a corpus"),
        ("gone", "no file"),
        ("latin.tsv", "line 2: not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare_custom(tmp_path, source=str(tmp_path / name))
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
