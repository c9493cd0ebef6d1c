"""asr-align, and the times of words in what asr-transcribe writes."""

import json
import os

from asr.inference.decode import _as_written, _file_name
from werdict.scoring import Word

from .test_decoding_commands import audio_of


def test_the_words_of_the_test_set_are_found_in_time(trained, tmp_path):
    formats = "output_format=[ctm,json,textgrid]"
    trained.run("align", "run=first", formats, f"output_dir={tmp_path}/words")
    lines = [json.loads(line) for line in (tmp_path / "words" / "test.jsonl").read_text().splitlines()]
    references = (trained.run_dir / "decode" / "test.errors.tsv").read_text().splitlines()[1:]
    assert len(lines) == len(references) == len(list((tmp_path / "words" / "test").glob("*.TextGrid")))
    for line in lines:
        assert " ".join(word["word"] for word in line["words"]) == line["text"]
        times = [time for word in line["words"] for time in (word["start"], word["end"])]
        assert times == sorted(times)
        assert times[0] >= 0
    ctm = (tmp_path / "words" / "test.ctm").read_text().splitlines()
    assert len(ctm) == sum(len(line["words"]) for line in lines)
    name, channel, start, duration, word, confidence = ctm[0].split(" ")
    assert (name, channel, word) == (lines[0]["id"], "1", lines[0]["words"][0]["word"])
    assert float(start) == lines[0]["words"][0]["start"]
    assert (float(duration) > 0, 0 <= float(confidence) <= 1) == (True, True)


def test_a_text_too_long_for_its_audio_and_unknown_characters_are_named_and_the_others_are_aligned(trained, tmp_path):
    first, second = audio_of(trained, "test")[:2]
    (tmp_path / "my.tsv").write_text(f"audio\ttext\n{first}\t{'one ' * 400}\n{second}\tone ☃\n")
    words = ("first", f"{tmp_path}/my.tsv", f"output_dir={tmp_path}/out", "output_format=ctm")
    said = trained.run("align", *words, code=1)
    assert f"could not align {first.with_suffix('')}: " in said
    assert "1 words have characters that the run does not know: ☃" in said
    assert [line.split()[4] for line in (tmp_path / "out" / "my.ctm").read_text().splitlines()] == ["one", "☃"]
    assert os.listdir(tmp_path / "out") == ["my.ctm"]


def test_characters_are_written_as_in_the_text_where_they_are_what_is_scored():
    words = tuple(Word(character, place, place + 1, 0.5) for place, character in enumerate("天⁇气"))
    found = _as_written("a", "天☃ 气", words, 3.0, -1.0, "character")
    assert ([word.text for word in found.words], found.unknown) == (["天", "☃", "气"], ("☃",))


def test_every_id_becomes_a_file_of_its_own(tmp_path):
    ids = ["a/b", "a%2Fb", "..", ".a", "\x00", "x" * 300, "x" * 299 + "y", "ä" * 150, "utt-1"]
    for id in ids:
        (tmp_path / f"{_file_name(id)}.TextGrid").touch(exist_ok=False)
    assert len(list(tmp_path.iterdir())) == len(ids)
    assert _file_name("utt-1") == "utt-1"


def test_a_name_without_a_manifest_is_refused(trained):
    assert "name=x" in trained.run("align", "run=first", "name=x", code=2)


def test_transcripts_have_the_times_and_confidence_of_decoding(trained, tmp_path):
    audio = audio_of(trained, "test")[0]
    trained.run("transcribe", "run=first", f"audio={audio}", "output_format=[json,ctm]", f"output_dir={tmp_path}/out")
    found = json.loads((tmp_path / "out" / f"{audio.stem}.json").read_text())
    lines = (tmp_path / "out" / f"{audio.stem}.ctm").read_text().splitlines()
    assert [line.split(" ")[4] for line in lines] == [word["word"] for word in found["words"]] == found["text"].split()
    decoded = (trained.run_dir / "decode" / "test.ctm").read_text().splitlines()
    assert [line.split(" ")[1:] for line in lines] == [
        line.split(" ")[1:] for line in decoded if line.startswith(f"{audio.stem} ")
    ]
