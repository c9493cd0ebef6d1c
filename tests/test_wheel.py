"""A wheel, installed elsewhere, trains: configs and recipes travel inside it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import asr
from tests.commands.conftest import TINY

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # without isolation: the build backend is installed already, and nothing is fetched
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"asr", "optim", "hydra_plugins"}
    for name in ("asr/configs/train.yaml", "asr/configs/optimizer/eve.yaml", "asr/recipes/digits/prepare.py"):
        assert name in names
    assert {"asr/py.typed", "optim/py.typed"} <= {*names}
    assert wheel.name.startswith(f"werdict-{asr.__version__}-")
    assert "asr/configs/recipe/digits/transformer_ctc.yaml" in names
    for name in ("report.html.jinja", "base.html.jinja", "report.css"):
        assert f"werdict/templates/{name}" in names
    assert "asr/training/run_page/templates/run_page.html.jinja" in names
    assert len(names) == len(set(names))


def test_an_editable_install_is_the_folder_on_the_path_and_no_copy_of_a_part(tmp_path):
    code = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    wheel = zipfile.ZipFile(*tmp_path.iterdir())
    (path,) = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert wheel.read(path).decode() == str(ROOT)


def test_an_installed_wheel_trains_in_another_folder(wheel, tmp_path):
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(pip, check=True)
    (tmp_path / "work").mkdir()
    code = f"import asr.commands.train as t; assert t.__file__.startswith({str(site)!r}), t.__file__; t.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *TINY, "logger=none"],
        cwd=tmp_path / "work",
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WER" in done.stdout
    assert {path.name for path in (site / "bin").iterdir()} >= {"asr-train", "asr-prepare", "asr-evaluate"}
