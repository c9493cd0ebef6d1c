"""What a run records about itself."""

from importlib.metadata import version

from asr.training import run_summary


def test_a_package_that_is_not_installed_has_no_version_and_ends_nothing(monkeypatch):
    monkeypatch.setattr(run_summary, "PACKAGES", ("jiwer", "a-logger-that-nobody-installed"))
    assert run_summary.provenance()["versions"] == {"jiwer": version("jiwer")}
