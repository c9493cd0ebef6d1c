"""The README's commands, run in their order; the trainings are shortened."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import TINY

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(title: str) -> list[list[str]]:
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", section, re.S)]


def shell(command: str, folder: Path) -> str:
    environment = {**os.environ, "WANDB_MODE": "offline", "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_quickstart_is_the_first_section_and_two_lines():
    assert re.findall(r"^## (.*)", README, re.M)[:2] == ["Quickstart", "Next"]
    (lines,) = blocks("Quickstart")
    assert len(lines) == 2
    for line in lines:
        setup, _, _ = line.partition(" && ")
        command, script, *extras = shlex.split(setup)
        assert (command, script) == ("python3", "scripts/setup.py")
        assert "tts" in extras
        assert (ROOT / script).is_file()
    assert lines[0].endswith(" && .venv/bin/asr-train")
    assert lines[1].endswith(" && .venv/bin/pytest -n 2 --dist loadfile")


def test_what_comes_next_works_in_its_order(tmp_path):
    """After the Quickstart's training, which is shortened here, every line of the section runs as it stands."""
    shorter = " ".join(TINY)
    shell(f"asr-train {shorter}", tmp_path)
    activate, *lines = blocks("Next")[0]
    assert activate == ". .venv/bin/activate"
    for line in lines:
        printed = shell(f"{line} {shorter}" if line.startswith("asr-train") else line, tmp_path)
        if line.startswith("asr-transcribe"):
            assert re.search(r"digits-test-00000\.flac\t", printed)
        else:
            assert "WER" in printed
    assert len(list((tmp_path / "runs" / "digits" / "transformer_ctc").iterdir())) == 2
    assert len(list((tmp_path / "runs").glob("first/optimizer-*/report/summary.json"))) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "runs"]


def test_commands_that_need_more_than_a_test_has_are_marked():
    for title in ("Next", "Commands"):
        for block in blocks(title)[1:]:
            assert block[0].startswith("# not run by the tests:"), block


@pytest.mark.parametrize("path", sorted({*re.findall(r"\]\(([\w./-]+)\)", README)}))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_every_choice_of_the_tables_exists():
    table = README.split("| group | choices |")[1].split("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", table))
    have = {file.stem for file in (ROOT / "configs").rglob("*.yaml")} | {
        folder.name for folder in (ROOT / "configs").iterdir()
    }
    assert named - have == {"_s", "_m", "_l"}
