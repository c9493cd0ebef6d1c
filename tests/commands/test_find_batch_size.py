"""``asr-train find_batch_size=true``: a table, a proposal, and and nothing else."""

import re

import pytest

from asr.commands.find_batch_size import _conclusion
from asr.training.batch_size_search import BatchSizeSearch, Bucket, Measured
from tests.commands.conftest import TINY


def test_it_measures_proposes_and_leaves_without_a_run(trained):
    def files() -> set:
        return {path for path in trained.folder.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    options = ("augment=speed_specaugment", "trainer.accumulate_grad_batches=3", "data.batch.num_buckets=2")
    printed = trained.run("train", *TINY, "find_batch_size=true", *options)
    assert files() == before
    assert re.search(r"utterances.*longest s.*counted s.*peak MB.*s per update", printed)
    assert len(re.findall(r"^ +\d+ │ +\d+\.\d │ +\d+\.\d │ +\d+ │ +\d+\.\d+ *$", printed, re.M)) == 2
    assert re.search(r"(proposed: data\.batch\.max_duration_s=[\d.]+ \(now 30\)|did not grow measurably)", printed)
    assert "approximate" in printed
    assert "Warning" not in printed
    assert "run folder" not in printed


@pytest.mark.parametrize(
    ("peak", "available", "said"),
    [
        (1000, 10_000, ["max_duration_s=90 (now 10)", "far beyond", "another learning rate"]),
        (1000, 1_500, ["max_duration_s=13 (now 10)", "another learning rate"]),
        (1000, 800, ["max_duration_s=7.2 (now 10)"]),
        (1000, 400, ["max_duration_s=3.6 (now 10)", "count 5.0 s each", "data.limits.max_duration_s"]),
        (1000, 0, ["not even the smallest", "smaller encoder", "data.limits.max_duration_s"]),
        (0, 1000, ["did not grow", "search again"]),
    ],
)
def test_the_conclusion_says_what_to_do(peak, available, said):
    found = BatchSizeSearch("fake", available, 0, (Bucket(0, (Measured(2, 5.0, 10.0, peak),)),))
    text = "\n".join(_conclusion(found, 10.0))
    assert all(part in text for part in said), text
    for advice in ("far beyond", "another learning rate", "data.limits.max_duration_s"):
        assert (advice in text) == (advice in said)
