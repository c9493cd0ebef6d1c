"""The report as a browser shows it, on a phone and on a desk; screenshots stay in the test's folder."""

import pytest

from asr.compare.report.files import write_report_files
from tests.compare.made_comparisons import made_comparison
from tests.compare.report.browser import Browser, find_chromium

SIZES = "[document.documentElement.scrollWidth, innerWidth]"
SHAPELESS = """[...document.querySelectorAll("svg, img")].filter(image => {
    const box = image.getBoundingClientRect();
    return box.width < 10 || box.height < 5;
}).length"""
# height of the texts of pictures, in pixels
SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll("figure text")].map(text => {
    const picture = text.closest("svg");
    return parseFloat(text.style.fontSize) * picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
}))"""
LOST = """[...document.querySelectorAll("figure text")].filter(text => {
    const box = text.getBoundingClientRect(), picture = text.closest("svg").getBoundingClientRect();
    return box.left < picture.left - 1 || box.right > picture.right + 1 || box.bottom > picture.bottom + 1;
}).map(text => text.textContent)"""
STICKY = """(() => {
    const box = document.querySelector(".scroll");
    box.scrollLeft = 1000;
    const name = box.querySelector("tbody th").getBoundingClientRect();
    return [box.scrollLeft > 0, Math.abs(name.left - box.getBoundingClientRect().left) < 3];
})()"""
# right ends of names, differences and p, and of the box in which the table scrolls
ENDS = """[...document.querySelectorAll("table")].filter(table =>
    /^(Difference from|Other pairs that)/.test(table.caption.textContent)
).flatMap(table => [...table.rows].map(row => [
    row.cells[2].getBoundingClientRect().right, table.closest(".scroll").getBoundingClientRect().right
]))"""
COLUMNS = """[...document.querySelectorAll("table")].find(table =>
    table.caption.textContent.startsWith("Difference from")
).rows[0].innerText.split("\\t").slice(0, 3).map(name => name.trim().replace(/\\s+/g, " "))"""
PAPER = 'getComputedStyle(document.querySelector("figure")).backgroundColor'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium found; WERDICT_CHROMIUM names one")
    started = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module", params=[1, 16])
def report(request, tmp_path_factory):
    comparison = made_comparison(request.param, min(3, request.param))
    return write_report_files(comparison, tmp_path_factory.mktemp(f"report{request.param}"))[0]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_fits_its_window_and_loads_nothing(browser, report, width, tmp_path):
    browser.show(report, width)
    page, window = browser.value(SIZES)
    assert (page <= window, window) == (True, width)
    assert browser.value(SHAPELESS) == 0
    assert browser.value(LOST) == []
    assert browser.requests == [report.resolve().as_uri()]
    browser.screenshot(tmp_path / f"{width}.png")
    assert (tmp_path / f"{width}.png").stat().st_size > 10_000


def test_pictures_can_be_read_on_a_phone(browser, report):
    browser.show(report, 390)
    assert browser.value(SMALLEST_TEXT) > 8.5


@pytest.mark.parametrize("report", [16], indirect=True)
def test_differences_and_p_are_seen_on_a_phone_without_scrolling_sideways(browser, report):
    browser.show(report, 390)
    assert browser.value(COLUMNS) == ["system", "points [95 %]", "p (adjusted)"]
    ends = browser.value(ENDS)
    assert len(ends) > 2 * 16
    assert all(end <= box <= 390 for end, box in ends)


@pytest.mark.parametrize("report", [16], indirect=True)
def test_a_wide_table_scrolls_in_its_box_and_keeps_its_names(browser, report):
    browser.show(report, 390)
    assert browser.value(STICKY) == [True, True]


def test_the_page_follows_the_scheme_of_the_reader(browser, report, tmp_path):
    colors = []
    for dark in (False, True):
        browser.show(report, 390, dark=dark)
        colors.append(browser.value(PAPER))
    browser.screenshot(tmp_path / "dark.png")
    assert colors == ["rgb(255, 255, 255)", "rgb(22, 27, 34)"]
