"""Files that other toolkits' own code wrote are read, scored as jiwer and those toolkits score them, and checked."""

import csv
import json
import os
import re
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path

import jiwer
import pytest

from tests.werdict.inputs.make_files import FILES, SAID
from tests.werdict.made_comparisons import errors_of, run_of
from werdict.formats import Row, part_of_id
from werdict.results import FORMATS, occurring, read_results, read_speakers, recognize, runs_of_rows, with_speakers
from werdict.scoring import Normalization

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", CASES)
def test_marks_encodings_and_decomposed_letters_change_nothing(name, encoding, table):
    originals = [table] if name == "table.tsv" else sorted(FILES.glob(name))
    folder = table.with_name("copies")
    folder.mkdir()
    for path in [*originals, FILES / "ref.scp"]:
        text = unicodedata.normalize("NFD", path.read_text("utf-8"))
        (folder / unicodedata.normalize("NFD", path.name)).write_text(text, encoding, newline="\r\n")

    def rows(place: Path, files: list[Path]) -> list[Row]:
        references = place / "ref.scp" if CASES[name][0] in ("trn", "kaldi", "whisper") else None
        found = read_results([path for path in files if path.name != "ref.scp"], references=references)
        return sorted((replace(row, system=None) for row in found), key=lambda row: (row.id, row.hypothesis or ""))

    assert rows(folder, sorted(folder.iterdir())) == rows(FILES, originals)


NEMO = '{"audio_filepath": "u1", "text": "one", "pred_text": "one"}\n'
DAMAGED = {
    "cut.json": (NEMO + NEMO[:-9], 2),
    "key.json": (NEMO + NEMO.replace("audio_filepath", "path"), 2),
    "null_id.json": (NEMO + NEMO.replace('"u1"', "null"), 2),
    "list.json": (NEMO + NEMO.replace('"one"}', '["one"]}'), 2),
    "no_prediction.json": (NEMO + NEMO.replace("pred_text", "prediction"), 2),
    "chunk.json": (NEMO.replace("}", ', "parent_id": "a", "chunk_index": "x"}'), 1),
    "array.json": (f"[{NEMO},\n3]", 3),
    "latin1.trn": ("one (a-1)\nf\udcfcr (a-2)\n", 2),
    "cut.text": ("u1 one\nu2 f\udcc3\n", 2),
    "cut.csv": ("id,reference,hypothesis\nu1,one,one\nu2,o", 3),
    "list.jsonl": ('{"id": 1, "reference": "a", "hypothesis": ["a"]}\n', 1),
    "seed.csv": ("id,seed,reference,hypothesis\nu1,x,one,one\n", 2),
    "infinite.jsonl": ('{"id": 1, "errors": Infinity, "words": 3}\n', 1),
    "twice.csv": ("id,text,hypothesis,text\nu1,one,one,two\n", 1),
    "recogs-cut.txt": ("u1:\tref=['a']\nu1:\thyp=['a']\nu2:\tref=['a']\nu2:\thyp=['a", 4),
    "recogs-half.txt": ("u1:\tref=['a']\nu1:\thyp=['a']\nu2:\tref=['a']\n", 3),
    "errs-test.txt": ("%WER = 7.25\nErrors: 1\n\nPER-UTT DETAILS: corr or (ref->hyp)\nu1:\tA B\n", "1: .*recogs-"),
    "whisper.json": ('{"text": ["a"], "segments": []}', 1),
    "segments.json": ('{"segments": [{"start": 0}]}', 1),
    "wenet.txt": ((2 * "utt: u1\nWER: 0 % N=1 C=1 S=0 D=0 I=0\nlab: a\nrec: a\n\n")[:-3], 6),
    "alternatives.stm": (";; a\n\nr 1 s 0 1 a\nr 1 s 1 2 { a / b / @ } c\n", 4),
    "optional.stm": ("r 1 s 0 1 a (%hesitation)\n", 1),
    "ignored.stm": ("r 1 s 0 1 a\nr 1 inter_segment_gap 1 2 <o,,unknown> ignore_time_segment_in_scoring\n", 2),
    "cut.stm": (25 * ";; comment\n" + "r 1 s 0 1 a\nr 1 s 1.5\n", 27),
    "alternatives.ctm": ("r A 0 1 a\nr A * * <ALT_BEGIN>\nr A 1 1 um\nr A * * <ALT>\nr A * * <ALT_END>\n", 2),
    "fragment.ctm": ("r A 0 1 a 0.9 lex NA\nr A 1 1 b- 0.9 frag NA\n", 2),
    "nan.ctm": ("r A 0 1 a\nr A nan 1 b\n", 2),
    "words.json": ('[{"session_id": "r", "words": "a"},\n{"session_id": "r", "word": "b"}]', 2),
    "time.json": ('[{"session_id": "r", "words": "a", "start_time": "x"}]', 1),
    "session.json": ('[{"session_id": null, "words": "a"}]', 1),
    "wer_cut.txt": ("%WER 0 [ 0 / 2 ]\nScored 1 sentences\nu1, %WER 0 [ 0 / 1, 0 ins, 0 del, 0 sub ]\na\n", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_with_its_line(name, tmp_path):
    text, line = DAMAGED[name]
    (tmp_path / name).write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=rf"{name}, line {line}"):
        read_results(tmp_path / name)


TIMED = {
    "labels.stm": (
        ';; LABEL "F" "Female" ""\n\nr\tA\ts 0 1 <O,F,00> one two\nr A s 1 2 <o> three\nr A t .5 1e1 <unk> a\n',
        {"r-s": "one two three", "r-t": "<unk> a"},
    ),
    "overlapping.stm": ("r 1 s 5 9 c\nr 1 t 1 8 a b\nr 1 s 0 6 a b\nr 1 t 9 9\n", {"r-s": "a b c", "r-t": "a b"}),
    "channels.stm": ("r A s 0 1 a\nr B s .5 1 b\nr A s 1 2 c\nq A s 0 1 d", {"r-A-s": "a c", "r-B-s": "b", "q-s": "d"}),
    "channels.ctm": (";;\nr A 1 1 b -6.7\nr B .5 1 x\nr A 0 1 a 1e-3\nq A 0 1 c", {"r-A": "a b", "r-B": "x", "q": "c"}),
    "nemo.ctm": ("r 1 0 .3 7 NA lex NA\nr 1 .5 .4 8 NA lex NA\n", {"r": "7 8"}),
    "digits.ctm": ("r 1 0.5 0.3 8\nr 1 0.0 0.3 7\n", {"r": "7 8"}),
    "numbers.stm": ("r 1 1 0.5 1.5 8\nr 1 2 0.0 0.3 7\n", {"r-1": "8", "r-2": "7"}),
    "segments.json": (
        '[{"session_id": "r", "speaker": "s", "start_time": "2.5", "end_time": "3", "words": "b (c)"},'
        '{"session_id": "r", "speaker": "s", "start_time": 1, "words": "a"},'
        '{"session_id": "r", "speaker": "t", "words": null}, {"session_id": 1, "words": ""}]',
        {"r-s": "a b (c)", "r-t": None, "1": ""},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_words_with_times_are_in_turn_for_each_speaker_and_channel(name, tmp_path):
    text, expected = TIMED[name]
    (tmp_path / name).write_text(text)
    rows = read_results(tmp_path / name)
    assert {row.id: row.hypothesis for row in rows} == expected
    assert read_results(tmp_path / name, references=tmp_path / name)[0].reference == expected[rows[0].id]


@pytest.mark.parametrize("content", [b"", b"PAR1\x15\x04", b"one (a-1)\n\x1f\x8b\x00"])
def test_a_file_of_another_kind_is_named(content, tmp_path):
    (tmp_path / "hyp.trn").write_bytes(content)
    with pytest.raises(ValueError, match=r"hyp\.trn"):
        read_results(tmp_path / "hyp.trn")


@pytest.mark.parametrize("kind", ["nemo", "table", "frame", "dictionaries"])
def test_a_null_hypothesis_is_a_missing_utterance(kind, tmp_path):
    names = ("audio_filepath", "text", "pred_text") if kind == "nemo" else ("id", "reference", "hypothesis")
    texts = {"u1": "a", "u2": None, "u3": "c"}
    results = lines = [dict(zip(names, (id, "a", text), strict=True)) for id, text in texts.items()]
    if kind == "frame":
        results = pytest.importorskip("pandas").DataFrame(lines)
    elif kind != "dictionaries":
        results = tmp_path / "null.jsonl"
        results.write_text("".join(json.dumps(line).replace("null", "NaN") + "\n" for line in lines))
    rows = read_results(results)
    with pytest.raises(ValueError, match=r"lacks 1 of 3: u2.*allow=\[missing\]"):
        runs_of_rows(rows)
    assert runs_of_rows(rows, allow=["missing"]).runs[0].sets["test"].ids == ("u1", "u3")
    with pytest.raises(ValueError, match="no hypotheses"):
        runs_of_rows([row for row in rows if row.hypothesis is None])


@pytest.mark.parametrize("base", ["exp", "exp [v1]", "what?"])
@pytest.mark.parametrize(
    "pattern",
    [
        *("./{}/{{system}}/seed{{seed}}/{{set}}.txt", "{}//{{system}}/./seed{{seed}}/{{set}}.txt"),
        *("~/{}/{{system}}/seed{{seed}}/{{set}}.txt", "{0}/../{0}/{{system}}/**/seed{{seed}}/{{set}}.txt"),
        *("{}/{{system}}/seed?/{{set}}.txt", "{}/{{system}}/seed[12]/{{set}}.txt", "{}/{{system}}/s*/{{set}}.txt"),
    ],
)
def test_a_pattern_reads_the_files_that_it_finds(base, pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = set()
    for system, seed in (("a", 1), ("a", 2), ("b [x]", 1), ("b [x]", 2)):
        (folder := Path(base, system, f"seed{seed}")).mkdir(parents=True)
        (folder / "clean.txt").write_text("u1:\tref=['a']\nu1:\thyp=['a']\n")
        expected.add((system, seed, "clean"))
    found = read_results(pattern=pattern.format(base))
    assert {(row.system, row.seed, row.set) for row in found} == expected


@pytest.mark.parametrize("name", ["ref.csv", "ref.tsv", "text.csv", "ref.jsonl", "text.json", "manifest.json", "{set}"])
def test_references_may_be_a_table_and_its_name_may_have_places(name, tmp_path):
    texts, suffix = {"u1": "one", "u2": "two, three"}, Path(name).suffix
    folder = tmp_path / "a" / "seed1"
    folder.mkdir(parents=True)
    (folder / "clean.text").write_text("u1 one\nu2 two\n")
    columns = {"manifest": ("audio_filepath", "text"), "text": ("id", "text")}.get(Path(name).stem, ("ID", "Reference"))
    path = tmp_path / f"a-1-{name.replace('{set}', 'clean')}"
    if suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter="," if suffix == ".csv" else "\t").writerows([columns, *texts.items()])
    elif suffix:
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in texts.items()))
    else:
        path.write_text("".join(f"{id} {text}\n" for id, text in texts.items()))
    references = tmp_path / f"{{system}}-{{seed}}-{name}"
    rows = read_results(pattern=str(tmp_path / "{system}/seed{seed}/{set}.text"), references=references)
    assert {row.id: row.reference for row in rows} == texts
    with pytest.raises(ValueError, match=r"references: \{seed\}"):
        read_results(folder / "clean.text", references=references)


def test_ids_agree_by_a_pattern_that_is_advised_where_it_helps(tmp_path):
    for name, ids in (("A", ("s-1", "s-2")), ("B", ("/data/s-1.wav", "/data/s-2.wav")), ("C", ("C:\\s-1", "C:\\s-2"))):
        (tmp_path / name).write_text("".join(f"{id} one\n" for id in ids))
    files = [tmp_path / name for name in "ABC"]
    with pytest.raises(ValueError, match="id_pattern=") as refused:
        read_results(files, references=files[0])
    pattern = re.search('id_pattern="(.*)"', str(refused.value))[1]
    assert {row.id for row in read_results(files, references=files[0], id_pattern=pattern)} == {"s-1", "s-2"}
    with pytest.raises(ValueError, match="id_pattern="):
        runs_of_rows([row for file in files for row in read_results(file, references=file)])
    with pytest.raises(ValueError, match=r"id_pattern='x'.*s-1"):
        read_results(files[0], id_pattern="x")
    with pytest.raises(ValueError, match="lacks") as refused:
        runs_of_rows([*rows_of("a", SAME), *rows_of("b", WRONG["missing"])])
    assert "id_pattern" not in str(refused.value)


def test_an_id_that_occurs_twice_in_kaldis_text_is_named(tmp_path):
    (tmp_path / "ref").write_text("u1 one\nu2 two\nu1 one\n")
    (tmp_path / "hyp").write_text("u1 one\nu2 two\nu1 oh\n")
    with pytest.raises(ValueError, match=r"u1.*allow=\[duplicates\]"):
        runs_of_rows(read_results(tmp_path / "hyp", references=tmp_path / "ref"))
    with pytest.raises(ValueError, match="'u1'"):
        read_results(tmp_path / "ref", references=tmp_path / "hyp")


def test_one_speaker_of_all_utterances_of_trn_is_unknown(tmp_path):
    (tmp_path / "hyp.trn").write_text("one (utt-1)\ntwo (utt-2)\n")
    assert {row.speaker for row in read_results(tmp_path / "hyp.trn")} == {None}


@pytest.mark.parametrize(("separator", "quote"), [(";", ""), (";", '"'), ("\t", ""), (",", '"')])
def test_a_spreadsheet_is_a_table_whatever_separates_it(separator, quote, tmp_path):
    lines = [("ID", "Reference", "HYPOTHESIS", "Akzent"), ("u1", "one", "a, b", "süd")]
    text = "".join(separator.join(f"{quote}{field}{quote}" for field in line) + "\r\n" for line in lines)
    (tmp_path / "mine.csv").write_text(text, "utf-8-sig")
    (row,) = read_results(tmp_path / "mine.csv")
    assert (row.id, row.reference, row.hypothesis, row.columns) == ("u1", "one", "a, b", {"Akzent": "süd"})


def test_a_column_that_is_named_and_is_not_there_is_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("utt,text,hypothesis\nu1,one,two\n")
    with pytest.raises(ValueError, match=r"columns\.id.*'wav'"):
        read_results(tmp_path / "mine.csv", columns={"id": "wav"})
    # a text is a reference, unless it is said to be the hypothesis
    (row,) = read_results(tmp_path / "mine.csv", columns={"hypothesis": "text"})
    assert (row.reference, row.hypothesis) == (None, "one")


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
    (tmp_path / "train.txt").write_text("\ufeffacht\nI said one two three four five six\nseven\nfu\u0308nf\n")
    texts = ["one two three four five", "two", "ne two", "six seven", "seven", "acht", "fünf"]
    found = occurring(texts, tmp_path / "train.txt", str, "word")
    assert found == {"one two three four five", "two", "seven", "acht", "fünf"}


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


def test_a_table_names_the_speakers_of_every_set(tmp_path):
    # with the mark that Windows begins text with, and lines without anything
    table = "\ufeffu0\tann\nu1 bo\n\n  u2  ann \nlong id 7 bo\n \nu\u0308 bo\n"
    (tmp_path / "utt2spk").write_text(table, encoding="utf-8")
    speaker_of = read_speakers(tmp_path / "utt2spk")
    assert speaker_of("long id 7") == speaker_of("ü") == speaker_of("u\u0308") == "bo"
    (tmp_path / "named").write_text("u0\tAnna B\nlong id 7\tJos\u00e9 de la Cruz \n", encoding="utf-8")
    assert [read_speakers(tmp_path / "named")(id) for id in ("u0", "long id 7")] == ["Anna B", "José de la Cruz"]
    run = run_of("adamw", 1, sets={"a": errors_of((1, 2, 3)), "b": errors_of((0, 1), speakers=None)})
    (changed,) = with_speakers([run], speaker_of)
    assert {name: errors.speakers for name, errors in changed.sets.items()} == {
        "a": ("ann", "bo", "ann"),
        "b": ("ann", "bo"),
    }
    assert changed.sets["a"].errors == (1, 2, 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"u0 ann\nu1\n", "line 2: "),
        (b"u0 ann\nu0 bo\n", "line 2: "),
        (b"u0\tann\tbo\n", "line 1: "),
        (b"u0 ann\n", "'u1'"),
    ],
)
def test_a_table_that_does_not_name_all_is_refused(tmp_path, content, said):
    (tmp_path / "utt2spk").write_bytes(content)
    with pytest.raises(ValueError, match=f"^speakers: .*{re.escape(said)}"):
        with_speakers([run_of("adamw", 1, (1, 2))], read_speakers(tmp_path / "utt2spk"))


@pytest.mark.parametrize(
    ("pattern", "speaker"), [(r"^[^-]+", "1089"), (r"-(\d+)-", "134"), (r"(?:x|-)(\d+)-", "134"), ("9-1", "9-1")]
)
def test_the_first_group_or_all_that_is_found_is_the_speaker(pattern, speaker):
    assert part_of_id("speaker_pattern", pattern)("1089-134-0007") == speaker


@pytest.mark.parametrize("pattern", ["x", "u0(-)?"])
def test_a_pattern_that_finds_nothing_is_refused(pattern):
    with pytest.raises(ValueError, match=r"^speaker_pattern="):
        with_speakers([run_of("adamw", 1, (1, 2))], part_of_id("speaker_pattern", pattern))
