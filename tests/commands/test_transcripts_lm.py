"""A run that decodes with a language model of its own transcripts, from training to transcribing."""

import json
import shutil

import pytest

from tests.commands.conftest import TINY, Workplace
from tests.commands.test_resume import data

STEPS = ("logger=csv", "trainer.max_steps=6", "trainer.val_check_interval=3")


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("lm"))
    printed = place.run("train", *TINY, *STEPS, "data.transcripts_lm=3", "run_dir=run", f"data.dir={data(trained)}")
    (place.folder / "printed").write_text(printed)
    return place


def content(place, name):
    return (place.folder / "run" / name).read_text(encoding="utf-8")


def test_the_run_holds_its_model_its_weights_and_both_results(place):
    assert content(place, "lm/transcripts-3.arpa").startswith("\\data\\")
    weights = json.loads(content(place, "lm/weights.json"))
    assert [*weights] == ["order", "lm_weight", "token_bonus"]
    assert weights.pop("order") == 3
    tried = [line.split("\t") for line in content(place, "lm/tuning.tsv").splitlines()]
    assert tried[0] == ["lm_weight", "token_bonus", "wer", "cer"]
    best = min(tried[1:], key=lambda row: float(row[2]))
    chosen = next(row for row in tried[1:] if [float(x) for x in row[:2]] == [*weights.values()])
    assert chosen[2] == best[2]
    summary = json.loads(content(place, "report/summary.json"))
    assert summary["test"].keys() == summary["without_lm"].keys() == {"test"}
    assert "language model" in content(place, "decode/test.wer.txt")
    assert "language model" not in content(place, "decode/without_lm/test.wer.txt")
    with_lm, greedy, *_ = content(place, "report/report.html").split('class="first"')[1].split("</ul>")[0].split("<li>")
    assert "with a language model" in with_lm
    assert f"{100 * summary['without_lm']['test']['wer']:.2f} %" in greedy


def test_the_search_for_weights_says_how_to_do_without_it(place):
    before, option, after = (place.folder / "printed").read_text().partition("data.transcripts_lm=0")
    assert option
    assert "trained in" not in before
    assert "chosen: decoder.lm_weight" in after


def test_decoding_the_run_again_gives_its_result_and_greedy_search_the_other(place):
    place.run("evaluate", "run=run", "output_dir=again")
    printed = place.run("evaluate", "run=run", "decoder=ctc_greedy", "output_dir=greedy")
    assert "replaces the run's search" in printed
    assert (place.folder / "again" / "test.hyp.txt").read_text() == content(place, "decode/test.hyp.txt")
    assert (place.folder / "greedy" / "test.hyp.txt").read_text() == content(place, "decode/without_lm/test.hyp.txt")


def test_a_checkpoint_alone_decodes_without_it_and_says_so(place):
    shutil.copy(place.folder / "run" / "checkpoints" / "best.ckpt", place.folder / "alone.ckpt")
    printed = place.run("evaluate", "run=alone.ckpt", "output_dir=alone")
    assert "without the language model of the run's transcripts" in printed
    assert (place.folder / "alone" / "test.hyp.txt").read_text() == content(place, "decode/without_lm/test.hyp.txt")


def test_another_model_in_the_place_of_its_own_is_refused(place):
    shutil.copytree(place.folder / "run", place.folder / "changed", symlinks=True)
    model = place.folder / "changed" / "lm" / "transcripts-3.arpa"
    model.write_text(model.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert "transcripts-3.arpa" in place.run("evaluate", "run=changed", code=2)


def test_a_model_that_a_finished_run_is_given_decodes_it_again_too(place, trained):
    words = ("data.transcripts_lm=0", "run_dir=later", "decode_test=false", f"data.dir={data(trained)}")
    place.run("train", *TINY, *STEPS, *words)
    place.run("train", "resume=later", "data.transcripts_lm=2", "decode_test=true", "allow_changes=true")
    place.run("evaluate", "run=later", "output_dir=later-again")
    decoded = (place.folder / "later" / "decode" / "test.hyp.txt").read_text()
    assert (place.folder / "later-again" / "test.hyp.txt").read_text() == decoded
    assert "language model" in (place.folder / "later-again" / "test.wer.txt").read_text()


def test_a_resumed_run_keeps_its_former_results(place):
    shutil.copytree(place.folder / "run", place.folder / "longer", symlinks=True)
    before = content(place, "lm/transcripts-3.arpa")
    place.run("train", "resume=longer", "trainer.max_steps=8", "allow_changes=true")
    longer = place.folder / "longer" / "lm"
    assert (longer / "transcripts-3.arpa").read_text(encoding="utf-8") == before
    assert {"weights.backup1.json", "weights.json", "tuning.tsv"} <= {path.name for path in longer.iterdir()}
