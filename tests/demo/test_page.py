"""The page of asr-demo in a headless Chromium."""

import re
import shutil
import time

import numpy as np
import pytest
import soundfile

from tests.demo.chromium import NAMES, browser, program

pytestmark = pytest.mark.skipif(program() is None, reason=f"no browser is installed: {', '.join(NAMES)}")

HEARD = "!['', 'Speak now …'].includes(document.querySelector('#live-text').innerText.trim())"


@pytest.fixture(scope="module")
def page(tmp_path_factory, small_run):
    """A page whose microphone hears a recording again and again."""
    spoken = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    samples, rate_hz = soundfile.read(small_run.audio())
    soundfile.write(spoken, np.tile(samples, 3), rate_hz)
    flags = "--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={spoken}"
    with browser(tmp_path_factory.mktemp("browser"), *flags) as opened:
        yield opened


@pytest.fixture
def opened(page, demo):
    """The page, ready for a recording."""
    page.events.clear()
    page.open(demo.address)
    page.wait("!document.querySelector('#file').disabled")
    return page


def transcript(page) -> str:
    page.wait("!document.querySelector('#result').hidden")
    return page.text("#transcript")


def test_a_file_becomes_words_with_times_and_confidence(opened, demo, small_run, tmp_path):
    name = "<img src=x onerror=alert(1)>.flac"
    shutil.copy(small_run.audio(), tmp_path / name)
    opened.choose_file("#file", tmp_path / name)
    shown = transcript(opened).split()
    found = demo.post("/transcribe", small_run.audio().read_bytes()).data
    words = [word for segment in found["segments"] for word in segment["words"]]
    assert shown == [word["word"] for word in words]
    assert opened.text("#result-name") == name
    first = words[0]
    title = opened.run("document.querySelector('#transcript .word').title")
    assert title.startswith(f"{first['start']:.2f}–{first['end']:.2f} s · ")
    opened.run("document.querySelector('#words').open = true")
    rows = [row.split("\t") for row in opened.text("#rows").splitlines()]
    assert [row[0] for row in rows] == shown
    assert rows[0][1:3] == [f"{first['start']:.2f}", f"{first['end']:.2f}"]
    assert int(rows[0][3].split()[0]) == int(100 * first["confidence"] + 1e-9)
    assert opened.complaints() == []
    assert opened.run("document.querySelectorAll('img').length") == 0
    assert {re.match(r"[a-z]+:(//[^/]*/)?", address)[0] for address in opened.addresses()} <= {
        *(demo.address, "blob:http:"),
        *("blob:", "data:"),  # of the browser's own buttons
    }


@pytest.mark.parametrize("ending", ["txt", "srt", "json"])
def test_transcripts_are_saved(opened, demo, small_run, tmp_path, ending):
    shutil.copy(small_run.audio(), tmp_path / "talk.flac")
    expected = demo.post("/transcribe?name=talk.flac", small_run.audio().read_bytes()).data["downloads"][ending]
    (tmp_path / "saved").mkdir()
    opened.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
    opened.choose_file("#file", tmp_path / "talk.flac")
    transcript(opened)
    opened.run(f"document.querySelector('[title=\"Save as .{ending}\"]').click()")
    saved = tmp_path / "saved" / f"talk.{ending}"
    for _ in range(200):
        if saved.exists() and saved.read_text() == expected:
            break
        opened.run("new Promise((done) => setTimeout(done, 50))")
    assert saved.read_text() == expected


def test_speech_is_heard_live_and_transcribed_at_its_end(opened):
    opened.run("document.querySelector('#record').click()")
    opened.wait(HEARD)
    opened.run("document.querySelector('#record').click()")
    assert transcript(opened).strip()
    assert opened.text("#result-name") == "recording.wav"
    assert opened.run("document.querySelector('#live').hidden && document.querySelector('#alert').hidden")
    opened.wait("document.querySelector('#audio').duration > 0.5")
    assert any("/streams?rate_hz=" in address for address in opened.addresses())
    assert opened.complaints() == []


@pytest.mark.slow
def test_a_recording_ends_at_the_limit_and_is_transcribed(opened):
    opened.run("document.querySelector('#record').click()")
    assert transcript(opened).strip()
    said = re.fullmatch(
        r"The recording has ended: at most 0:1([01]) are taken \(max_upload_mb\)\.", opened.text("#alert")
    )
    assert said, opened.text("#alert")
    # a megabyte at 44.1 or 48 kHz
    limit_s = 10 + int(said[1])
    assert limit_s - 1 < opened.run("document.querySelector('#audio').duration") <= limit_s
    assert opened.complaints() == []


def test_a_recognizer_that_cannot_stream_transcribes_at_the_end(page, offline_demo):
    page.open(offline_demo.address)
    page.wait("!document.querySelector('#record').disabled")
    assert page.text("#model").endswith("text after you have spoken")
    page.run("document.querySelector('#record').click()")
    page.wait("document.querySelector('#clock').innerText.startsWith('0:01')")
    assert page.run("document.querySelector('#live').hidden")
    page.run("document.querySelector('#record').click()")
    page.wait("!document.querySelector('#result').hidden")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"large.wav": 1_500_000}, "large.wav has 1.5 MB, and at most 1 MB are taken (max_upload_mb)."),
        ({"long.flac": None}, "long.flac is 60 s long, and at most 12 s are taken (max_duration_s);"),
        ({"text.wav": 100}, "text.wav cannot be read: Format not recognised."),
        ({"empty.wav": 0}, "empty.wav is empty."),
    ],
)
def test_what_is_not_taken_is_said_on_the_page(opened, tmp_path, files, said):
    for name, size in files.items():
        if size is None:
            soundfile.write(tmp_path / name, np.zeros(60 * 8000), 8000)
        else:
            (tmp_path / name).write_bytes(b"x" * size)
    opened.choose_file("#file", *(tmp_path / name for name in files))
    opened.wait("!document.querySelector('#alert').hidden")
    assert opened.text("#alert").startswith(said)
    assert opened.run("document.querySelector('#result').hidden")
    assert not opened.run("document.querySelector('#file').disabled")


def test_a_server_that_is_gone_is_told_and_what_was_spoken_is_kept(opened, demo):
    opened.run("document.querySelector('#record').click()")
    opened.wait("document.querySelector('#clock').innerText.startsWith('0:01')")
    offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    opened.ask("Network.emulateNetworkConditions", offline=True, **offline)
    opened.wait("!document.querySelector('#live-note').hidden")
    assert "Live text has stopped: The server does not answer." in opened.text("#live-note")
    opened.run("document.querySelector('#record').click()")
    opened.wait("!document.querySelector('#alert').hidden")
    assert opened.text("#alert").startswith("The server does not answer. Is asr-demo still at work?")
    opened.ask("Network.emulateNetworkConditions", offline=False, **offline)
    opened.run("document.querySelector('#alert button').click()")
    assert transcript(opened).strip()
    # the server waits for more of it, and other tests count
    (stream,) = {*re.findall(r"/streams/([\w-]+)", " ".join(opened.addresses()))}
    assert demo.post(f"/streams/{stream}?end=1").status == 200


def test_a_live_recording_ends_with_its_page(opened, demo):
    opened.run("document.querySelector('#record').click()")
    opened.wait(HEARD)
    (stream,) = {*re.findall(r"/streams/([\w-]+)", " ".join(opened.addresses()))}
    opened.open(demo.address)
    deadline = time.monotonic() + 10
    while demo.post(f"/streams/{stream}").status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_its_window(page, demo, small_run, tmp_path, width, is_dark):
    page.open(demo.address, width, is_dark=is_dark)
    page.wait("!document.querySelector('#file').disabled")
    name = "a-name-without-any-space-that-is-longer-than-the-window-of-a-phone-is-wide-" * 2 + ".flac"
    shutil.copy(small_run.audio(), tmp_path / name)
    page.choose_file("#file", tmp_path / name)
    transcript(page)
    page.run("document.querySelector('#words').open = true")
    assert page.run("document.documentElement.scrollWidth") <= width
    style = page.run("(({ color, backgroundColor }) => [color, backgroundColor])(getComputedStyle(document.body))")
    ink, ground = (sum(map(int, re.findall(r"\d+", value))) for value in style)
    assert (ink > ground) is is_dark
