"""The report at a terminal, as a page and for programs says no more than the runs allow."""

import csv
import dataclasses
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from rich.console import Console

from asr.runs.folders import read_runs
from tests.werdict.made_comparisons import compare_runs, errors_of, made_comparison, run_of, sweep
from tests.werdict.report.parsed_page import has_own_script_alone, parse, table_of
from tests.werdict.run_folders import write_run
from werdict.formatting import duration, interval, number, p_value, percent, points, ratio, shortened
from werdict.from_python import compare_results
from werdict.plots import draw_plots
from werdict.report.headline import headline
from werdict.report.pages import tables, write_errors, write_json, write_report_files
from werdict.report.sections import what_verdicts_are_about
from werdict.runs import Cost, Tuning


def said(runs, looks=(), **options) -> list[str]:
    found = compare_runs(runs, title="made", looks=looks, **options)
    return headline(found.sets[0], 0.95, found.scale, looks)


def varied(system, *counts):
    return [run_of(system, seed, (one,) * 6) for seed, one in enumerate(counts)]


def test_the_first_sentence_says_which_may_be_best_and_the_second_which_differ_from_the_baseline():
    first, second, *rest = said(sweep(), baseline="adamw")
    assert first.startswith("eve is best, with 95 % confidence")
    assert "18.33 % [" in first
    assert "baseline adamw" in second
    assert "better: eve 0.31 [" in second
    assert "69 % fewer errors" in second
    assert "cain" in second
    assert any("only 3 speakers" in sentence for sentence in rest)


def test_several_systems_that_may_be_best_are_named_and_none_is_called_best():
    runs = [*varied("eve", 1, 2, 1), *varied("cain", 2, 1, 1), *varied("adamw", 9, 9, 9)]
    first, second, *_ = said(runs, baseline="adamw")
    assert all(name in first for name in ("2 of 3", "eve", "cain"))
    assert "adamw" not in first
    assert not any("is best" in sentence for sentence in (first, second))
    first, *_ = said([run for run in sweep() if run.system != "eve"], baseline="adamw")
    assert first.startswith("Any of the 2 systems may be best")


def test_where_no_run_has_learned_no_system_is_named():
    first, *_ = said([*varied("eve", 10, 10, 10), *varied("adamw", 10, 10, 10)], baseline="adamw")
    assert not any(name in first for name in ("eve", "adamw"))


def test_a_system_whose_runs_have_all_failed_is_in_each_part_of_the_report(tmp_path):
    compared = compare_runs(sweep(), failed=[("lost", seed) for seed in (1, 2, 3)], baseline="adamw")
    report, *_ = write_report_files(compared, tmp_path)
    texts = [
        report.read_text(),
        write_json(compared, tmp_path).read_text(),
        write_errors(compared, tmp_path).read_text(),
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(*tables(compared))
    assert all("lost" in text for text in (*texts, console.file.getvalue()))


def test_a_system_whose_runs_have_all_failed_does_not_hide_the_errors_of_others(tmp_path):
    rows = [
        {"system": system, "seed": seed, "id": str(number), "reference": "one two", "hypothesis": text}
        for system, text in (("a", "one"), ("b", "one too"))
        for seed in (1, 2)
        for number in range(3)
    ]
    runs = compare_results(rows).comparison.runs
    report, *_ = write_report_files(compare_runs(runs, failed=[("lost", 1), ("lost", 2)]), tmp_path)
    assert "Shown: 3 of 3 utterances" in report.read_text()


def test_differences_in_points_are_said_in_points():
    _, second, *_ = said(sweep(), baseline="adamw", scale="points")
    assert "eve −40.00 points [−" in second


@pytest.mark.parametrize("other", [varied("adamw", 6), [run_of("adamw", 5)]], ids=("one in common", "none in common"))
def test_with_one_seed_in_common_nothing_is_claimed(other):
    first, *rest = said([*varied("eve", 3), *other], baseline="adamw")
    assert "3 seeds" in first
    assert not any("better:" in sentence or "is best, with" in sentence for sentence in (first, *rest))


def test_a_single_lucky_seed_has_no_verdict_and_takes_none_from_the_others():
    first, second, *rest = said([*sweep(), run_of("lucky", 1, (0,) * 6)], baseline="adamw")
    assert all(name in first for name in ("eve", "lucky"))  # nothing is known that would exclude it
    assert "better: eve" in second
    assert any("one seed" in sentence and "lucky" in sentence for sentence in rest)


@pytest.mark.parametrize(("num", "place"), [(3, "look 1 of 2"), (5, "look 2 of 2")])
def test_a_planned_look_says_which_one_it_is(num, place):
    runs = [*varied("eve", *[3, 4, 3, 4, 3][:num]), *varied("adamw", *[4, 3, 3, 4, 3][:num])]
    assert any(place in sentence for sentence in said(runs, (3, 5), baseline="adamw"))


def test_seeds_that_would_decide_what_is_open_are_named_where_some_would():
    (found,) = made_comparison(3, 3).sets
    for needed, text in ((17, "adamw 17"), (None, "more than 30 seeds")):
        rows = [
            dataclasses.replace(
                row,
                to_baseline=row.to_baseline
                and dataclasses.replace(row.to_baseline, verdict="cannot distinguish", seeds_needed=needed),
            )
            for row in found.rows
        ]
        sentences = headline(dataclasses.replace(found, rows=rows), 0.95, "ratio")
        name = rows[0].system if rows[0].system != found.baseline else rows[1].system
        assert any(text.replace("adamw", name) in sentence for sentence in sentences)
    assert not any("would" in sentence for sentence in headline(_decided(found), 0.95, "ratio"))


def _decided(found):
    rows = [
        dataclasses.replace(row, to_baseline=row.to_baseline and dataclasses.replace(row.to_baseline, verdict="better"))
        for row in found.rows
    ]
    return dataclasses.replace(found, rows=rows)


def test_speakers_that_are_in_the_training_data_limit_the_claim():
    runs = [
        dataclasses.replace(run, sets={"test": dataclasses.replace(run.sets["test"], seen_speakers=True)})
        for run in sweep()
    ]
    assert any("these speakers" in sentence for sentence in said(runs, baseline="adamw"))
    assert compare_runs(runs).sets[0].rows[0].scope == "seeds and utterances"


def test_an_interval_that_excludes_no_error_rate_is_not_shown():
    (found,) = compare_runs(varied("eve", 3, 8)).sets
    assert found.rows[0].high == float("inf")
    assert "[" not in headline(found, 0.95, "ratio")[0]


def with_words(*words, speakers=("a", "b", "c", "c")):
    counts = ((60, 3, 1, 1, 2, 3), (50, 2, 2, 1, 1, 4))
    errors = [errors_of(row[: len(words)], speakers=speakers) for row in counts]
    return [
        run_of(system, seed, sets={"test": dataclasses.replace(one, words=words)})
        for system in ("adamw", "eve")
        for seed, one in enumerate(errors)
    ]


def test_a_long_speaker_who_decides_is_mentioned():
    assert any(
        sentence.startswith("Few of the 3 speakers have most of the words: together they are as informative as 1.1 ")
        for sentence in said(with_words(900, 20, 20, 20))
    )
    six = with_words(200, 200, 150, 100, 150, 100, speakers="abcdef")
    assert not any(sentence.startswith(("Few", "There are only")) for sentence in said(six))


@pytest.mark.parametrize(("num", "is_said"), [(2, True), (3, True), (4, True), (5, False), (6, False)])
def test_so_few_speakers_that_intervals_are_wide_are_mentioned_though_they_are_equal(num, is_said):
    sentences = said(with_words(*[100] * num, speakers="abcdef"[:num]))
    expected = f"There are only {num} speakers, who are as informative as {num}.0 speakers of equal size: "
    assert any(sentence.startswith(expected) for sentence in sentences) == is_said


@pytest.mark.parametrize(("speakers", "what"), [(None, "are unknown"), (("a",) * 4, "a single speaker")])
def test_speakers_who_are_unknown_or_alone_are_mentioned(speakers, what):
    assert any(what in sentence for sentence in said(with_words(200, 200, 150, 100, speakers=speakers)))


@pytest.mark.parametrize(
    ("studies", "about"),
    [
        ({}, "about these settings only"),
        ({"adamw": (0, 1, 2), "eve": (0, 1, 1)}, "in each of 2 studies"),
        ({"adamw": (0, 1, 2), "eve": (0, 0, 0)}, "that one tuning has chosen"),
    ],
)
def test_verdicts_are_about_settings_or_about_a_way_of_tuning(studies, about):
    """What counts are the studies that the runs come from, not those that a sweep was to have."""
    runs = [dataclasses.replace(run, study=studies.get(run.system, (None,) * 3)[run.seed - 1]) for run in sweep()]
    assert about in what_verdicts_are_about(compare_runs(runs))
    of_others = compare_runs([dataclasses.replace(run, cost=Cost()) for run in runs])
    assert "asr-train" not in what_verdicts_are_about(of_others)
    assert ("asr-train" in what_verdicts_are_about(compare_runs(runs))) == (not studies)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (percent(0.0312), "3.12"),
        (percent(None), "–"),
        (points(-0.0042), "−0.42"),
        (points(-0.00001), "−0.001"),
        (points(0.0000049), "+0.0005"),
        (points(-1e-12), "0.00"),
        (percent(0.000004), "0.0004"),
        (percent(0), "0.00"),
        (ratio(0.9996), "0.9996"),
        (ratio(1.25), "1.25"),
        (ratio(1), "1.00"),
        (interval(float("-inf"), float("inf")), "–"),
        (interval(0.01, float("inf")), "[1.00, ∞]"),
        (interval(float("-inf"), 0.01, points), "[−∞, +1.00]"),
        (number(1234567), "1\u202f234\u202f567"),
        (number(0.01234), "0.0123"),
        (number(float("nan")), "–"),
        (duration(42), "42\N{NO-BREAK SPACE}s"),
        (duration(1200), "20\N{NO-BREAK SPACE}min"),
        (duration(72000), "20\N{NO-BREAK SPACE}h"),
        (duration(None), "–"),
        (p_value(0.0000001), "< 0.001"),
        (p_value(0.0416), "0.042"),
        (p_value(None), "–"),
        (shortened("abcdefghij", 5), "ab…ij"),
        (shortened("abc", 5), "abc"),
    ],
)
def test_numbers_read_well(made, text):
    assert made == text


EVIL = '<script>alert("x")</script>'
PROBLEM = "runs/half is left out: it has not finished"


@pytest.fixture(scope="module")
def comparison():
    return made_comparison(3, sets=("test-clean", "test-other"), problems=[PROBLEM])


@pytest.fixture(scope="module")
def files(comparison, tmp_path_factory):
    return write_report_files(comparison, tmp_path_factory.mktemp("report") / "new")


@pytest.fixture(scope="module")
def source(files) -> str:
    return files[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source):
    return parse(source)


def written(comparison, folder):
    return parse(write_report_files(comparison, folder)[0].read_text(encoding="utf-8"))


def test_the_report_comes_first_and_all_files_are_there(files):
    folder = files[0].parent
    names = [f"{kind}_{name}" for name in ("test-clean", "test-other") for kind in ("wer", "differences")]
    names += ["lr_test-clean", "lr_test-other"]
    names += ["dev_wer_updates", "dev_wer_seconds", "loss_updates", "loss_seconds"]
    assert files == [
        folder / "report.html",
        *(folder / "plots" / f"{n}.{end}" for n in names for end in ("png", "svg")),
    ]
    assert {path for path in folder.rglob("*") if path.is_file()} == set(files)


def test_the_page_begins_with_the_result_in_words(page, comparison):
    (title,) = page.all("title")
    assert title.text == "Comparison: made"
    text = " ".join(page.all("body")[0].text.split())
    assert text.startswith("made Comparison of 3 systems, 9 runs, 2 test sets synthetic speech test-clean eve lr=0")
    best = comparison.sets[0].rows[0]
    sentence = f"{100 * best.wer_mean:.2f} % [{100 * best.low:.2f}, {100 * best.high:.2f}]"
    assert text.index(sentence) < text.index(PROBLEM) < text.index("Test set test-clean")


def test_the_first_table_holds_wers_intervals_and_verdicts(page, comparison):
    tables = [table for table in page.all("table") if table.all("caption")[0].text == "Word error rates"]
    assert len(tables) == 2
    header, *rows = table_of(page, "Word error rates")
    assert header == [
        *("system", "may be best", "vs. baseline", "WER %", "geometric mean %", "95 % interval", "seeds"),
    ]
    best = comparison.sets[0].rows[0]
    assert rows[0] == [
        "eve lr=0.01",
        "yes",
        best.to_baseline.verdict,
        f"{100 * best.wer_mean:.2f} ± {100 * best.wer_sd:.2f}",
        f"{100 * best.wer_geomean:.2f}",
        f"[{100 * best.low:.2f}, {100 * best.high:.2f}] seeds and speakers",
        "3",
    ]
    assert rows[2][0] == "adamw"
    assert rows[2][2] == "baseline"


def test_contrasts_stand_with_interval_points_and_p(page, comparison):
    header, first, *_ = table_of(page, "Compared with adamw (baseline)")
    assert header == [
        *("system", "verdict", "ratio of errors [95 %]", "points of WER", "p (adjusted)", "80 of 100 find", "seeds"),
    ]
    found = comparison.sets[0].rows[0].to_baseline
    assert first == [
        "eve lr=0.01",
        found.verdict,
        f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]",
        f"{100 * found.points:+.2f}".replace("-", "−"),
        p_value(found.p_adjusted),
        f"{found.detectable:.2f}",
        "3",
    ]


def test_speed_is_compared_in_updates_in_time_and_at_equal_time(page, comparison):
    by_update, by_time = (f"{what} to 20 % WER on dev (chosen after the runs)" for what in ("Updates", "Time"))
    header, first, *_, last = table_of(page, by_time)
    assert header == ["system", "verdict", "reached by", "time", "ratio [95 %]", "p (adjusted)"]
    found = comparison.times[1].rows[0]
    ratio = found.contrast
    assert first[:3] == ["eve lr=0.01", ratio.verdict, "3 of 3"]
    assert first[4:] == [f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", p_value(ratio.p_adjusted)]
    assert last[:2] == ["adamw", "reference"]
    assert last[4:] == ["–", "–"]
    assert table_of(page, by_update)[0][3] == "updates"
    header, first, *_ = table_of(page, "After 60\N{NO-BREAK SPACE}s of training")
    assert header[1:] == ["verdict", "WER % on dev", "ratio [95 %]", "p (adjusted)", "mean WER %", "± sd", "seeds"]
    row = comparison.equal_time.rows[0]
    assert first[2] == f"{100 * row.wer_mean:.2f} ± {100 * row.wer_sd:.2f}"
    assert first[5:] == [f"{100 * row.area:.2f}", f"{100 * row.area_sd:.2f}", "3"]


def test_costs_and_runs_are_listed(page):
    header, first, *_ = table_of(page, "Training cost")
    assert dict(zip(header, first, strict=True)) == {
        "system": "eve lr=0.01",
        "lr": "0.01",
        "updates": "600",
        "parameters": "1 234 567",
        "seconds per update": "0.1",
        "optimizer time %": "5",
        "state bytes per parameter": "8",
        "peak memory MB": "850",
        "optimizer step ms": "5 ± 2",
        "training time": "60 s",
    }
    header, *runs = table_of(page, "All runs")
    assert header == ["system", "seed", "lr", "WER % on test-clean", "WER % on test-other", "folder"]
    assert len(runs) == 9
    assert runs[0][:3] == ["eve lr=0.01", "1", "0.01"]
    assert runs[0][-1] == "runs/digits/transformer_ctc/eve-lr=0.01-seed=1"


def test_nothing_is_loaded_and_nothing_runs_but_the_script_of_the_page(source, page):
    assert has_own_script_alone(source)
    drawn = [image.attributes["src"] for image in page.all("img")]
    assert all(image.startswith("data:image/svg+xml,") for image in drawn)
    for image in drawn:
        source = source.replace(image, "")
    assert not re.search(r"https?:|//\w|url\((?!#)|@import|javascript:", source)
    assert not [found for tag in ("iframe", "object", "embed") for found in page.all(tag)]
    assert [link.attributes for link in page.all("link")] == [{"rel": "icon", "href": "data:,"}]
    (policy,) = [meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_ids_are_unique_and_links_lead_somewhere(source, page):
    ids = re.findall(r'\sid="([^"]*)"', source)
    assert len(ids) == len(set(ids))
    targets = [link.attributes["href"] for link in page.all("a") if "download" not in link.attributes]
    assert len(targets) == 7
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_the_numbers_of_each_plot_are_beside_it_as_csv(page, comparison):
    tables = {}
    for figure in page.all("figure"):
        (link,) = figure.all("a")
        kind, _, content = link.attributes["href"].partition(",")
        assert kind == "data:text/csv;charset=utf-8"
        rows = list(csv.reader(io.StringIO(unquote(content))))
        tables[link.attributes["download"].removesuffix(".csv")] = rows
        alt = figure.all("img")[0].attributes["alt"]
        assert alt.startswith(figure.all("a")[0].attributes["aria-label"].removeprefix("Numbers of ")[:-7])
        assert all(row[0] in alt for row in rows[1:])
    assert set(tables) == {plot.name for plot in draw_plots(comparison).all}
    best = comparison.sets[0].rows[0]
    header, first, *_ = tables["wer_test-clean"]
    assert header == ["system", "WER (%)", "low", "high", "seeds"]
    assert [float(number) for number in first[1:4]] == pytest.approx(
        [100 * best.wer_mean, 100 * best.low, 100 * best.high], rel=1e-5
    )
    assert [float(seed) for seed in first[4].split()] == pytest.approx([100 * wer for wer in best.wers], rel=1e-5)
    assert tables["lr_test-clean"][0] == ["system", "learning rate", "WER (%)", "is"]
    assert {row[3] for row in tables["lr_test-clean"][1:]} == {"mean", "seed"}
    assert tables["loss_seconds"][0] == ["system", "seconds", "nats per token", "lowest seed", "highest seed", "seeds"]


def test_plots_tables_and_page_can_be_read_aloud(page):
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    assert len(page.all("figure")) == 10
    assert all(figure.all("img")[0].attributes["alt"] for figure in page.all("figure"))
    assert all(figure.all("figcaption")[0].text.strip() for figure in page.all("figure"))
    keys = [svg for svg in page.all("svg") if svg.attributes.get("class") == "key"]
    assert keys
    assert all(key.attributes["aria-hidden"] == "true" for key in keys)
    for table in page.all("table"):
        assert all(cell.attributes["scope"] == "col" for cell in table.all("thead")[0].all("th"))
        for row in table.all("tbody")[0].all("tr"):
            assert row.children[0].attributes["scope"] == "row"
            assert len(row.children) == len(table.all("thead")[0].all("th"))
    boxes = [box for box in page.all("div") if box.attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table"))
    for box in boxes:
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["aria-labelledby"] == box.all("caption")[0].attributes["id"]


def test_what_users_wrote_is_text(tmp_path):
    names, words = (EVIL, f"{EVIL} lr=0.1"), {"title": EVIL, "baseline": EVIL, "notes": [EVIL], "problems": [EVIL]}
    evil = made_comparison(2, 2, curves=False, names=names, **words)
    runs = [dataclasses.replace(run, folder=tmp_path / EVIL / "\udcff") for run in evil.runs]
    root = written(dataclasses.replace(evil, runs=runs), tmp_path / "out")
    assert has_own_script_alone((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert root.all("h1")[0].text == EVIL
    assert root.all("title")[0].text == f"Comparison: {EVIL}"
    assert [item.text for item in root.all("ul")[0].all("li")] == [EVIL]
    assert table_of(root, "Word error rates")[1][0].startswith(EVIL)
    assert EVIL in table_of(root, "All runs")[1][-1]
    image = ElementTree.fromstring(unquote(root.all("img")[0].attributes["src"].partition(",")[2]))
    assert EVIL in [node.text for node in image.iter()]


def test_one_run_alone_has_a_report(tmp_path):
    root = written(made_comparison(1, 1, curves=False, target_wer=None, notes=[]), tmp_path)
    titles = [caption.text for caption in root.all("caption")]
    assert titles == ["Word error rates", "Training cost", "All runs"]
    assert table_of(root, "Word error rates")[0] == ["system", "WER %", "geometric mean %", "95 % interval", "seeds"]
    assert "Training loss against time: not drawn, because no run has logged it." in root.text
    assert len(root.all("figure")) == 1
    assert root.all("h2")[0].text.startswith("Test set test")


def test_a_set_that_cannot_name_a_file_is_refused(tmp_path):
    comparison = made_comparison(1, 1, sets=("a/b",), curves=False)
    with pytest.raises(ValueError, match="a/b"):
        write_report_files(comparison, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def printed(comparison, width=110) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    for table in tables(comparison):
        console.print(table)
    return console.export_text()


def test_the_answer_comes_first_and_terms_are_explained_elsewhere():
    lines = printed(compare_runs(sweep(), title="made", baseline="adamw")).splitlines()
    assert lines[0].startswith("test: ")
    assert lines[1].startswith("eve is best, ")
    assert not any("Another seed would give" in line for line in lines)


def test_the_tables_of_speed_are_whole_at_a_narrow_terminal():
    """Numbers are never cut: a name is folded instead."""
    comparison = made_comparison(4, 3, target_wer=0.06)
    row = comparison.equal_time.rows[0]
    contrast = dataclasses.replace(row.contrast, value=0.8123, low=0.6345, high=1.1234, verdict="cannot distinguish")
    rows = [dataclasses.replace(row, wer_mean=1.0, area=1.0, contrast=contrast), *comparison.equal_time.rows[1:]]
    equal = dataclasses.replace(comparison.equal_time, rows=rows)
    text = printed(dataclasses.replace(comparison, equal_time=equal), width=80)
    assert re.search(r" cannot distinguish +100\.00 ± 0\.\d\d +0\.81 \[0\.63, 1\.12\] +100\.00$", text, re.M)
    assert "≥ 6" in text
    assert "…" not in text


def test_names_are_text_not_markup():
    runs = [dataclasses.replace(run, system=run.system + " [red]x[/red]") for run in sweep()]
    assert "eve [red]x[/red]" in printed(compare_runs(runs, title="[b]made[/b]"))


def test_the_json_file_holds_all_but_curves_and_errors(tmp_path):
    comparison = compare_runs(sweep(), title="made", baseline="adamw", target_wer=0.2, problems=["p"], notes=["n"])
    data = json.loads(write_json(comparison, tmp_path).read_text())
    assert (data["title"], data["level"], data["target"]) == ("made", 0.95, {"wer": 0.2, "is_fixed": False})
    assert data["problems"][0] == "p"
    assert data["notes"] == ["n"]
    (found,) = data["sets"]
    assert (found["name"], found["num_utterances"], found["num_speakers"], found["baseline"]) == ("test", 6, 3, "adamw")
    assert found["rows"][0]["system"] == "eve"
    assert found["rows"][0]["to_baseline"]["verdict"] == "better"
    assert (data["times_to_target"], data["equal_time"]) == ([], None)
    assert len(data["runs"]) == 9
    assert set(data["runs"][0]) == {"folder", "system", "seed", "lr", "wer", "learned", "wer_by_weights", "cost"}


def test_the_json_file_holds_the_verdict_of_each_system_and_of_each_pair_if_asked(tmp_path):
    comparison = made_comparison(6, 3, pairs="all")
    data = json.loads(write_json(comparison, tmp_path).read_text())
    (found,) = data["sets"]
    assert {row["system"] for row in found["rows"] if row["to_baseline"] is None} == {found["baseline"]}
    assert {row["may_be_best"] for row in found["rows"]} == {True, False}
    names = {"num_seeds", "value", "low", "high", "p_adjusted", "verdict", "detectable", "points"}
    assert names <= set(found["rows"][0]["to_baseline"])
    assert len({frozenset((one["system"], one["other"])) for one in found["pairs"]}) == 15
    assert {one["verdict"] for one in found["pairs"]} == {"better", "cannot distinguish"}
    assert all(one["value"] <= 1 for one in found["pairs"])


def test_an_end_that_is_unknown_is_null_in_json_and_a_dash_in_tables(tmp_path):
    comparison = compare_runs([run_of("eve", seed, (one,) * 6) for seed, one in enumerate((3, 8))])
    (row,) = json.loads(write_json(comparison, tmp_path).read_text())["sets"][0]["rows"]
    assert (row["low"], row["high"]) == (None, None)
    assert any(re.match(r"eve +55.00 ± 35.36 +- seeds and", line) for line in printed(comparison).splitlines())


@pytest.mark.parametrize("seen", [False, True])
def test_stored_errors_are_judged_again_alike(tmp_path, seen):
    """By speaker, with a run that has failed; by utterance where training data have these speakers."""
    errors = [dataclasses.replace(run.sets["test"], seen_speakers=seen) for run in sweep()]
    runs = [dataclasses.replace(run, sets={"test": one}) for run, one in zip(sweep(), errors, strict=True)]
    compared = compare_runs(runs, failed=[("cain", 4), ("adamw", 4)])
    again = compare_results(str(write_errors(compared, tmp_path))).comparison
    assert again.sets[0].num_speakers == (None if seen else 3)
    for one, other in zip(compared.sets[0].rows, again.sets[0].rows, strict=True):
        assert (one.system, one.seeds, one.wers, one.to_baseline) == (
            *(other.system, other.seeds, other.wers, other.to_baseline),
        )


RATES = {"adamw": 0.4, "eve": 0.1, "cain": 0.3}
OF_WORDS = re.compile(r"WER|\b[Ww]ords?\b")


def write_scored(folder: Path, *words: str, unit: str = "character", rate: float = 0.3, **report) -> Path:
    config = {"data": {"scoring_unit": unit}, "sweep": {"target_wer": 0.3}, "decode": ["best", "last"]}
    summary = {
        "test": {"test": {"wer": rate, "unit": unit}},
        "other_weights": {"last": {"test": {"test": {"wer": 0.9 * rate}}}},
        **report,
    }
    return write_run(folder, *words, rate=rate, config=config, summary=summary)


@pytest.fixture(scope="module")
def of_characters(tmp_path_factory):
    """A comparison with every table and plot: runs that never learned and that failed, rates, weights and trials."""
    folder = tmp_path_factory.mktemp("runs")
    typed = [(f"optimizer={name}", rate, seed) for name, rate in RATES.items() for seed in (1, 2, 3)]
    typed += [("optimizer=adamw optimizer.lr=0.01", 0.5, seed) for seed in (1, 2, 3)]
    folders = [
        write_scored(folder / str(place), *name.split(), f"seed={seed}", rate=rate)
        for place, (name, rate, seed) in enumerate([*typed, ("optimizer=cain", 1.0, 4)])
    ]
    broken = write_scored(folder / "broken", "optimizer=eve", "seed=4")
    (broken / "report" / "summary.json").unlink()
    found = read_runs([*folders, broken], {broken})
    trials = [Tuning("adamw", ((0.01, 0.5), (0.02, 0.3)), 0.02, True)]
    return compare_runs(found.runs, title="made", baseline="adamw", failed=found.failed, tunings=trials, minutes=10)


def test_the_terminal_speaks_of_characters_alone(of_characters):
    text = " ".join(printed(of_characters, width=140).split())
    assert not OF_WORDS.findall(text)
    sentences = ("it has learned if its CER is below 100 %",)
    for part in ("Character error rates", "Updates to 30 % CER on dev", *sentences, "count with its CER."):
        assert part in text


def test_the_page_speaks_of_characters_alone(of_characters, tmp_path):
    report, *_ = write_report_files(of_characters, tmp_path)
    source = report.read_text(encoding="utf-8")
    assert "WER" not in source
    (body,) = parse(source).all("body")
    text = " ".join(body.text.split())
    assert not OF_WORDS.findall(text)
    columns = ("points of CER", "CER % on dev", "mean CER %", "CER % on test", "last CER %")
    for part in ("Character error rates", *columns):
        assert part in text


def test_plots_speak_of_characters_alone(of_characters):
    plots = draw_plots(of_characters)
    shown = {plot.name: [plot.title, plot.caption] for plot in plots.all}
    for plot in plots.all:
        shown[plot.name] += [n.text for n in ElementTree.fromstring(plot.svg).iter() if n.tag.endswith("text")]
    assert {"wer_test", "differences_test", "lr_test", "tuning", "dev_wer_updates", "loss_updates"} <= set(shown)
    for name, texts in shown.items():
        assert not OF_WORDS.findall(" ".join(texts)), name
        assert name.startswith("loss") or sum("CER" in text for text in texts) > 1, name
