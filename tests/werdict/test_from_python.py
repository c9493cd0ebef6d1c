"""asr.compare on tables: its verdicts, its pages, and that it needs none of the libraries of training."""

import csv
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import jiwer
import numpy as np
import pytest

import asr
from tests.werdict.report.parsed_page import has_own_script_alone, parse, table_of
from werdict.from_python import compare_results

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "lightning", "lhotse", "wandb", "sentencepiece", "soundfile", "torchaudio")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"]


def results(seeds=(None,), systems=(("good", 0.05), ("bad", 0.3)), num_speakers=12, each=4) -> list[dict]:
    rng, rows = np.random.default_rng(0), []
    for number in range(num_speakers * each):
        said = [str(word) for word in rng.choice(WORDS, 8)]
        for system, rate in systems:
            for seed in seeds:
                recognized = [word if rng.random() > rate else "oh" for word in said]
                row = {"system": system, "id": f"u{number:03}", "speaker": f"s{number % num_speakers}"}
                row |= {"reference": " ".join(said), "hypothesis": " ".join(recognized)}
                row |= {"accent": "north" if number % 2 else "south"} | ({} if seed is None else {"seed": seed})
                rows.append(row)
    return rows


@pytest.fixture(scope="module")
def single():
    return asr.compare(results(), by=["accent"], baseline="bad")


def test_single_runs_are_compared_over_speakers_and_the_first_sentence_says_what_that_leaves_out(single):
    (verdict,) = single.verdicts
    assert (verdict["system"], verdict["other"], verdict["verdict"]) == ("good", "bad", "better")
    assert verdict["low"] <= verdict["value"] <= verdict["high"] < 1
    first = str(single).splitlines()[1] + str(single).splitlines()[2]
    assert "good is best" in first
    assert "single runs" in first
    assert verdict["matched_pairs_p"] < 0.01
    assert [row["seeds"] for row in single.table()] == [None, None]


def test_equal_single_runs_cannot_be_distinguished():
    found = asr.compare(results(systems=(("a", 0.2), ("b", 0.2), ("c", 0.2))))
    assert {one["verdict"] for one in found.verdicts} == {"cannot distinguish"}
    assert len(found.comparison.sets[0].best) == 3


def test_seeds_are_compared_as_runs_are():
    found = asr.compare(results(seeds=(1, 2, 3)))
    assert [row["seeds"] for row in found.table()] == [3, 3]
    assert found.verdicts[0]["verdict"] == "better"
    assert "single runs" not in str(found)
    with pytest.raises(ValueError, match="name all, or none"):
        asr.compare([*results(seeds=(1,)), *results(systems=(("other", 0.1),))])


def test_parts_of_a_set_have_their_own_intervals(single):
    parts = single.comparison.sets[0].subsets["accent"]
    assert [part.name for part in parts] == ["north", "south"]
    assert sum(part.num_utterances for part in parts) == single.comparison.sets[0].num_utterances
    assert all(row.low <= row.wer_mean <= row.high for part in parts for row in part.rows)
    with pytest.raises(ValueError, match=r"'age'.*accent"):
        asr.compare(results(), by=["age"])


def test_spaces_are_characters_as_in_jiwer_unless_the_unit_leaves_them_out():
    rows = results(each=1, systems=(("one", 0.3),))
    references, hypotheses = ([row[key] for row in rows] for key in ("reference", "hypothesis"))
    found = asr.compare(rows, unit="character")
    assert found.table()[0]["cer"] == jiwer.cer(references, hypotheses)
    assert "spaces count" in str(found)
    closed = [[text.replace(" ", "") for text in texts] for texts in (references, hypotheses)]
    assert asr.compare(rows, unit="nonspace-character").table()[0]["cer"] == jiwer.cer(*closed)


CHANGED = {
    "upper": (str.upper, {}, "scoring.normalize=basic"),
    "punctuation": (lambda text: f"{text[:5].title()}, {text[6:]}.", {}, "scoring.normalize=basic"),
    "normalized": (str.upper, {"normalize": "basic"}, ""),
    "as it is": (str, {}, ""),
}


@pytest.mark.parametrize(("changed", "options", "hint"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("key", ["hypothesis", "reference"])
def test_a_system_that_spells_in_another_way_is_named_with_the_option(key, changed, options, hint):
    rows = results(each=1, systems=(("A", 0.1),)) + [
        {**row, key: changed(row[key])} for row in results(each=1, systems=(("B", 0.1),))
    ]
    rows = rows if key == "hypothesis" else [row for row in rows if row["system"] == "B"]
    named = [note for note in asr.compare(rows, **options).comparison.notes if "case or punctuation alone" in note]
    assert [hint in note and " B " in note and " A " not in note for note in named] == [True] * bool(hint)


@pytest.mark.parametrize(
    ("text", "options", "is_said"),
    [
        ("今天天气很好", {}, True),
        ("วันนี้อากาศดี มาก", {}, True),
        ("今天 天气 很 好", {}, False),
        ("今天天气很好", {"unit": "character"}, False),
        ("seven", {}, False),
        ("오늘 날씨가 좋다", {}, False),
    ],
)
def test_references_without_spaces_between_words_name_the_unit(text, options, is_said):
    rows = [{"id": str(number), "reference": text, "hypothesis": text} for number in range(6)]
    assert any("unit=character" in note for note in asr.compare(rows, **options).comparison.notes) == is_said


def test_what_occurs_in_the_training_text_is_compared_apart(tmp_path):
    rows = results()
    (tmp_path / "lm.txt").write_text("\n".join(row["reference"] for row in rows[:20]))
    found = asr.compare(rows, training_texts=tmp_path / "lm.txt")
    no, yes = found.comparison.sets[0].subsets["reference in lm.txt"]
    assert (no.name, yes.name, yes.num_utterances) == ("no", "yes", 10)
    assert "references of 10 of 48 utterances occur in lm.txt" in " ".join(found.comparison.notes)
    assert "38 utterances, best may be good" in " ".join(str(found).split())


def test_the_page_shows_errors_aligned_and_filters_by_who_is_right(single, tmp_path):
    text = single.to_html(tmp_path / "page.html").read_text()
    parse(text)
    assert '<td class="words sub">oh</td>' in text
    assert has_own_script_alone(text)
    assert "utterance scroll right-1 wrong-2" in text
    assert "#errors-1:has(#errors-1-right-1:checked) .utterance:not(.right-1)" in text
    assert "Substitutions" in text
    data = json.loads(single.to_json())
    assert data["sets"][0]["has_seeds"] is False
    assert [run["seed"] for run in data["runs"]] == [None, None]
    assert "<table>" in single._repr_html_()


def test_names_and_texts_are_text_on_the_page(tmp_path):
    rows = [
        {**row, "system": f"<b>{row['system']}", "hypothesis": "<script>alert(1)</script>"} for row in results(each=1)
    ]
    text = asr.compare(rows).to_html(tmp_path / "page.html").read_text()
    assert has_own_script_alone(text)
    assert "<b>" not in text


def test_frames_and_files_are_tables_too(tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = results(each=1)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    expected = asr.compare(rows).table()
    frame = pandas.DataFrame(rows)
    assert asr.compare(frame).table() == expected
    frame["seed"] = pandas.array([None] * len(frame), dtype="Int64")
    assert asr.compare(frame.convert_dtypes()).table() == expected
    assert asr.compare(tmp_path / "table.csv").table() == expected


def test_neither_the_function_nor_the_command_needs_libraries_of_training(tmp_path):
    rows = results(each=1)
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
"""
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for words in (
        ["-c", "import asr; print(asr.compare('table.jsonl').verdicts)"],
        ["-m", "asr.commands", "compare", "results=table.jsonl", "out=comparison"],
    ):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "good" in done.stdout
    assert (tmp_path / "comparison" / "report.html").is_file()


def seeded(rates: dict[str, tuple[float | None, ...]]) -> list[dict]:
    """Rows of systems whose seeds have these error rates; None: a seed that has learned nothing."""
    rows, rng = [], np.random.default_rng(0)
    for number in range(60):
        said = [str(word) for word in rng.choice(WORDS, 6)]
        for system, of_seeds in rates.items():
            for seed, rate in enumerate(of_seeds, start=1):
                recognized = ["one", "two"]
                if rate is not None:
                    recognized = [word if rng.random() > rate else str(rng.choice(WORDS)) for word in said]
                row = {"system": system, "seed": seed, "id": str(number), "speaker": f"s{number % 10}"}
                rows.append(row | {"reference": " ".join(said), "hypothesis": " ".join(recognized)})
    return rows


def tables_of(found, folder: Path) -> dict[str, list[list[str]]]:
    root = parse(found.to_html(folder / "page.html").read_text())
    titles = [caption.text for caption in root.all("caption")]
    return {title: table_of(root, title) for title in titles if title.startswith(("Word", "By", "Sub", "Runs"))}


def test_a_system_of_which_one_seed_learned_is_not_the_best_by_that_seed(tmp_path):
    """Seeds that learned nothing count: a share of them is a finding, and no lucky seed decides."""
    found = asr.compare(seeded({"bad": (0.4,) * 3, "good": (0.2, None, None)}), baseline="bad")
    (verdict,) = found.verdicts
    assert verdict["verdict"] == "cannot distinguish"
    assert verdict["num_seeds"] == 3
    assert found.comparison.sets[0].rows[0].system == "bad"
    assert any(row[:2] == ["good", "1 of 3"] for row in tables_of(found, tmp_path)["Runs that learned"])


def test_errors_by_speaker_are_means_and_texts_are_of_the_median_seed(tmp_path):
    rows = seeded({"good": (None, 0.1, 0.5, 0.3), "bad": (0.6, 0.6, 0.6, 0.6)})
    found = asr.compare(rows)
    tables, means = tables_of(found, tmp_path), {row["system"]: row["wer"] for row in found.table()}
    header, *speakers = tables["By speaker"]
    for column, system in ((2, "good"), (3, "bad")):
        assert header[column].startswith(system)
        mean = sum(float(row[column]) for row in speakers) / len(speakers)  # all have as many words
        assert mean == pytest.approx(100 * means[system], abs=0.01)
    (title,) = (title for title in tables if title.startswith("Substitutions"))
    assert "median" in title
    assert tables[title][1][:2] == ["good", "4"]
    texts = {row["id"]: row["hypothesis"] for row in rows if (row["system"], row["seed"]) == ("good", 4)}
    root = parse((tmp_path / "page.html").read_text())
    for block in [block for block in root.all("div") if "utterance" in (block.attributes.get("class") or "")]:
        number = block.all("caption")[0].text.split()[0]
        line = next(row for row in block.all("tr") if row.all("th")[0].text.split()[0] == "good")
        shown = [cell.text for cell in line.all("td") if "del" not in (cell.attributes["class"] or "")]
        assert " ".join(filter(None, shown)) == texts[number]


def test_files_are_named_as_on_the_command_line(tmp_path):
    rows = results()
    for system in ("good", "bad"):
        own = [{**row, "id": f"/{system}/{row['id']}.wav"} for row in rows if row["system"] == system]
        (tmp_path / f"{system}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    (tmp_path / "utt2spk").write_text("".join(f"{row['id']} {row['speaker']}\n" for row in rows[::2]))
    options = {"pattern": tmp_path / "{system}.jsonl", "id_pattern": r"(\w+)\.wav", "speakers": tmp_path / "utt2spk"}
    assert asr.compare(**options).table() == asr.compare(rows).table()
    assert all(f"{name}:" in asr.compare.__doc__ for name in inspect.signature(compare_results).parameters)


def test_references_and_the_pattern_of_ids_are_for_tables_in_memory_too(tmp_path):
    rows = results(each=1)
    (tmp_path / "ref").write_text("".join(f"{row['id']} {row['reference']}\n" for row in rows))
    own = [{name: value for name, value in row.items() if name != "reference"} for row in rows]
    own = [{**row, "id": f"{row['id']}.wav"} for row in own]
    assert asr.compare(own, references=tmp_path / "ref", id_pattern=r"\w+").table() == asr.compare(rows).table()


def test_two_columns_of_a_frame_with_one_name_are_refused():
    frame = pytest.importorskip("pandas").DataFrame([["u1", "a", "b", "c"]])
    frame.columns = ["id", "reference", "hypothesis", "hypothesis"]
    with pytest.raises(ValueError, match="'hypothesis'"):
        asr.compare(frame)
