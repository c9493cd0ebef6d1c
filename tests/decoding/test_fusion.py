import math
from pathlib import Path

import pytest
import torch

from asr.decoding.beam import CtcBeam
from asr.decoding.scorers import ShallowFusion
from asr.text.tokenizer import SPACE_PIECE, SPECIAL_PIECES, CharacterTokenizer, Tokenizer
from tests.decoding.test_ctc_beam import Scores
from werdict.normalization import TextNormalizer

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
