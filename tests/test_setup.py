"""The set-up script on machines that lack something; what it does where nothing lacks, CI shows."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "setup.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, path in (("VENV", ""), ("PYTHON", "bin/python"), ("STAMP", "werdict-setup")):
        monkeypatch.setattr(module, name, str(tmp_path / "venv" / path))
    return module


def test_an_old_python_is_told_so(script, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(SystemExit, match=r"3\.11 or newer"):
        script.main(["tts"])


def test_a_missing_venv_is_named_with_the_command_that_installs_it(script, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"apt-get install python3\.\d+-venv"):
        script.main(["tts"])
    assert not (tmp_path / "venv").exists()


def test_what_is_set_up_is_left_alone_and_extras_add_up(script, monkeypatch, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()
    commands = []
    monkeypatch.setattr(script.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    script.main(["tts"])
    assert commands[-1][-1].endswith("[tts]")
    script.main(["tts"])
    assert sum("install" in command for command in commands) == 1
    script.main(["dev", "demo"])
    assert next(word for word in commands[-1] if word.endswith("[demo,tts]"))
    assert any(word.startswith("pytest>=") for word in commands[-1])
    script.main(["tts"])
    assert sum("install" in command for command in commands) == 2


def test_an_unknown_extra_is_refused_before_anything_is_made(script, tmp_path):
    with pytest.raises(SystemExit, match=r"tests.*dev, docs"):
        script.main(["tests"])
    assert not (tmp_path / "venv").exists()


def test_a_failed_installation_is_not_taken_for_done(script, monkeypatch, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()
    monkeypatch.setattr(script.subprocess, "call", lambda command, **_: int("install" in command))
    with pytest.raises(SystemExit, match="pip could not install"):
        script.main(["tts"])
    assert not Path(script.STAMP).exists()
