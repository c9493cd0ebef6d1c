"""What tests of every package share."""

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # several workers share the cores; torch reads this when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

DATA = Path(os.environ.get("WERDICT_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real recordings, or skip: they are never part of the repository."""
    if not DATA.is_dir():
        pytest.skip(f"no real recordings at {DATA}; WERDICT_DATA names their folder")
    return DATA
