"""The matched-pairs test against sclite's, on texts whose alignment leaves no choice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from scipy import stats

from werdict.runs import Texts
from werdict.statistics.estimate import matched_pairs

NUM_UTTERANCES, NUM_WORDS = 60, 12


def made_texts(seed: int) -> Texts:
    """Words that occur once in an utterance; errors are substitutions and deletions, so that there is one alignment."""
    rng = np.random.default_rng(seed)
    references, hypotheses = [], []
    for utterance in range(NUM_UTTERANCES):
        words = [f"w{utterance}x{place}" for place in range(NUM_WORDS)]
        kept = []
        for word in words:
            drawn = rng.random()
            kept += [word] if drawn > 0.2 else [f"{word}bad"] if drawn > 0.05 else []
        references.append(" ".join(words))
        # a word deleted beside a substituted one can be aligned in two ways, of equal costs
        hypotheses.append(" ".join(kept))
    return Texts(tuple(references), tuple(hypotheses))


def test_segments_are_separated_by_two_right_words_of_both_systems():
    one = Texts(("a b c d e f g", "a b"), ("x b c d e f g", "a b c"))
    other = Texts(("a b c d e f g", "a b"), ("a b y d e z z", "a b"))
    # a..c are one segment (b alone is right in between), f and g another, the insertion at the end a third
    differences = [0, -2, 1]
    p_value = 2 * stats.norm.sf(abs(np.mean(differences)) / stats.sem(differences))
    assert matched_pairs(one, other) == pytest.approx(p_value)
    assert matched_pairs(one, one) is None
    assert matched_pairs(Texts(("a",), ("a",)), Texts(("a",), ("a",))) is None


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_sclite(seed, tmp_path):
    program = os.environ.get("SCLITE") or shutil.which("sclite") or shutil.which("sclite", path="/usr/lib/sctk/bin")
    if program is None:
        pytest.skip("sclite is not installed: apt-get install sctk")
    texts = [made_texts(10 * seed), made_texts(10 * seed + 1)]
    for name, lines in (("ref", texts[0].references), ("one", texts[0].hypotheses), ("two", texts[1].hypotheses)):
        (tmp_path / f"{name}.trn").write_text("".join(f"{line} (s-{place})\n" for place, line in enumerate(lines)))
    for name in ("one", "two"):
        words = [program, "-r", "ref.trn", "trn", "-h", f"{name}.trn", "trn", name, "-i", "rm", "-o", "sgml"]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    graphs = "".join((tmp_path / f"{name}.trn.sgml").read_text() for name in ("one", "two"))
    words = [program.replace("sclite", "sc_stats"), "-p", "-t", "mapsswe", "-u", "-n", "result"]
    subprocess.run(words, cwd=tmp_path, input=graphs, check=True, capture_output=True, text=True)
    printed = (tmp_path / "result.stats.unified").read_text()
    bound, p_value = re.search(r"MP +\|\| +one +\|[ |]+ \S+ +(<?) *([\d.]+)", printed).groups()
    # sclite looks up z in a table of two digits, and cuts the others off
    z = np.floor(100 * stats.norm.isf(matched_pairs(*texts) / 2)) / 100
    expected = 2 * stats.norm.sf(z)
    assert expected < float(p_value) if bound else expected == pytest.approx(float(p_value), abs=6e-4)
