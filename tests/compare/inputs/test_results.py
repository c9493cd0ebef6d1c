"""Files that other toolkits' own code wrote are read, scored as jiwer and those toolkits score them, and checked."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jiwer
import pytest

from asr.compare.inputs.results import FORMATS, read_results, recognize
from asr.compare.inputs.rows import Row
from asr.compare.inputs.runs_of_rows import occurring, runs_of_rows
from asr.evaluation.normalization import Normalization
from tests.compare.inputs.make_files import FILES, SAID

ROOT = Path(__file__).parents[3]
OWN = json.loads((FILES / "own_numbers.json").read_text())
# file: its format, whether it needs references, and whose numbers of errors and words it has
CASES = {
    "table.tsv": ("table", False, None),
    "recogs-test-greedy_search.txt": ("icefall", False, "icefall"),
    "recogs-test-timed.txt": ("icefall", False, "icefall"),
    "nemo.json": ("nemo", False, "nemo"),
    "leaderboard.jsonl": ("nemo", False, "leaderboard"),
    "leaderboard_chunks.jsonl": ("nemo", False, "leaderboard"),
    "wenet.txt": ("wenet", False, "wenet"),
    "wenet_v2.txt": ("wenet", False, "wenet"),
    "wer_speechbrain.txt": ("speechbrain", False, "speechbrain"),
    "hyp.trn": ("trn", False, "sclite"),
    "hyp.scp": ("kaldi", False, None),
    "whisper/*.json": ("whisper", True, None),
    "meeteval.stm": ("meeteval", True, "meeteval"),
    "meeteval.ctm": ("meeteval", True, "meeteval"),
    "seglst.json": ("meeteval", True, "meeteval"),
}
NORMALIZE = {"leaderboard": "english"}  # the only one of these scorers that changes the texts


def sclite() -> str | None:
    return shutil.which("sclite") or os.environ.get("SCLITE") or shutil.which("sclite", path="/usr/lib/sctk/bin")


def sclite_numbers() -> tuple[int, int]:
    words = ["-r", FILES / "ref.trn", "trn", "-h", FILES / "hyp.trn", "trn", "-i", "rm", "-s", "-o", "rsum", "stdout"]
    report = subprocess.run([sclite(), *words], check=True, capture_output=True, text=True).stdout
    _, num, _, *errors = map(int, re.findall(r"\d+", re.search(r"\| *Sum *\|(.*)", report)[1]))
    return sum(errors[:3]), num


def meeteval_numbers(name: str) -> tuple[int, int]:
    meeteval = pytest.importorskip("meeteval")
    # CTM has no speakers
    recognized = meeteval.io.load(FILES / name).to_seglst().map(lambda segment: {"speaker": "", **segment})
    ids = {segment["session_id"] for segment in recognized}
    said = [{"session_id": id, "speaker": speaker, "words": text} for id, speaker, text, _ in SAID if id in ids]
    found = meeteval.wer.combine_error_rates(meeteval.wer.orcwer(meeteval.io.SegLST(said), recognized))
    return found.errors, found.length


@pytest.fixture(autouse=True)
def table(tmp_path):
    """A table of the same utterances."""
    with (tmp_path / "table.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerows([("id", "speaker", "reference", "hypothesis"), *SAID])
    return tmp_path / "table.tsv"


@pytest.mark.parametrize("name", CASES)
def test_a_file_agrees_with_jiwer_and_with_its_toolkit(name, table):
    format, _, own = CASES[name]
    if format == "meeteval":
        pytest.importorskip("meeteval")
    if own == "sclite" and sclite() is None:
        pytest.skip("sclite is not installed: apt-get install sctk")
    rows, numbers = scored(name, table)
    assert numbers == by_jiwer(rows, NORMALIZE.get(own, "none"))
    expected = {row[0]: (row[2].split(), row[3].split()) for row in SAID}
    for row in rows:
        if format not in ("nemo", "meeteval"):
            assert (row.reference.split(), row.hypothesis.split()) == expected[row.id]
    if own is not None:
        theirs = {"sclite": sclite_numbers, "meeteval": lambda: meeteval_numbers(name)}
        errors, words = theirs.get(own, lambda: OWN[own])()
        assert numbers == f"{errors} / {words}"


def scored(name: str, table: Path) -> tuple[list[Row], str]:
    """Return the rows of a file, and its errors / words as werdict counts them."""
    format, needs_references, own = CASES[name]
    path = table if name == "table.tsv" else FILES / name
    references = FILES / "ref.scp" if needs_references else None
    if name in ("meeteval.stm", "seglst.json"):  # a speaker's words in a session
        references = table.with_name("ref.txt")
        references.write_text("".join(f"{row[0]}-{row[1]} {row[2]}\n" for row in SAID))
    rows = read_results(
        path,
        pattern=str(FILES / "{system}" / "*.json") if "*" in name else None,
        references=references,
        columns={"hypothesis": "pred_text_canary"} if name == "nemo.json" else None,
    )
    assert {recognize(one) for one in path.parent.glob(path.name)} == {format}
    # CTM and the others have no line for what was not recognized, and SpeechBrain for what was not scored
    allow = ["missing"] if format in ("meeteval", "speechbrain") else []
    (run,) = runs_of_rows(rows, normalize=NORMALIZE.get(own, "none"), allow=allow).runs
    (found,) = run.sets.values()
    return [row for row in rows if row.hypothesis is not None], f"{sum(found.errors)} / {sum(found.words)}"


def by_jiwer(rows: list[Row], normalize: str) -> str:
    changed = Normalization(normalize).text
    output = jiwer.process_words([changed(row.reference) for row in rows], [changed(row.hypothesis) for row in rows])
    errors = output.substitutions + output.deletions + output.insertions
    return f"{errors} / {output.hits + output.substitutions + output.deletions}"


def test_the_documentation_has_every_format_with_its_numbers(table):
    pytest.importorskip("meeteval")
    lines = ["| file | `format` | werdict | jiwer | its own scorer |", "|---|---|---|---|---|"]
    for name, (format, _, own) in CASES.items():
        rows, numbers = scored(name, table)
        theirs = "–" if own is None else f"{own}: {numbers}"  # the test of this file has compared them
        jiwers = by_jiwer(rows, NORMALIZE.get(own, "none"))
        lines.append(f"| `{name}` | `{format}` | {numbers} | {jiwers} | {theirs} |")
    text = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- formats -->\n(.*?)<!-- end -->", text, re.DOTALL)[1]
    assert shown == "\n".join(lines) + "\n", "\n".join(lines)
    assert {case[0] for case in CASES.values()} == {*FORMATS}


def test_models_appended_to_one_manifest_are_systems_and_cut_recordings_have_their_offsets():
    rows = read_results(FILES / "nemo.json")
    assert {row.system for row in rows} == {"canary", "parakeet"}
    assert {row.id for row in rows} == {f"long.wav@{2.5 * place}" for place in range(len(SAID))}
    assert {row.speaker for row in rows} == {row[1] for row in SAID}
    rows = read_results(FILES / "nemo.json", columns={"hypothesis": "pred_text_canary"})
    assert [row.hypothesis for row in rows] == [row[3] for row in SAID]
    with pytest.raises(ValueError, match="pred_text_x"):
        read_results(FILES / "nemo.json", columns={"hypothesis": "pred_text_x"})


def test_a_chunk_that_is_missing_is_an_error(tmp_path):
    lines = (FILES / "leaderboard_chunks.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(lines[:3] + lines[4:]))
    with pytest.raises(ValueError, match="chunks of"):
        read_results(tmp_path / "some.jsonl")


def test_a_long_recording_is_recognized_too(tmp_path):
    text = "one two three " * 5000
    (tmp_path / "long.json").write_text(json.dumps({"text": text, "segments": [{"text": text}], "language": "en"}))
    assert recognize(tmp_path / "long.json") == "whisper"


def test_characters_of_icefall_are_words_and_count_as_characters():
    rows = read_results(FILES / "recogs-cer.txt")
    by_word = runs_of_rows(rows).runs[0].sets["test"]
    texts = read_results(FILES / "recogs-test-greedy_search.txt")
    assert by_word.errors == runs_of_rows(texts, unit="nonspace-character").runs[0].sets["test"].errors


def test_speakers_of_trn_may_have_hyphens():
    assert {row.id: row.speaker for row in read_results(FILES / "hyp.trn")} == {row[0]: row[1] for row in SAID}


@pytest.mark.parametrize("text", ["{ a / b } c", "a (uh) b", "a @ b"])
def test_alternatives_of_trn_are_refused(text, tmp_path):
    (tmp_path / "hyp.trn").write_text(f"{text} (anna-1)\n")
    with pytest.raises(ValueError, match="alternatives"):
        read_results(tmp_path / "hyp.trn", references=tmp_path / "hyp.trn")


def test_a_pattern_names_system_seed_and_set(tmp_path):
    for system, seed, name in (("a-b", 1, "clean"), ("a-b", 2, "clean"), ("c", 1, "other"), ("c", 2, "other")):
        folder = tmp_path / system / f"seed{seed}" / name
        folder.mkdir(parents=True)
        shutil.copy(FILES / "wenet.txt", folder / "wer")
    rows = read_results(pattern=str(tmp_path / "{system}/seed{seed}/{set}/*"))
    assert {(row.system, row.seed, row.set) for row in rows} == {
        *(("a-b", 1, "clean"), ("a-b", 2, "clean"), ("c", 1, "other"), ("c", 2, "other"))
    }
    with pytest.raises(ValueError, match="can be read as"):
        read_results(
            shutil.copy(FILES / "wenet.txt", tmp_path / "a-b-c.txt"), pattern=str(tmp_path / "{system}-{set}.txt")
        )


def test_files_that_two_formats_can_read_are_asked_about(tmp_path):
    for name, text in (
        ("words", "one 1 0.5 0.25 two\n"),
        ("both.jsonl", '{"audio_filepath": "a", "pred_text": "b", "hypothesis": "c"}\n'),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="format="):
            recognize(tmp_path / name)
    (tmp_path / "noise").write_bytes(b"\x00\x01")
    (tmp_path / "words").rename(tmp_path / "words.ctm")
    assert recognize(tmp_path / "words.ctm") == "meeteval"


def rows_of(system: str, texts: dict[str, tuple[str | None, str]], **fields) -> list[Row]:
    return [Row(id, said, recognized, system, **fields) for id, (said, recognized) in texts.items()]


SAME = {"u1": ("one two", "one"), "u2": ("three four", "three four"), "u3": ("five", "five six")}
WRONG = {
    "missing": {"u1": SAME["u1"], "u2": SAME["u2"]},
    "references": {**SAME, "u3": ("six", "six")},
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_systems_do_not_share_is_an_error_unless_it_is_allowed(kind):
    rows = [*rows_of("a", SAME), *rows_of("b", WRONG[kind])]
    with pytest.raises(ValueError, match=rf"u3.*allow=\[{kind}\]"):
        runs_of_rows(rows)
    found = runs_of_rows(rows, allow=[kind])
    assert [run.sets["test"].ids for run in found.runs] == [("u1", "u2")] * 2
    assert any("1 utterance left out" in note and kind in note for note in found.notes)


def test_a_system_without_a_whole_set_lacks_its_utterances():
    rows = [*rows_of("a", SAME, set="one"), *rows_of("b", SAME, set="one"), *rows_of("a", SAME, set="two")]
    with pytest.raises(ValueError, match=r"two: 3 utterances.*b lacks 3 of 3.*allow=\[missing\]"):
        runs_of_rows(rows)
    assert [[*run.sets] for run in runs_of_rows(rows, allow=["missing"]).runs] == [["one", "two"], ["one"]]


def test_doubled_utterances_and_empty_references_are_errors_unless_they_are_allowed():
    rows = [*rows_of("a", SAME), *rows_of("a", {"u1": ("one two", "two")})]
    with pytest.raises(ValueError, match=r"u1.*allow=\[duplicates\]"):
        runs_of_rows(rows)
    assert runs_of_rows(rows, allow=["duplicates"]).runs[0].sets["test"].ids == ("u2", "u3")
    rows = rows_of("a", {**SAME, "u4": ("", "noise here")})
    with pytest.raises(ValueError, match=r"u4.*allow=\[empty\]"):
        runs_of_rows(rows)
    assert runs_of_rows(rows, allow=["empty"]).runs[0].sets["test"].errors == (1, 0, 1, 2)
    with pytest.raises(ValueError, match="'all'"):
        runs_of_rows(rows, allow=["all"])
    with pytest.raises(ValueError, match="references=FILE"):
        runs_of_rows(rows_of("a", {"u1": (None, "one")}))


def test_another_spelling_of_the_references_is_named():
    other = {id: (said.upper() + ".", recognized) for id, (said, recognized) in SAME.items()}
    rows = [*rows_of("a", SAME), *rows_of("b", other)]
    with pytest.raises(ValueError, match=r"3 utterances.*scoring\.normalize=basic"):
        runs_of_rows(rows)
    one, two = runs_of_rows(rows, normalize="basic").runs
    assert one.sets["test"].errors == two.sets["test"].errors


def test_counts_in_a_table_need_no_texts_but_ids(tmp_path):
    lines = ["system,id,errors,words", "a,u1,1,10", "a,u2,0,5", "b,u1,2,10", "b,u2,0,5"]
    (tmp_path / "counts.csv").write_text("\n".join(lines))
    inputs = runs_of_rows(read_results(tmp_path / "counts.csv"))
    assert [(run.system, run.sets["test"].errors) for run in inputs.runs] == [("a", (1, 0)), ("b", (2, 0))]
    (tmp_path / "counts.csv").write_text(
        "\n".join(line.replace(",u1", "").replace(",u2", "").replace(",id", "") for line in lines)
    )
    with pytest.raises(ValueError, match="column id"):
        runs_of_rows(read_results(tmp_path / "counts.csv"))


@pytest.mark.parametrize("heard", ["hypothesis", "text"])
def test_columns_may_have_other_names(heard, tmp_path):
    (tmp_path / "mine.csv").write_text(f"wav,truth,{heard}\nu1,one,two\n")
    (row,) = read_results(tmp_path / "mine.csv", columns={"id": "wav", "reference": "truth", "hypothesis": heard})
    assert (row.id, row.reference, row.hypothesis, row.system) == ("u1", "one", "two", "mine")


@pytest.mark.parametrize("line", ["u1,one two,one, two", "u1,one two", 'u1,"one" two,one two', 'u1,one,"two'])
def test_a_line_whose_columns_or_quotes_are_not_clear_is_refused(line, tmp_path):
    (tmp_path / "mine.csv").write_text(f"id,reference,hypothesis\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_results(tmp_path / "mine.csv")


def test_parquet_is_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(
        [
            {"id": "u1", "reference": "one", "hypothesis": "two", "seed": 3.0},
            {"id": "u2", "reference": "two", "hypothesis": "two"},
        ]
    ).to_parquet(tmp_path / "a.parquet")
    row, other = read_results(tmp_path / "a.parquet")
    assert other.seed is None
    assert (row.reference, row.hypothesis, row.seed) == ("one", "two", 3)


def test_references_occur_in_a_training_text_as_whole_words(tmp_path):
    (tmp_path / "train.txt").write_text("I said one two three four five six\nseven\n")
    texts = ["one two three four five", "two", "ne two", "six seven", "seven"]
    found = occurring(texts, tmp_path / "train.txt", str, "word")
    assert found == {"one two three four five", "two", "seven"}


def test_a_part_of_a_toolkits_utterances_is_named():
    rows = read_results([FILES / "wenet.txt", FILES / "wer_speechbrain.txt"])
    with pytest.raises(ValueError, match=r"lacks 2 of 7: .*zoë-zoë-2"):
        runs_of_rows(rows)


def test_what_no_system_of_speechbrains_has_is_missed():
    rows = read_results(FILES / "wer_speechbrain.txt")
    with pytest.raises(ValueError, match=r"lacks 1 of 6: .*allow=\[missing\]"):
        runs_of_rows(rows)
    assert len(runs_of_rows(rows, allow=["missing"]).runs[0].sets["test"].words) == 5


def test_an_utterance_of_the_references_that_no_system_has_is_missed(tmp_path):
    (tmp_path / "hyp.trn").write_text("A BIRD DON'T SING (anna-anna-1)\n")
    rows = read_results(tmp_path / "hyp.trn", references=FILES / "ref.trn")
    with pytest.raises(ValueError, match=r"5 utterances.*allow=\[missing\]"):
        runs_of_rows(rows)
    assert runs_of_rows(rows, allow=["missing"]).runs[0].sets["test"].words == (4,)
