"""What a release is made from: its notes, versions, bounds, and the workflows."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

import asr

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SECTION = runpy.run_path(str(ROOT / "scripts" / "release_notes.py"))["section"]


def test_the_notes_of_a_version_are_its_section_alone():
    versions = re.findall(r"^## (\S+) \(", CHANGELOG, re.M)
    assert versions[0] == asr.__version__
    for version in versions:
        assert SECTION(CHANGELOG, version)
        assert "\n## " not in SECTION(CHANGELOG, version)
    assert SECTION(CHANGELOG, "9.9.9") == ""
    assert SECTION("## 1.0.10 (x)\nten\n## 1.0.1 (x)\none\n", "1.0.1") == "one"


def test_the_citation_has_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == asr.__version__
    assert citation["repository-code"] == PROJECT["project"]["urls"]["Repository"]


def test_extras_are_few_and_each_has_a_row():
    extras = PROJECT["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert len(extras) <= 7
    assert re.findall(r"^\| `(\w+)` \|.*\| \d+ \|$", page, re.M) == [*extras]


def test_an_upper_bound_has_its_reason():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    bounded = [line for line in lines if re.match(r' *"[a-z][\w.\[\]-]*[<>=].*<', line)]
    assert bounded
    assert [line for line in bounded if "#" not in line] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_by_digest_and_jobs_end(file):
    used = re.findall(r"uses: (\S+)(.*)", file.read_text(encoding="utf-8"))
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert action.startswith("./") or (re.search(r"@[0-9a-f]{40}$", action) and re.search("# v", comment)), action
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "uses" not in job and "timeout-minutes" not in job] == []


def test_developers_have_what_the_extras_need():
    extras, dev = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]["dev"]
    needed = {line for name, lines in extras.items() if name != "tts" for line in lines}
    assert needed <= {*dev}
