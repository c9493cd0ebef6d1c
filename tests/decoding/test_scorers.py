"""What scores tokens beside the model: n-grams of tokens and words, hotwords, and their fusion."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch

from asr.decoding.beam import CtcBeam, ShallowFusion
from asr.decoding.scorers import HotwordScorer, NGramScorer, Scorer, WeightedSum, WordNGramScorer, select
from asr.language_models import read_arpa
from asr.text.tokenizer import (
    SPACE_PIECE,
    SPECIAL_PIECES,
    CharacterTokenizer,
    CharacterTokenizerTrainer,
    SentencePieceTrainer,
    Tokenizer,
    own_tokenizer,
)
from tests.decoding.test_beam import Scores
from tests.language_models.arpa_texts import Reference
from tests.text.cases import own_model
from werdict.normalization import TextNormalizer

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


WORDS = ("a", "an", "ant", "bat", "tab", "tä")
TEXTS = ["an ant", "a bat tab", "tab tab a", "bat", "banana a", "an tan tat", "antant", "tä bä an tä", ""]
TOKENIZERS = {
    "characters": CharacterTokenizerTrainer().train(TEXTS),
    "subwords": SentencePieceTrainer(14, "bpe").train(TEXTS),
    "spaces at the ends of tokens": own_tokenizer(own_model(TEXTS, vocab_size=16, treat_whitespace_as_suffix=True)),
    "bytes": own_tokenizer(own_model(["ant bat tab"], vocab_size=270, byte_fallback=True)),
}


def word_scorer_of(text: str, folder: Path, tokenizer, normalize=str) -> WordNGramScorer:
    path = folder / "lm.arpa"
    path.write_text(text)
    return WordNGramScorer(read_arpa(path), tokenizer.surfaces, normalize)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_whole_texts_have_the_scores_of_their_words(kind, order, seed, tmp_path):
    tokenizer, text = TOKENIZERS[kind], random_arpa(seed, order, (*WORDS, "<unk>"), pruned=bool(seed))
    scorer, reference = word_scorer_of(text, tmp_path, tokenizer), Reference(text)
    for sentence in TEXTS:
        found = sum(scored(scorer, tokenizer.encode(sentence)))
        known = [word if word in WORDS else "<unk>" for word in sentence.split()]
        assert found == pytest.approx(sum(reference.of_text(known)), abs=1e-9)


def test_tokens_of_several_words_are_refused(tmp_path):
    tokenizer = own_tokenizer(own_model(["an ant"] * 9, vocab_size=12, model_type="bpe", split_by_whitespace=False))
    assert "▁an▁ant" in tokenizer.pieces
    with pytest.raises(ValueError, match=r"\[' an a.* asr-lm"):
        word_scorer_of(random_arpa(0, 1, WORDS, pruned=False), tmp_path, tokenizer)


def test_a_beginning_is_worth_the_most_probable_word_that_has_it(tmp_path):
    text = "\\data\\\nngram 1=5\n\\1-grams:\n-1 <s>\n-0.5 </s>\n-2 an\n-1 ant\n-3 <unk>\n\\end\\\n"
    tokenizer = TOKENIZERS["characters"]
    scorer = word_scorer_of(text, tmp_path, tokenizer)
    a, n, t, b, space = (tokenizer.pieces.index(piece) for piece in "antb▁")
    by_ten = math.log(10)
    assert scored(scorer, [a, n]) == pytest.approx([-by_ten, 0.0, (-2 + 1 - 0.5) * by_ten])
    assert scored(scorer, [a, n, t, space]) == pytest.approx([-by_ten, 0.0, 0.0, 0.0, -0.5 * by_ten])
    assert scored(scorer, [a, b, space, a]) == pytest.approx(
        [-by_ten, -2 * by_ten, 0.0, -by_ten, (-3 + 1 - 0.5) * by_ten]
    )


def test_words_are_normalized_as_the_transcripts_are(tmp_path):
    text = "\\data\\\nngram 1=4\n\\1-grams:\n-1 Ant\n-0.5 ANT\n-2 BAT\n-3 <unk>\n\\end\\\n"
    tokenizer = TOKENIZERS["characters"]
    scorer = word_scorer_of(text, tmp_path, tokenizer, str.lower)
    assert sum(scored(scorer, tokenizer.encode("ant bat"))) == pytest.approx(-2.5 * math.log(10))


def test_words_that_no_token_can_write_are_refused(tmp_path):
    text = "\\data\\\nngram 1=1\n\\1-grams:\n-1 zulu\n\\end\\\n"
    with pytest.raises(
        ValueError, match=r"its words are like \['zulu'\], and none is written with the letters of the run"
    ):
        word_scorer_of(text, tmp_path, TOKENIZERS["characters"])


SCORERS = {
    "hotwords": lambda folder: HotwordScorer(random_phrases(9), 6),
    "n-grams": lambda folder: scorer_of(random_arpa(7, 3, ("a", "b", "c"), pruned=True), folder),
    "n-grams of words": lambda folder: word_scorer_of(
        random_arpa(3, 2, WORDS, pruned=False), folder, TOKENIZERS["characters"]
    ),
}


@pytest.mark.parametrize("make", SCORERS.values(), ids=SCORERS)
def test_hypotheses_do_not_mix(make, tmp_path):
    scorer, drawn = make(tmp_path), torch.randint(2, 5, (2, 3, 7), generator=torch.Generator().manual_seed(0))

    def totals(texts: torch.Tensor) -> torch.Tensor:
        state = scorer.start(len(texts), torch.device("cpu"))
        state, total = select(state, torch.zeros_like(texts[..., 0])), torch.zeros(texts.shape[:2], dtype=torch.float64)
        for tokens in texts.unbind(2):
            total += scorer.score(state, tokens.unsqueeze(2)).squeeze(2)
            state = scorer.advance(state, tokens)
        return total + scorer.end(state)

    together = totals(drawn)
    for row, slot in product(range(2), range(3)):
        alone = totals(drawn[row : row + 1, slot : slot + 1])
        torch.testing.assert_close(together[row, slot], alone[0, 0])


class Counting:
    """Adds a step per token that has come before, and the number of tokens at the end."""

    def __init__(self, step: float) -> None:
        self.step = step

    def start(self, batch_size, device):
        return (torch.zeros(batch_size, 1, 2, device=device),)

    def score(self, state, tokens):
        return (state[0][..., :1] * self.step).expand(tokens.shape)

    def advance(self, state, tokens):
        return (state[0] + (tokens != 0).unsqueeze(2),)

    def end(self, state):
        return state[0][..., 0]


def test_a_sum_of_sums_weighs_each_scorer_and_counts_tokens():
    inner = WeightedSum([(Counting(1.0), 2.0)], token_bonus=0.25)
    scorer = WeightedSum([(inner, 0.5), (Counting(10.0), -1.0)], token_bonus=3.0)
    state = scorer.start(1, torch.device("cpu"))
    state = scorer.advance(select(state, torch.zeros(1, 3, dtype=torch.int64)), torch.tensor([[0, 5, 7]]))
    state = scorer.advance(select(state, torch.tensor([[2, 0]])), torch.tensor([[4, 0]]))
    found = scorer.score(state, torch.tensor([[[1, 2], [3, 4]]]))
    twice = 0.5 * (2 * 2 + 0.25) - 20 + 3
    never = 0.5 * 0.25 + 3
    torch.testing.assert_close(found, torch.tensor([[[twice] * 2, [never] * 2]], dtype=torch.float64))
    torch.testing.assert_close(scorer.end(state), torch.tensor([[0.5 * 2 * 2 - 2, 0.0]], dtype=torch.float64))


SPACE = 2
Phrases = dict[tuple[int, ...], float]


def ending(text: list[int], phrase: tuple[int, ...]) -> bool:
    return len(phrase) <= len(text) and tuple(text[len(text) - len(phrase) :]) == phrase


def brute_force(
    text: list[int], phrases: Phrases, boundary: int | None, beginnings: Sequence[int] = ()
) -> tuple[float, float]:
    """Return what the complete phrases of a text add, and the best phrase that is not complete at its end."""
    first = () if boundary is None else (boundary,)
    text = [*first, *text]
    complete = [
        boost * len(phrase)
        for phrase, boost in phrases.items()
        for end in range(len(text) + 1)
        if ending(text[:end], first + phrase) and (not beginnings or end == len(text) or text[end] in beginnings)
    ]
    begun = [
        boost * length
        for phrase, boost in phrases.items()
        for length in range(len(phrase))
        if ending(text, first + phrase[:length])
    ]
    return sum(complete), max([0.0, *begun])


def scored_hotwords(scorer: HotwordScorer, tokens: list[int]) -> tuple[list[float], float]:
    state, scores = scorer.start(1, torch.device("cpu")), []
    for token in tokens:
        scores.append(float(scorer.score(state, torch.tensor([[[3, token]]]))[0, 0, 1]))
        state = scorer.advance(scorer.advance(state, torch.tensor([[token]])), torch.tensor([[0]]))
    return scores, float(scorer.end(state))


def random_phrases(seed: int) -> Phrases:
    rng = random.Random(seed)
    return {tuple(rng.choices((2, 3, 4), k=rng.randint(1, 4))): rng.choice((0.5, 1.0, 2.25)) for _ in range(seed)}


@pytest.mark.parametrize(("boundary", "beginnings"), [(None, ()), (SPACE, ()), (SPACE, (SPACE,)), (None, (3, 5))])
@pytest.mark.parametrize("seed", [0, 1, 3, 6, 12])
def test_scores_equal_those_of_looking_at_the_whole_text_each_time(seed, boundary, beginnings):
    phrases = random_phrases(seed)
    scorer = HotwordScorer(phrases, 6, boundary, beginnings)
    for length, repeat in itertools.product(range(9), range(8)):
        text = random.Random(100 * length + repeat).choices((2, 3, 4, 5), weights=(3, 3, 3, 1), k=length)
        scores, end = scored_hotwords(scorer, text)
        for place in range(length + 1):
            assert sum(scores[:place]) == pytest.approx(sum(brute_force(text[:place], phrases, boundary, beginnings)))
        assert sum(scores) + end == pytest.approx(brute_force(text, phrases, boundary, beginnings)[0])


CHARACTERS = CharacterTokenizer([*SPECIAL_PIECES, SPACE_PIECE, "a", "b", "c"])
ARPA = """\\data\\
ngram 1=5
ngram 2=2
\\1-grams:
-99 <s>
-1.0 </s>
-1.0 <unk>
-1.0 a
-1.0 b
\\2-grams:
-0.1 a b
-2.0 a a
\\end\\
"""


def written(folder: Path, text: str, name: str = "file.txt") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def loaded(fusion: ShallowFusion, tokenizer: Tokenizer = CHARACTERS) -> list[str]:
    fusion.load_scorers(tokenizer, TextNormalizer(case="lower"))
    return fusion.notes


def score_of(fusion: ShallowFusion, tokens: list[int]) -> float:
    state, total = fusion.scorer.start(1, torch.device("cpu")), 0.0
    for token in tokens:
        total += float(fusion.scorer.score(state, torch.tensor([[[token]]])))
        state = fusion.scorer.advance(state, torch.tensor([[token]]))
    return total + float(fusion.scorer.end(state))


def test_language_model_bonus_and_hotwords_add_up(tmp_path):
    lm, phrases = written(tmp_path, ARPA, "lm.arpa"), written(tmp_path, "A B\t2.5\n\nba\r\n", "words.txt")
    fusion = ShallowFusion(lm=lm, lm_weight=0.5, token_bonus=0.25, hotwords=phrases, hotword_boost=1.5)
    assert loaded(fusion) == [
        f"language model {lm} of order 2, without 2 of 4 tokens, such as ['▁', 'c']; weight 0.5, bonus per token 0.25",
        f"2 hotwords of {phrases}",
    ]
    # a b and the end, then "ba", for a phrase
    assert score_of(fusion, [3, 4]) == pytest.approx(0.5 * math.log(10) * (-1.0 - 0.1 - 1.0) + 2 * 0.25)
    assert score_of(fusion, [4, 3]) == pytest.approx(0.5 * math.log(10) * -3.0 + 2 * 0.25 + 2 * 1.5)
    found = score_of(fusion, [3, 2, 4])
    assert found == pytest.approx(0.5 * math.log(10) * -4.0 + 3 * 0.25 + 3 * 2.5)


def test_a_second_model_is_subtracted(tmp_path):
    lm, low = written(tmp_path, ARPA, "lm.arpa"), written(tmp_path, ARPA.replace("-0.1 a b", "-0.4 a b"), "low.arpa")
    fusion = ShallowFusion(lm=lm, lm_weight=0.5, lodr=low, lodr_weight=0.25)
    assert loaded(fusion)[1].endswith("such as ['▁', 'c'], subtracted; weight 0.25")
    by_hand = 0.5 * (-1.0 - 0.1 - 1.0) - 0.25 * (-1.0 - 0.4 - 1.0)
    assert score_of(fusion, [3, 4]) == pytest.approx(math.log(10) * by_hand)


def test_weights_of_what_is_loaded_can_be_changed(tmp_path):
    lm = written(tmp_path, ARPA, "lm.arpa")
    fusion = ShallowFusion(lm=lm, lm_weight=0.5)
    assert fusion.tunable == {}
    assert "weight 0.5, bonus per token 0" in loaded(fusion)[0]
    assert list(fusion.tunable) == ["lm_weight", "token_bonus"]
    fusion.weigh(lm_weight=0.25, token_bonus=2.0)
    assert "weight 0.25, bonus per token 2" in fusion.notes[0]
    assert score_of(fusion, [3, 4]) == pytest.approx(0.25 * math.log(10) * -2.1 + 4.0)


def test_hotwords_begin_where_words_begin(tmp_path):
    # with the mark that Windows begins text with
    fusion = ShallowFusion(hotwords=written(tmp_path, "\ufeffab\r\n"), hotword_boost=1.0)
    loaded(fusion)
    assert [score_of(fusion, tokens) for tokens in ([3, 4], [5, 3, 4], [5, 2, 3, 4])] == [2.0, 0.0, 2.0]


def test_a_beam_finds_what_the_language_model_and_the_hotwords_prefer(tmp_path):
    log_probs = torch.tensor([[[0.02, 0.02, 0.02, 0.9, 0.02, 0.02], [0.02, 0.02, 0.02, 0.02, 0.42, 0.5]]]).log()

    def best(**options) -> list[int]:
        beam = CtcBeam(**options)
        loaded(beam)
        return beam(Scores(), log_probs, torch.tensor([2]))[0][0].tokens

    lm, phrases = written(tmp_path, ARPA, "lm.arpa"), written(tmp_path, "ab", "words.txt")
    assert best() == best(lm=lm, lm_weight=0.0) == [3, 5]
    assert best(lm=lm) == best(hotwords=phrases) == [3, 4]
    assert best(token_bonus=-10.0) == []


@pytest.mark.parametrize("option", ["lm", "lodr", "hotwords"])
def test_a_file_that_does_not_exist_is_refused_at_once(option):
    with pytest.raises(ValueError, match=f"{option}: '/nowhere/lm'"):
        ShallowFusion(**{option: "/nowhere/lm"})


@pytest.mark.parametrize("line", ["ab\t0", "ab\tmuch", "axe", "\t1"])
def test_wrong_lines_of_hotwords_are_named(line, tmp_path):
    fusion = ShallowFusion(hotwords=written(tmp_path, f"ab\n{line}\n"))
    with pytest.raises(ValueError, match=r"file\.txt, line 2: "):
        loaded(fusion)


def model_of(*words: str) -> str:
    return f"\\data\\\nngram 1={len(words)}\n\\1-grams:\n" + "".join(f"-1 {word}\n" for word in words) + "\\end\\"


WITHOUT_SPACES = CharacterTokenizer([*SPECIAL_PIECES, "a", "b", "c"])


@pytest.mark.parametrize(
    ("words", "tokenizer", "said"),
    [
        (("a", "b", "c", "é"), CHARACTERS, "of order 1, without 1 of 4 tokens"),
        # letters and a word: a model of words
        (("a", "b", "c", "cab", "<unk>"), CHARACTERS, "of order 1, of 4 words"),
        (("▁alpha", "▁beta"), CHARACTERS, None),
        (("alpha", "beta"), CHARACTERS, None),
        # one word is a token by chance, and no token marks where words begin
        (("a", "bed", "dog", "cat"), WITHOUT_SPACES, None),
    ],
)
def test_a_language_model_is_of_tokens_or_of_words_or_refused(words, tokenizer, said, tmp_path):
    fusion = ShallowFusion(lm=written(tmp_path, model_of(*words)))
    if said is None:
        with pytest.raises(ValueError, match=f"lm: .*{words[-1]}|lm: .*{words[0]}"):
            loaded(fusion, tokenizer)
    else:
        assert said in loaded(fusion, tokenizer)[0]


def test_a_language_model_of_words_scores_words(tmp_path):
    words = "\\data\\\nngram 1=4\n\\1-grams:\n-1 AB\n-2 BA\n-4 <unk>\n-0.5 </s>\n\\end\\"
    lm = written(tmp_path, words)
    fusion = ShallowFusion(lm=lm, lm_weight=0.5)
    assert loaded(fusion) == [f"language model {lm} of order 1, of 2 words; weight 0.5, bonus per token 0"]
    assert score_of(fusion, [3, 4, 2, 4, 3]) == pytest.approx(0.5 * math.log(10) * -3.5)
