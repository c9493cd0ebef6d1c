"""What a run records about itself."""

from importlib.metadata import version

from asr.training import report


def test_a_package_that_is_not_installed_has_no_version_and_ends_nothing(monkeypatch):
    monkeypatch.setattr(report, "PACKAGES", ("jiwer", "a-logger-that-nobody-installed"))
    assert report.provenance()["versions"] == {"jiwer": version("jiwer")}
