import pytest
import torch

from asr.models.encoders.zipformer import schedules
from tests.models.zipformer import reference


@pytest.fixture(scope="session")
def package(pytestconfig):
    """Return the folder of the authors' package; without it there is no proof, so a failing download fails the test."""
    return reference.find_package(pytestconfig.cache.mkdir("zipformer_package"))


@pytest.fixture(scope="session")
def authors(package):
    """Return the authors' modules."""
    return reference.load(package, precise=True)


@pytest.fixture
def double():
    """Let everything be made in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def decide(monkeypatch, authors):
    """Return a function that makes all of Python's draws in theirs, and all on the CPU in ours, one number."""

    def make(number: float) -> None:
        reference.draw_always(authors, number)
        monkeypatch.setattr(schedules, "draw", lambda: number)

    return make
