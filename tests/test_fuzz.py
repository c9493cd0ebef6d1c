"""A short form of scripts/fuzz.py; the long one is for people."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
READERS = ("table", "jsonl", "archive", "checkpoint", "run_folder", "manifest", "shar", "arpa")
NUM_INPUTS = 150
pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")


@pytest.fixture(scope="module")
def fuzzing(tmp_path_factory):
    """Return the table of readers and what watches them; the watch stays in the process, and sees nothing at rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        from fuzz_readers import READERS
        from fuzz_watch import Watch
    return READERS, Watch(tmp_path_factory.mktemp("fuzz") / "input")


def changed(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with some replaced, repeated, or left out."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        made[at : at + chance.choice((0, 1, 1, 30))] = chance.choice((b"", chance.randbytes(1), bytes(made[-40:])))
    return bytes(made)


def test_the_table_is_what_can_be_chosen(fuzzing):
    readers, _ = fuzzing
    assert tuple(readers) == READERS


@pytest.mark.parametrize("name", READERS)
def test_every_search_begins_with_inputs_that_are_read(fuzzing, name, tmp_path):
    readers, _ = fuzzing
    for number, seed in enumerate(readers[name].seeds()):
        readers[name].read(seed, tmp_path / str(number))


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes_are_answered_with_a_message(fuzzing, name):
    readers, watch = fuzzing
    seeds, chance = readers[name].seeds(), random.Random(name)
    for _ in range(NUM_INPUTS):
        data = changed(chance.choice(seeds), chance)
        problem = watch.find(readers[name].read, data)
        assert problem is None, f"{data!r}: {problem}"


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda data, folder: (folder.parent / "escaped").write_bytes(data), "outside its folder"),
        (lambda data, folder: (folder / "link").symlink_to("/etc"), "outside its folder"),
        (lambda data, folder: subprocess.run(["true"]), "did subprocess.Popen"),
        (lambda data, folder: __import__("pickle").loads(b"cos\ngetpid\n."), "did pickle.find_class"),
        (lambda data, folder: {}["missing"], "KeyError: 'missing'"),
        (lambda data, folder: bytes(b"x" * 3 * 2**29).count(b"y"), "MB, allowed are"),
        (lambda data, folder: (folder / "inside").write_bytes(data), None),
        (lambda data, folder: int("many"), None),
        (lambda data, folder: (folder / ("n" * 300)).write_bytes(data), None),
    ],
)
def test_the_watch_sees_what_no_reader_may_do(fuzzing, read, found):
    _, watch = fuzzing
    problem = watch.find(read, b"abc")
    assert problem is None if found is None else found in problem


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this platform")
def test_a_search_ends_with_what_was_found(tmp_path):
    command = [sys.executable, str(SCRIPTS / "fuzz.py"), "table", "--minutes", "0.05", "--folder", str(tmp_path)]
    environment = {"PYTHONPATH": str(SCRIPTS.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("ok: table: ")
    assert last.endswith(f"nothing found; corpus in {tmp_path}")
