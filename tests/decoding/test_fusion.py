import math
from pathlib import Path

import pytest
import torch

from asr.decoding.ctc_beam import CtcBeam
from asr.decoding.scorers.fusion import ShallowFusion
from asr.text.character import CharacterTokenizer
from asr.text.normalize import TextNormalizer
from asr.text.subword import SentencePieceTrainer
from asr.text.tokenizer import Tokenizer
from asr.text.vocabulary import SPACE_PIECE, SPECIAL_PIECES
from tests.decoding.test_ctc_beam import Scores

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
    fusion = ShallowFusion(hotwords=written(tmp_path, "ab"), hotword_boost=1.0)
    loaded(fusion)
    assert [score_of(fusion, tokens) for tokens in ([3, 4], [5, 3, 4], [5, 2, 3, 4])] == [2.0, 0.0, 2.0]


def test_hotwords_of_subwords_are_their_pieces(tmp_path):
    tokenizer = SentencePieceTrainer(12, "bpe").train(["abc cab", "cab bca abc"])
    fusion = ShallowFusion(hotwords=written(tmp_path, "abc cab"), hotword_boost=1.0)
    loaded(fusion, tokenizer)
    tokens = tokenizer.encode("abc cab")
    assert score_of(fusion, tokens) == len(tokens)
    assert score_of(fusion, [*tokens[:-1], tokens[0]]) < len(tokens)


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lodr_weight": -1.0}, r"lodr_weight .* -1\.0"),
        ({"hotword_boost": 0.0}, r"hotword_boost .* 0\.0"),
        ({"lm": "/nowhere/lm.arpa"}, "lm: '/nowhere/lm.arpa'"),
        ({"hotwords": "/"}, "hotwords: '/'"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        ShallowFusion(**options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ab\t0", "line 2: a boost .*'0'"),
        ("ab\tmuch", "line 2: a boost .*'much'"),
        ("axe", "line 2: 'axe' has 'x', 'e'"),
        ("\t1", "line 2: the phrase has no tokens"),
    ],
)
def test_wrong_lines_of_hotwords_are_named(line, said, tmp_path):
    fusion = ShallowFusion(hotwords=written(tmp_path, f"ab\n{line}\n"))
    with pytest.raises(ValueError, match=rf"file\.txt, {said}"):
        loaded(fusion)


@pytest.mark.parametrize("option", ["lm", "hotwords"])
def test_a_file_that_cannot_be_read_is_named(option, tmp_path):
    (tmp_path / "memory").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="memory") as raised:
        loaded(ShallowFusion(**{option: str(tmp_path / "memory")}))
    assert raised.value.filename == str(tmp_path / "memory")


def test_a_language_model_of_other_tokens_is_refused(tmp_path):
    words = "\\data\\\nngram 1=2\n\\1-grams:\n-1 alpha\n-1 beta\n\\end\\"
    fusion = ShallowFusion(lm=written(tmp_path, words.replace("-1 ", "-1 ▁")))
    with pytest.raises(ValueError, match=r"other tokens.*▁alpha"):
        loaded(fusion)
    with pytest.raises(ValueError, match=r"lm: .*'alpha', 'beta'"):
        loaded(ShallowFusion(lm=written(tmp_path, words)))


def test_a_model_of_words_is_refused_where_tokens_mark_none_though_one_word_is_a_token(tmp_path):
    words = "\\data\\\nngram 1=4\n\\1-grams:\n-1 a\n-1 bed\n-1 dog\n-1 cat\n\\end\\"
    tokenizer = CharacterTokenizer([*SPECIAL_PIECES, "a", "b", "c"])
    with pytest.raises(ValueError, match=r"lm: .*'a', 'bed', 'dog'"):
        loaded(ShallowFusion(lm=written(tmp_path, words)), tokenizer)


def test_a_model_of_characters_without_the_mark_of_a_space_is_none_of_words(tmp_path):
    characters = "\\data\\\nngram 1=4\n\\1-grams:\n-1 a\n-1 b\n-1 c\n-1 é\n\\end\\"
    lm = written(tmp_path, characters)
    (note,) = loaded(ShallowFusion(lm=lm))
    assert note.startswith(f"language model {lm} of order 1, without 1 of 4 tokens, such as ['▁'];")


def test_a_model_of_letters_and_words_is_one_of_words(tmp_path):
    words = "\\data\\\nngram 1=5\n\\1-grams:\n-1 a\n-1 b\n-1 c\n-1 cab\n-2 <unk>\n\\end\\"
    lm = written(tmp_path, words)
    (note,) = loaded(ShallowFusion(lm=lm))
    assert note.startswith(f"language model {lm} of order 1, of 4 words;")


def test_a_language_model_of_words_scores_words(tmp_path):
    words = "\\data\\\nngram 1=4\n\\1-grams:\n-1 AB\n-2 BA\n-4 <unk>\n-0.5 </s>\n\\end\\"
    lm = written(tmp_path, words)
    fusion = ShallowFusion(lm=lm, lm_weight=0.5)
    assert loaded(fusion) == [f"language model {lm} of order 1, of 2 words; weight 0.5, bonus per token 0"]
    assert score_of(fusion, [3, 4, 2, 4, 3]) == pytest.approx(0.5 * math.log(10) * -3.5)
