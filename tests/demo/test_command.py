"""asr-demo as a command: its first line, its end, and what it refuses."""

import re
import signal
import socket
import time
import urllib.request

import pytest


def test_the_first_line_is_the_address_and_ctrl_c_ends_it_with_one_line(small_run, tmp_path):
    words = f"run={small_run.run_dir}", "port=0", "torch_threads=1"
    server = small_run.programs.start("demo", *words, cwd=tmp_path)
    log = tmp_path / "log.txt"
    deadline = time.monotonic() + 60
    while not log.exists() or not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    address = re.match(r"(http://127\.0\.0\.1:\d+/) shows first, update 6; Ctrl-C ends it\n", log.read_text())
    assert address, log.read_text()
    with urllib.request.urlopen(address[1]) as page:
        assert b"<h1>Speech to text</h1>" in page.read()
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 130
    assert log.read_text().splitlines()[1:] == ["asr-demo: interrupted"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt"]


def test_a_port_in_use_is_told_before_the_run_is_read(small_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = small_run.run("demo", "run=none", f"port={port}")
    assert ended.code == 2
    assert ended.last_line == f"asr-demo: port={port} is in use; give another, or port=0 for any that is free"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["port=70000"], "port must be a whole number of at least 0 and at most 65535, given 70000"),
        (["port=-1"], "port must be a whole number of at least 0 and at most 65535, given -1"),
        (["max_upload_mb=0"], "max_upload_mb must be a finite number above 0, given 0"),
        (["max_upload_mb=1e9"], "max_upload_mb must be at most 4000, given 1000000000.0"),
        (["max_duration_s=-1"], "max_duration_s must be a finite number above 0, given -1"),
        (["run=nowhere", "port=0"], "nowhere"),
        (["host=0.0.0.0"], "host"),
    ],
)
def test_wrong_options_end_before_the_page_is_there(small_run, words, said):
    ended = small_run.run("demo", f"run={small_run.run_dir}", *words)
    assert ended.code == 2
    assert said in ended.last_line
    assert "http://" not in ended.printed
