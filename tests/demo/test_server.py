"""What the server of asr-demo answers, and what it refuses."""

import json
import socket
import threading
import time
from io import BytesIO

import numpy as np
import pytest
import soundfile

from asr.demo import live
from asr.demo.errors import Refused
from asr.demo.live import MAX_STREAMS, LiveStreams
from asr.demo.requests import copy
from asr.demo.server import PAGE, DemoServer, Handler
from tests.demo.conftest import BINARY, MAX_S

GIGABYTES = 2 * 10**9


def recording(seconds: float, rate_hz: int = 16_000, channels: int = 1, kind: str = "WAV") -> bytes:
    made = BytesIO()
    noise = np.random.default_rng(1).normal(0, 0.05, (round(seconds * rate_hz), channels))
    soundfile.write(made, noise, rate_hz, format=kind)
    return made.getvalue()


def raw(port: int, request: bytes) -> tuple[int, bytes]:
    """Return the status and the content of the answer to bytes that may be no request."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(2**16), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


@pytest.mark.parametrize("name", ["demo", "offline_demo"])
def test_a_recording_has_the_transcript_that_asr_transcribe_writes(request, small_run, causal, name):
    server = request.getfixturevalue(name)
    run, audio = causal if name == "demo" else small_run.run_dir, small_run.audio()
    printed = small_run.run("transcribe", f"run={run}", f"audio={audio}", "output_format=json").printed
    expected = json.loads(printed.splitlines()[-1])
    found = server.post("/transcribe?name=digits.flac", audio.read_bytes()).data
    assert found["name"] == "digits.flac"
    assert found["duration_s"] == pytest.approx(soundfile.info(audio).duration, abs=0.001)
    words = [{**word, "channel": 1} for segment in found["segments"] for word in segment["words"]]
    assert words == expected["words"]
    assert words
    assert json.loads(found["downloads"]["json"]) == {**expected, "id": "digits.flac"}
    assert found["downloads"]["txt"] == "".join(f"{segment['text']}\n" for segment in found["segments"])


@pytest.mark.parametrize("packet", [1000, 30_001])
def test_live_text_is_what_asr_stream_prints(demo, small_run, causal, packet):
    samples, rate_hz = soundfile.read(small_run.audio(), dtype="int16")
    words = f"run={causal}", f"audio={small_run.audio()}", "endpoint_s=0.5"
    *expected, _ = small_run.run("stream", *words).printed.splitlines()
    stream = demo.post(f"/streams?rate_hz={rate_hz}").data["stream"]
    lines = []
    for start in range(0, len(samples), packet):
        ends = "?end=1" if start + packet >= len(samples) else ""
        heard = demo.post(f"/streams/{stream}{ends}", samples[start : start + packet].tobytes()).data
        lines += [heard["text"]] if heard["is_final"] and heard["text"] else []
    assert heard["is_final"]
    # endpoints depend on where packets end, the text does not
    assert " ".join(lines) == " ".join(expected)
    assert lines
    assert "is over" in demo.post(f"/streams/{stream}", b"\0\0").error


def test_the_page_knows_whether_text_can_be_live(demo, offline_demo):
    about, offline = demo.get("/about").data, offline_demo.get("/about").data
    assert (about["is_live"], about["why_not_live"]) == (True, "")
    assert (about["max_upload_bytes"], about["max_duration_s"]) == (10**6, MAX_S)
    assert not offline["is_live"]
    assert "only a causal Zipformer" in offline["why_not_live"]
    assert offline_demo.post("/streams?rate_hz=16000").error == "this model cannot hear live speech"


def test_every_answer_forbids_other_places_and_keeping(demo):
    answers = [demo.get(path) for path in PAGE]
    assert {answer.status for answer in answers} == {200}
    for answer in (*answers, demo.get("/about"), demo.get("/none"), demo.post("/transcribe", b"no audio")):
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert not any(b"//" in content.replace(b"http://www.w3.org/2000/svg", b"") for content in icons_and_styles())


def icons_and_styles() -> list[bytes]:
    return [content for kind, content in PAGE.values() if not kind.startswith("text/javascript")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:PORT"}, 403),
        ({"Host": "127.0.0.1:PORT@evil.example"}, 403),
        ({"Host": "0.0.0.0:PORT"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:PORT"}, 403),
        ({"Host": "localhost:PORT", "Origin": "http://127.0.0.1:PORT"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Origin": "http://127.0.0.1:PORT", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "localhost:PORT", "Origin": "http://localhost:PORT"}, 200),
        ({"Host": "localhost:4000", "Origin": "http://localhost:4000"}, 200),  # through a tunnel
    ],
)
def test_only_the_page_itself_is_answered(demo, headers, status):
    given = {name: text.replace("PORT", str(demo.port)) for name, text in headers.items()}
    assert demo.post("/transcribe", recording(0.5), **given).status == status
    if status == 403 and "Sec-Fetch-Site" not in headers:
        assert demo.get("/about", **given).status == 403


def test_a_request_without_one_host_is_refused(demo):
    assert raw(demo.port, b"GET /about HTTP/1.1\r\n\r\n")[0] == 403
    twice = b"Host: 127.0.0.1\r\nHost: evil.example\r\n"
    assert raw(demo.port, b"GET /about HTTP/1.1\r\n" + twice + b"\r\n")[0] == 403


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /transcribe HTTP/1.1", [], 411),
        ("POST /transcribe HTTP/1.1", ["Transfer-Encoding: chunked"], 411),
        ("POST /transcribe HTTP/1.1", ["Content-Length: 4", "Transfer-Encoding: chunked"], 411),
        ("POST /transcribe HTTP/1.1", ["Content-Length: -1"], 411),
        ("POST /transcribe HTTP/1.1", ["Content-Length: 0x10"], 411),
        ("POST /transcribe HTTP/1.1", ["Content-Length: 4", "Content-Length: 5"], 411),
        ("POST /transcribe HTTP/1.1", [f"Content-Length: {GIGABYTES}"], 413),
        ("POST /streams?rate_hz=16000 HTTP/1.1", [f"Content-Length: {GIGABYTES}"], 413),
        ("POST /streams HTTP/1.1", ["Content-Length: 0"], 400),
        ("POST /streams?rate_hz=-1 HTTP/1.1", ["Content-Length: 0"], 400),
        ("POST /streams?rate_hz=0 HTTP/1.1", ["Content-Length: 0"], 400),
        ("POST /streams?rate_hz=44101 HTTP/1.1", ["Content-Length: 0"], 400),
        ("POST /streams?rate_hz=1&rate_hz=2 HTTP/1.1", ["Content-Length: 0"], 400),
        ("POST /streams/guessed HTTP/1.1", ["Content-Length: 0"], 404),
        ("POST /nowhere HTTP/1.1", ["Content-Length: 0"], 404),
        ("POST http://[ HTTP/1.1", ["Content-Length: 0"], 400),
        ("GET /../../etc/passwd HTTP/1.1", [], 404),
        ("GET /%2e%2e/server.py HTTP/1.1", [], 404),
        ("GET http://evil.example/about HTTP/1.1", [], 400),
        ("PUT /transcribe HTTP/1.1", ["Content-Length: 0"], 501),
        ("OPTIONS /transcribe HTTP/1.1", [], 501),
        ("GET / HTTP/9.0", [], 505),
        ("GET /", [], 200),
        ("<script>alert(1)</script>", [], 400),
        ("GET /" + "a" * 70_000 + " HTTP/1.1", [], 414),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(demo, request_line, headers, status):
    lines = [request_line, f"Host: 127.0.0.1:{demo.port}", f"Content-Type: {BINARY}", *headers, "", ""]
    found, content = raw(demo.port, "\r\n".join(lines).encode())
    assert found == status
    assert status == 200 or json.loads(content)["error"]


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 422, "a.wav is empty"),
        (b"no audio", 422, "a.wav cannot be read: Format not recognised"),
        (recording(0), 422, "a.wav cannot be read: empty audio"),
        (recording(2)[:-30_000], 422, "truncated audio: its header claims"),
        (recording(1, rate_hz=3000), 422, "impossible rate: 3000 Hz"),
        (recording(MAX_S + 1, rate_hz=8000), 413, "a.wav is 13 s long, and at most 12 s are taken (max_duration_s)"),
        (bytes(1_100_000), 413, "1.1 MB were sent, and at most 1 MB are taken (max_upload_mb)"),
    ],
)
def test_what_cannot_be_transcribed_is_said(demo, content, status, said):
    answer = demo.post("/transcribe?name=a.wav", content)
    assert (answer.status, said in answer.error) == (status, True), answer.error
    assert "/proc/" not in answer.error


@pytest.mark.parametrize(("rate_hz", "channels"), [(192_000, 1), (8000, 8)])
def test_unusual_recordings_are_transcribed(demo, rate_hz, channels):
    found = demo.post("/transcribe?name=a.wav", recording(1, rate_hz, channels))
    assert found.status == 200
    assert found.data["note"] == ("" if channels == 1 else "The first of 8 channels was transcribed.")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:%5Cx%5Ctalk.wav", "talk.wav"),
        ("%3Cimg%20src=x%20onerror=alert(1)%3E.wav", "<img src=x onerror=alert(1)>.wav"),
        ("%00%1b%5B2J%E2%80%AE.wav", "\\x00\\x1b[2J\\u202e.wav"),
        ("a%0Ab%09c.wav", "a b c.wav"),
        ("%FF.wav", "\ufffd.wav"),
        ("|touch%20hacked", "|touch hacked"),
        ("x" * 5000, "x" * 200),
        ("", "recording"),
        ("..", ".."),
        ("/", "recording"),
    ],
)
def test_names_of_files_are_only_shown(demo, name, shown):
    found = demo.post(f"/transcribe?name={name}", recording(0.5)).data
    assert found["name"] == shown
    assert json.loads(found["downloads"]["json"])["id"] == shown


def test_a_client_that_goes_in_the_middle_leaves_nothing(demo):
    head = f"POST /transcribe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {BINARY}\r\nContent-Length: 900000\r\n\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", demo.port)) as connection:
            connection.sendall(head.encode() + bytes(10_000))
    assert demo.post("/transcribe", recording(0.5)).status in (200, 503)


def test_an_upload_that_is_too_slow_makes_room_for_others(monkeypatch):
    monkeypatch.setattr("asr.demo.requests.PATIENCE_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as source:
        ours.sendall(b"x")
        threading.Timer(0.3, ours.sendall, [b"y"]).start()
        with pytest.raises(ConnectionAbortedError, match="too slow"):
            copy(source, BytesIO(), 3)


def test_a_head_that_comes_byte_by_byte_makes_room_for_others(monkeypatch):
    server = DemoServer(0)
    monkeypatch.setattr(Handler, "timeout", 0.5)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket.create_connection(server.server_address, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(100):
            time.sleep(0.1)
            try:
                connection.sendall(b"y")
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")
    server.shutdown()
    server.server_close()


def test_live_streams_are_bounded_in_number_and_length(demo):
    streams = [demo.post("/streams?rate_hz=8000").data["stream"] for _ in range(MAX_STREAMS)]
    refused = demo.post("/streams?rate_hz=8000")
    assert (refused.status, f"{MAX_STREAMS} live recordings are open" in refused.error) == (503, True)
    second = bytes(2 * 8000)
    assert demo.post(f"/streams/{streams[0]}", second[1:]).status == 400
    for _ in range(int(MAX_S)):
        assert demo.post(f"/streams/{streams[0]}", second).status == 200
    too_long = demo.post(f"/streams/{streams[0]}", second)
    assert (too_long.status, "longer than 12 s" in too_long.error) == (413, True)
    for stream in streams[1:]:
        assert demo.post(f"/streams/{stream}?end=1").data["is_final"]
    assert demo.post(f"/streams/{demo.post('/streams?rate_hz=8000').data['stream']}?end=1").status == 200


def test_live_streams_of_closed_pages_are_forgotten(monkeypatch):
    streams = LiveStreams(lambda rate_hz: None, max_s=1)
    names = [streams.open(16_000)["stream"] for _ in range(MAX_STREAMS)]
    streams.drop_idle()
    assert [*streams.streams] == names
    monkeypatch.setattr(live, "IDLE_S", 0.0)
    streams.drop_idle()
    assert not streams.streams
    with pytest.raises(Refused, match="is over"):
        streams.hear(names[0], b"", ends=False)
