"""What asr-evaluate and asr-align refuse before they decode, and the folder that only one of them writes to."""

import fcntl
import os

import pytest


@pytest.fixture
def table(small_run, tmp_path):
    """Return a function that writes a table of one recording."""

    def write(name: str, text: str):
        file = tmp_path / f"{name}.tsv"
        file.write_text(f"audio\ttext\n{small_run.audio}\t{text}\n")
        return file

    return write


@pytest.mark.parametrize("command", ["evaluate", "align"])
def test_a_set_without_words_is_refused_before_work(small_run, tmp_path, table, command):
    run = small_run.copy(tmp_path / "run")
    ended = small_run.run(command, f"run={run}", f"manifest={table('empty', ' ')}", "num_workers=0", code=2)
    assert "empty.tsv" in ended.last_line, ended.printed
    assert not [path for name in ("align", "decode") for path in (run / name).glob("*") if path.is_dir()]


def test_a_name_that_is_too_long_for_files_of_results_is_replaced_by_one_that_is_given(small_run, tmp_path, table):
    words = (f"manifest={table('x' * 246, 'one')}", f"output_dir={tmp_path}/out", "num_workers=0")
    ended = small_run.run("evaluate", f"run={small_run.run_dir}", *words, code=2)
    assert "name=NAME" in ended.last_line, ended.printed
    small_run.run("evaluate", f"run={small_run.run_dir}", *words, "name=short")
    assert (tmp_path / "out" / "short.hyp.txt").is_file()


@pytest.mark.parametrize("command", ["evaluate", "transcribe"])
def test_one_process_at_a_time_writes_to_a_folder(small_run, tmp_path, command):
    (tmp_path / "out").mkdir()
    audio = (f"audio={small_run.audio}",) if command == "transcribe" else ()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    words = (f"run={small_run.run_dir}", f"output_dir={tmp_path}/out", "num_workers=0", *audio)
    ended = small_run.run(command, *words, code=2)
    assert f"{tmp_path}/out" in ended.last_line, ended.printed
    assert not list((tmp_path / "out").iterdir())
    os.close(descriptor)
    small_run.run(command, *words)


@pytest.mark.parametrize("command", ["export", "convert"])
def test_a_refusal_leaves_no_folder_above_the_output(small_run, tmp_path, command):
    named = "model" if command == "convert" else "run"
    small_run.run(command, f"{named}={tmp_path}/nope", f"output={tmp_path}/a/b/c", code=2)
    assert not (tmp_path / "a").exists()
