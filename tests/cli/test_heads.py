"""Heads and decoders from the command line: every pair decodes, or is refused by name."""

import pytest

from tests.cli.conftest import TINY, Workplace

SMALL = ("head.predictor_dim=32", "head.joiner_dim=32")


def data(trained) -> str:
    return f"data.dir={trained.folder / 'data' / 'digits'}"


def test_a_transducer_with_ctc_trains_and_decodes_with_either(trained, tmp_path):
    place = Workplace(tmp_path)
    words = ("head=transducer_ctc", "decoder=transducer_greedy", *SMALL, *TINY, data(trained), "logger=csv")
    printed = place.run("train", *words, "run_dir=runs/both")
    assert "WER" in printed
    logged = (tmp_path / "runs" / "both" / "metrics.csv").read_text()
    assert all(f",train/{name}_loss," in logged for name in ("simple", "pruned", "ctc"))
    assert "WER" in place.run("evaluate", "run=runs/both", "decoder=ctc_greedy", "output_dir=ctc")
    assert (tmp_path / "ctc" / "test.hyp.txt").exists()
    assert "WER" in place.run("evaluate", "run=runs/both", "decoder=transducer_beam", "output_dir=beam")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("head=transducer",),
            "CtcGreedy cannot search with TransducerHead; choose decoder=transducer_beam or ",
        ),
        (("decoder=transducer_greedy",), "TransducerGreedy cannot search with CtcHead; choose decoder=ctc_beam or "),
    ],
)
def test_a_decoder_that_does_not_fit_is_refused_with_those_that_do(programs, tmp_path, words, said):
    ended = programs.run("train", *words, cwd=tmp_path)
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_that_does_not_fit_a_checkpoint_is_refused(trained, programs):
    ended = programs.run("evaluate", "run=first", "decoder=transducer_greedy", cwd=trained.folder)
    said = "TransducerGreedy cannot search with CtcHead; choose decoder=ctc_beam or decoder=ctc_greedy, or another head"
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
