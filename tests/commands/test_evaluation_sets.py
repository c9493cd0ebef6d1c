"""What asr-evaluate and asr-align refuse before they decode, and the folder that only one of them writes to."""

import fcntl
import os

import pytest


@pytest.fixture
def table(small_run, tmp_path):
    """Return a function that writes a table of one recording."""

    def write(name: str, text: str):
        file = tmp_path / f"{name}.tsv"
        file.write_text(f"audio\ttext\n{small_run.audio()}\t{text}\n")
        return file

    return write


@pytest.mark.parametrize("command", ["evaluate", "align"])
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x" * 246, "one", "whose name has more than 100 bytes; give name=NAME, or rename it"),
        ("empty", " ", "hold no words; name other data"),
    ],
    ids=["a long name", "no words"],
)
def test_what_could_not_be_written_or_scored_is_refused_before_work(
    small_run, tmp_path, table, command, name, text, said
):
    run = small_run.copy(tmp_path / "run")
    ended = small_run.run(command, f"run={run}", f"manifest={table(name, text)}", "num_workers=0")
    assert (ended.code, said in ended.printed) == (2, True), ended.printed
    assert not list((run / "align").glob("*"))
    assert [path for path in (run / "decode").glob("*") if path.is_dir()] == []


def test_a_long_name_is_replaced_by_one_that_is_given(small_run, tmp_path, table):
    words = (f"manifest={table('x' * 246, 'one')}", "name=short", f"output_dir={tmp_path}/out", "num_workers=0")
    ended = small_run.run("evaluate", f"run={small_run.run_dir}", *words)
    assert ended.code == 0, ended.printed
    assert (tmp_path / "out" / "short.hyp.txt").is_file()


@pytest.mark.parametrize("command", ["evaluate", "align", "transcribe"])
def test_one_process_at_a_time_writes_to_a_folder(small_run, tmp_path, command):
    (tmp_path / "out").mkdir()
    audio = (f"audio={small_run.audio()}",) if command == "transcribe" else ()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    words = (f"run={small_run.run_dir}", f"output_dir={tmp_path}/out", "num_workers=0", *audio)
    ended = small_run.run(command, *words)
    assert (ended.code, f"another process writes its results to {tmp_path}/out" in ended.printed) == (2, True)
    assert not list((tmp_path / "out").iterdir())
    os.close(descriptor)
    assert small_run.run(command, *words).code == 0


@pytest.mark.parametrize("command", ["export", "lm", "convert"])
def test_a_refusal_leaves_no_folder_above_the_output(small_run, tmp_path, command):
    named = "model" if command == "convert" else "run"
    ended = small_run.run(command, f"{named}={tmp_path}/nope", f"output={tmp_path}/a/b/c")
    assert ended.code == 2, ended.printed
    assert not (tmp_path / "a").exists()
