import itertools
import random
from pathlib import Path

import pytest
import torch

from asr.decoding.scorers import NGramScorer, Scorer
from asr.language_models import read_arpa
from tests.language_models.arpa_texts import Reference

PIECES = ["<blk>", "<unk>", "a", "b", "c"]


def scorer_of(text: str, folder: Path, pieces: list[str] = PIECES) -> NGramScorer:
    path = folder / "lm.arpa"
    path.write_text(text)
    return NGramScorer(read_arpa(path), pieces)


def scored(scorer: Scorer, tokens: list[int]) -> list[float]:
    """Return what a scorer adds for each token and at the end; it also scores all other tokens, and blanks between."""
    state, scores = scorer.start(1, torch.device("cpu")), []
    for token in tokens:
        scores.append(float(scorer.score(state, torch.tensor([[[1, token, 2]]]))[0, 0, 1]))
        state = scorer.advance(scorer.advance(state, torch.tensor([[token]])), torch.tensor([[0]]))
    return [*scores, float(scorer.end(state))]


def random_arpa(seed: int, order: int, words: tuple[str, ...], pruned: bool) -> str:
    """Return a model with random numbers, which may lack n-grams that others end with if it is pruned."""
    rng = random.Random(seed)
    levels = [[("<s>",), ("</s>",), *((word,) for word in words)]]
    for _ in range(order - 1):
        longer = [
            (*gram, word)
            for gram in levels[-1]
            for word in (*words, "</s>")
            if "</s>" not in gram and rng.random() < 0.4 and (pruned or (*gram, word)[1:] in levels[-1])
        ]
        levels.append(longer)
    lines = ["\\data\\", *(f"ngram {n}={len(level)}" for n, level in enumerate(levels, 1))]
    for n, level in enumerate(levels, 1):
        lines.append(f"\n\\{n}-grams:")
        rng.shuffle(level)
        for gram in level:
            backoff = f"\t{rng.uniform(-1, 0.3):.6f}" if n < order and rng.random() < 0.8 else ""
            lines.append(f"{rng.uniform(-3, -0.01):.6f}\t{' '.join(gram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("pruned", [False, True])
def test_scores_equal_those_looked_up_word_by_word(order, pruned, tmp_path):
    text = random_arpa(order, order, ("a", "b", "<unk>"), pruned)
    scorer, reference = scorer_of(text, tmp_path), Reference(text)
    for length in range(5):
        for tokens in itertools.product((1, 2, 3, 4), repeat=length):
            expected = reference.of_text([PIECES[token] for token in tokens])
            assert scored(scorer, list(tokens)) == pytest.approx(expected, abs=1e-9)


def test_a_model_that_knows_no_beginning_or_end_scores_the_rest(tmp_path):
    text = "\\data\\\nngram 1=2\nngram 2=1\n\\1-grams:\n-0.5 a -0.1\n-0.6 b\n\\2-grams:\n-0.2 a b\n\\end\\\n"
    found = torch.tensor(scored(scorer_of(text, tmp_path), [2, 3, 4])) / torch.tensor(10.0).log()
    torch.testing.assert_close(found, torch.tensor([-0.5, -0.2, -100.0, 0.0]))


@pytest.mark.parametrize("order", [2, 3, 5])  # kenlm reads no model of order 1
@pytest.mark.parametrize("words", [("a", "b", "<unk>"), ("a", "b")])
def test_scores_equal_those_of_kenlm(order, words, tmp_path):
    kenlm = pytest.importorskip("kenlm", reason="python3 scripts/setup.py peers, with CMake and a C++ compiler")
    text = random_arpa(order, order, words, pruned=False)
    scorer = scorer_of(text, tmp_path)
    peer = kenlm.Model(str(tmp_path / "lm.arpa"))
    rng = random.Random(order)
    for length in range(12):
        tokens = [rng.choice((2, 3, 4)) for _ in range(length)]
        sentence = " ".join(PIECES[token] for token in tokens)
        expected = [log_prob for log_prob, _, _ in peer.full_scores(sentence)]
        found = torch.tensor(scored(scorer, tokens)) / torch.tensor(10.0).log()
        # kenlm counts in single precision
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-6)
