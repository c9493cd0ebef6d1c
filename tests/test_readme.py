"""The README: one screen, whose quickstart CI runs, and whose links lead somewhere. Its blocks run in tests/docs."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(README.splitlines()) <= 180
    assert len(README.split()) <= 1500


def test_the_quickstart_is_two_lines():
    section = README.split("\n## Quickstart\n")[1].split("\n## ")[0]
    lines = re.findall(r"```sh\n(.*?)```", section, re.S)[0].strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        setup, _, _ = line.partition(" && ")
        command, script, *extras = shlex.split(setup)
        assert (command, script) == ("python3", "scripts/setup.py")
        assert "tts" in extras
        assert (ROOT / script).is_file()
    assert lines[0].endswith(" && .venv/bin/asr-train")
    assert lines[1].endswith(" && .venv/bin/pytest -n 2 --dist loadfile")


PAGES = [page for folder in ("", "docs/**/", "optim/", "recipes/*/") for page in ROOT.glob(f"{folder}*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path in re.findall(r"(?:\]\(|src=\")(?!\w+:|#)([^)#\s\"]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / path).exists(), path
