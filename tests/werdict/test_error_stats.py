import json
import re
from pathlib import Path

import pytest

from werdict.error_files import Interval, bootstrap_interval, headline, summary, write_report
from werdict.scoring import Utterance, score

UTTERANCES = [
    Utterance("utt-2", "the cat sat", "the bat  sat uh", "b"),
    Utterance("utt-1", "the cat", "the bat", "a"),
    Utterance("utt-3", "今天 好", "今天", "a"),
    Utterance("utt-4", "", "", "b"),
    Utterance("utt-1", "again", "", "a"),
]
SCORE = score(UTTERANCES)
INTERVAL = Interval(0.025, 0.5, "speaker", 15)


def test_the_headline_says_rate_interval_edits_and_size():
    assert headline(SCORE, INTERVAL) == (
        "WER 57.14 % [2.50, 50.00] (95 % bootstrap over 15 speakers) | CER 31.82 % | "
        "S 2 D 1 I 1 | 7 words, 4 utterances"
    )


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("one a b", "one a b", r"WER 0.00 % \[0.00, 63.16\] \(95 % upper bound, no error in 3 words\) \| CER 0.00 %"),
        ("one", "two", r"WER 100.00 % \(no interval from a single utterance\) .* \| 1 word, 1 utterance$"),
        ("one", "one two", r"WER 100.00 % .* S 0 D 0 I 1"),
        (" ".join(["a"] * 20_000), " ".join(["a"] * 19_999), r"WER 0.01 % .* S 0 D 1 I 0 \| 20000 words"),
    ],
)  # fmt: skip
def test_a_headline_of_one_utterance(reference, hypothesis, expected):
    result = score([Utterance("a", reference, hypothesis)])
    assert re.match(expected, headline(result, bootstrap_interval(result)))


def test_the_summary_is_plain_json():
    numbers = summary(SCORE, INTERVAL)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert len(numbers.pop("references")) == 16
    assert numbers == {
        "unit": "word", "wer": 4 / 7, "wer_low": 0.025, "wer_high": 0.5, "cer": 7 / 22,
        "interval_level": 0.95, "interval_method": "bootstrap", "interval_unit": "speaker", "interval_num_units": 15,
        "substitutions": 2, "deletions": 1, "insertions": 1,
        "num_words": 7, "num_characters": 22, "num_utterances": 4, "num_duplicates": 1,
        "dependence_p": None,
    }  # fmt: skip


def test_the_summary_tells_whether_the_references_are_the_same_texts():
    def digest(*pairs):
        result = score([Utterance(id, reference, hypothesis) for id, reference, hypothesis in pairs])
        return summary(result, bootstrap_interval(result))["references"]

    known = digest(("a", "one two", "x"), ("b", "three", "y"))
    assert digest(("b", " three", "u v"), ("a", "one  two", "")) == known
    for other in ("One two", "one", "one three"):
        assert digest(("a", other, "x"), ("b", "three", "y")) != known
    assert digest(("a", "three", "x"), ("b", "one two", "y")) != known


def test_the_summary_of_a_single_utterance_claims_no_interval():
    result = score([Utterance("a", "one", "two")])
    numbers = summary(result, bootstrap_interval(result))
    assert (numbers["wer_low"], numbers["wer_high"], numbers["interval_method"]) == (None, None, "none")
    json.dumps(numbers, allow_nan=False)


def test_hypotheses_are_sorted_by_id_behind_a_tab(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL)
    assert (tmp_path / "test.hyp.txt").read_bytes().decode("utf-8") == (
        "utt-1\tthe bat\nutt-2\tthe bat sat uh\nutt-3\t今天\nutt-4\t\n"
    )


def test_alignments_show_every_utterance_with_its_id(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL)
    blocks = (tmp_path / "test.alignments.txt").read_text(encoding="utf-8").split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        "utt-1: 1 error in 2 words",
        "utt-2: 2 errors in 3 words",
        "utt-3: 1 error in 2 words",
        "utt-4: 0 errors in 0 words",
    ]
    assert blocks[1].splitlines()[1:] == ["REF  the  cat  sat  **", "HYP  the  bat  sat  uh", "          S         I"]


def test_errors_are_counted_per_utterance_for_programs(tmp_path):
    named = [Utterance("b", "one two", "two two uh", "a\tspeaker"), Utterance("a", "", "", None)]
    write_report(tmp_path, "test", score(named), INTERVAL)
    assert (tmp_path / "test.errors.tsv").read_text(encoding="utf-8").split("\n") == [
        "id\tspeaker\twords\tsubstitutions\tdeletions\tinsertions",
        "a\t\t0\t0\t0\t0",
        "b\ta speaker\t2\t1\t0\t1",
        "",
    ]


def test_the_wer_file_tells_result_notes_worst_utterances_and_confusions_in_this_order(tmp_path):
    write_report(tmp_path, "test", SCORE, INTERVAL, notes=["synthetic speech", "two\nlines"])
    lines = (tmp_path / "test.wer.txt").read_text(encoding="utf-8").splitlines()
    assert lines[:4] == [
        headline(SCORE, INTERVAL),
        "note: synthetic speech",
        "note: two lines",
        "note: 1 utterance left out: an earlier one has the same id",
    ]
    named = [line.split(":")[0] for line in lines if line.startswith("utt-")]
    assert named == ["utt-2", "utt-1", "utt-3"]
    assert lines[lines.index("Most frequent errors") + 2 :] == [
        "     2  substitution  cat -> bat",
        "     1  deletion      好",
        "     1  insertion     uh",
    ]


def test_long_lists_are_cut(tmp_path):
    result = score([Utterance(f"utt{i:03d}", f"word{i}", "x") for i in range(100)])
    write_report(tmp_path, "test", result, bootstrap_interval(result))
    text = (tmp_path / "test.wer.txt").read_text(encoding="utf-8")
    assert text.count(": 1 error in 1 word") == 20
    assert text.count(" -> x") == 20


@pytest.mark.parametrize("ending", ["hyp.txt", "wer.txt"])
def test_an_existing_file_is_never_overwritten(tmp_path, ending):
    (tmp_path / f"test.{ending}").write_text("precious")
    with pytest.raises(FileExistsError, match=rf"test.{ending}"):
        write_report(tmp_path, "test", SCORE, INTERVAL)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_full_disk_leaves_no_half_report(tmp_path, monkeypatch):
    def full(temporary, path):
        assert temporary.read_text(encoding="utf-8")
        assert not path.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, "test", SCORE, INTERVAL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_a_set_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="set name"):
        write_report(tmp_path, name, SCORE, INTERVAL)
    assert list(tmp_path.iterdir()) == []


def test_of_characters_the_headline_is_the_cer():
    said = [Utterance("a", "今天天气", "今天天汽"), Utterance("b", "好的", "好的"), Utterance("c", "是", "是")]
    result = score(said, unit="character")
    line = headline(result, bootstrap_interval(result))
    assert line.startswith("CER 14.29 % [")
    assert line.endswith(" | S 1 D 0 I 0 | 7 characters, 3 utterances")
    assert "WER" not in line
    right = score([Utterance("a", "今天", "今天")], unit="character")
    assert "no error in 2 characters" in headline(right, bootstrap_interval(right))
    spoken = score(said)
    assert summary(result, INTERVAL)["unit"] == "character"
    assert summary(result, INTERVAL)["references"] != summary(spoken, INTERVAL)["references"]
