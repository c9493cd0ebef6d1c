"""What a wheel and an sdist hold; ``scripts/check_wheel.sh`` installs them and trains."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import asr

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
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"asr", "optim", "pytest_optim.py", "werdict", "hydra_plugins"}
    for name in ("asr/configs/train.yaml", "asr/configs/optimizer/eve.yaml", "asr/recipes/digits/prepare.py"):
        assert name in names
    assert {"asr/py.typed", "optim/py.typed"} <= {*names}
    assert wheel.name.startswith(f"werdict-{asr.__version__}-")
    assert "asr/configs/recipe/digits/transformer_ctc.yaml" in names
    for name in ("report.html.jinja", "base.html.jinja", "report.css", "page.js"):
        assert f"werdict/templates/{name}" in names
    assert "asr/training/templates/run_page.html.jinja" in names
    assert len(names) == len(set(names))
    (metadata,) = [name for name in names if name.endswith("/METADATA")]
    readme = zipfile.ZipFile(wheel).read(metadata).decode()
    targets = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", readme)
    assert any("/docs/quickstart.md" in target for target, _ in targets)
    assert all("".join(target).startswith(("https://", "#")) for target in targets)


def test_an_editable_install_is_the_folder_on_the_path_and_no_copy_of_a_part(tmp_path):
    code = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    wheel = zipfile.ZipFile(*tmp_path.iterdir())
    (path,) = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert wheel.read(path).decode() == str(ROOT)


def test_the_sdist_builds_the_same_wheel(wheel, tmp_path):
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, "--sdist", str(ROOT)], check=True, capture_output=True)
    (sdist,) = tmp_path.iterdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    subprocess.run([*build, "--wheel", str(tmp_path / sdist.name.removesuffix(".tar.gz"))], check=True)
    files = [
        {item.filename: item.CRC for item in zipfile.ZipFile(file).infolist() if not item.filename.endswith("/RECORD")}
        for file in (wheel, *tmp_path.glob("*.whl"))
    ]
    assert files[0] == files[1]
    assert "asr/COMMIT" in files[0]
