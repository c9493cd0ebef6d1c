"""``asr-train find_batch_size=true``: a table, a proposal, and nothing else."""

import re

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
