"""The report as a file: what it says, that it holds all it needs, and that it breaks nothing."""

import dataclasses
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

import asr
from tests.werdict.made_comparisons import made_comparison
from tests.werdict.report.parsed_page import parse, table_of
from werdict.formatting import p_value
from werdict.report.pages import write_report_files

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


def test_nothing_is_loaded_and_nothing_runs(source, page):
    drawn = [image.attributes["src"] for image in page.all("img")]
    assert all(image.startswith("data:image/svg+xml,") for image in drawn)
    for image in drawn:
        source = source.replace(image, "")
    assert not re.search(r"https?:|//\w|url\((?!#)|@import|javascript:", source)
    assert not [found for tag in ("script", "iframe", "object", "embed") for found in page.all(tag)]
    assert [link.attributes for link in page.all("link")] == [{"rel": "icon", "href": "data:,"}]
    (policy,) = [meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_ids_are_unique_and_links_lead_somewhere(source, page):
    ids = re.findall(r'\sid="([^"]*)"', source)
    assert len(ids) == len(set(ids))
    targets = [link.attributes["href"] for link in page.all("a")]
    assert len(targets) == 7
    assert {target.removeprefix("#") for target in targets} <= set(ids)


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


def test_a_table_wider_than_the_page_scrolls_in_its_box_and_words_in_it_wrap():
    folder = Path(asr.__file__).parents[1]
    css = (folder / "werdict" / "templates" / "report.css").read_text()
    rules = dict(re.findall(r"^([^\s@{}][^@{}\n]*?) *\{([^{}]*)\}", css, re.MULTILINE))
    assert "overflow-x: auto" in rules[".scroll"]
    assert "white-space: normal" in rules[".errors > .scroll:not(.utterance) td.words"]
    # neither table nor box is as wide as what is in it
    assert "width: 100%" in rules["table"]
    for name in [*folder.glob("werdict/templates/*.jinja"), *folder.glob("asr/*/templates/*.jinja")]:
        open_tags = [""]
        for closing, tag, attributes in re.findall(r"<(/?)(div|table)\b([^\n]*)", name.read_text()):
            if closing:
                open_tags.pop()
            else:
                assert tag == "div" or "scroll" in open_tags[-1], name
                open_tags.append(attributes)


def test_what_users_wrote_is_text(tmp_path):
    names, words = (EVIL, f"{EVIL} lr=0.1"), {"title": EVIL, "baseline": EVIL, "notes": [EVIL], "problems": [EVIL]}
    evil = made_comparison(2, 2, curves=False, names=names, **words)
    runs = [dataclasses.replace(run, folder=tmp_path / EVIL / "\udcff") for run in evil.runs]
    root = written(dataclasses.replace(evil, runs=runs), tmp_path / "out")
    assert root.all("script") == []
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
