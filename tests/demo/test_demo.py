"""The page of asr-demo: its texts are those of the other commands."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import soundfile

from asr.commands.demo import finish, listen
from asr.inference.streaming import StreamingRecognizer
from asr.run.instantiate import build_component
from asr.run.restore import model_options, recognizer_of
from asr.text.tokenizer import tokenizer_from_state
from asr.training.checkpoints import load_checkpoint

gradio_client = pytest.importorskip("gradio_client", reason="gradio is not installed (extra demo)")


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Return a function that starts the page of a run, and returns its address and its process."""
    started = []

    def start(run):
        port = free_port()
        words = ["demo", f"run={run}", f"port={port}", "torch_threads=1", "endpoint_s=0.5"]
        process = subprocess.Popen(
            [sys.executable, "-m", "asr.commands", *words],
            cwd=tmp_path_factory.mktemp("demo"),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return f"http://127.0.0.1:{port}/", process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def live_page(serve, causal):
    """Return a client of the page of a causal recognizer."""
    address, process = serve(causal)
    process.stdout.readline()
    return gradio_client.Client(address, verbose=False)


def test_a_recording_has_the_transcript_that_asr_transcribe_writes(live_page, small_run, causal):
    audio = small_run.audio
    printed = small_run.run("transcribe", f"run={causal}", f"audio={audio}", "output_format=json").printed
    expected = json.loads(printed.splitlines()[-1])
    text, words, files = live_page.predict(gradio_client.handle_file(audio), api_name="/transcribe")
    assert text == expected["text"] != ""
    assert words["data"] == [[word[key] for key in words["headers"]] for word in expected["words"]]
    found = {Path(file).suffix: Path(file).read_text() for file in files}
    assert json.loads(found[".json"])["words"] == expected["words"]
    assert found.keys() == {".txt", ".srt", ".json"}


@pytest.mark.parametrize("packet", [1000, 30_001])
def test_live_text_is_what_asr_stream_prints(small_run, causal, packet):
    samples, rate_hz = soundfile.read(small_run.audio, dtype="int16")
    words = f"run={causal}", f"audio={small_run.audio}", "endpoint_s=0.5"
    *expected, _ = small_run.run("stream", *words).printed.splitlines()
    checkpoint = load_checkpoint(causal)
    options, tokenizer = model_options(checkpoint), tokenizer_from_state(checkpoint.tokenizer)
    features, decoder = (build_component(getattr(options, key), key) for key in ("features", "decoder"))
    parts = recognizer_of(checkpoint), tokenizer, features, decoder
    start, said = lambda rate_hz: StreamingRecognizer(*parts, rate_hz, 0.5), None
    for place in range(0, len(samples), packet):
        _, said = listen(start, (rate_hz, samples[place : place + packet]), said)
    # endpoints depend on where packets end, the text does not
    assert finish(said)[0].split() == " ".join(expected).split() != []


def test_the_first_line_is_the_address_the_page_loads_nothing_from_elsewhere_and_ctrl_c_ends_it(serve, small_run):
    address, process = serve(small_run.run_dir)
    assert process.stdout.readline() == f"{address} shows first, update 6; Ctrl-C ends it\n"
    with urllib.request.urlopen(address) as page:
        html = page.read().decode()
    assert "causal" in html.lower()  # why text is not live
    for loads in ('src="http', 'href="http', "url(http", "@import"):
        assert loads not in html.replace(address, "/")
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130


def test_a_port_in_use_is_named(small_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = small_run.run("demo", f"run={small_run.run_dir}", f"port={port}", code=2)
    assert f"port={port}" in ended.last_line
