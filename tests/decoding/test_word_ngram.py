"""A model of words that scores tokens: whole texts have the scores of their words, however they are written."""

import math
from pathlib import Path

import pytest

from asr.decoding.scorers import WordNGramScorer
from asr.language_models import read_arpa
from asr.text.tokenizer import CharacterTokenizerTrainer, SentencePieceTrainer, own_tokenizer
from tests.decoding.test_ngram import random_arpa, scored
from tests.language_models.arpa_texts import Reference
from tests.text.cases import own_model

WORDS = ("a", "an", "ant", "bat", "tab", "tä")
TEXTS = ["an ant", "a bat tab", "tab tab a", "bat", "banana a", "an tan tat", "antant", "tä bä an tä", ""]
TOKENIZERS = {
    "characters": CharacterTokenizerTrainer().train(TEXTS),
    "subwords": SentencePieceTrainer(14, "bpe").train(TEXTS),
    "spaces at the ends of tokens": own_tokenizer(own_model(TEXTS, vocab_size=16, treat_whitespace_as_suffix=True)),
    "bytes": own_tokenizer(own_model(["ant bat tab"], vocab_size=270, byte_fallback=True)),
}


def scorer_of(text: str, folder: Path, tokenizer, normalize=str) -> WordNGramScorer:
    path = folder / "lm.arpa"
    path.write_text(text)
    return WordNGramScorer(read_arpa(path), tokenizer.surfaces, normalize)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_whole_texts_have_the_scores_of_their_words(kind, order, seed, tmp_path):
    tokenizer, text = TOKENIZERS[kind], random_arpa(seed, order, (*WORDS, "<unk>"), pruned=bool(seed))
    scorer, reference = scorer_of(text, tmp_path, tokenizer), Reference(text)
    for sentence in TEXTS:
        found = sum(scored(scorer, tokenizer.encode(sentence)))
        known = [word if word in WORDS else "<unk>" for word in sentence.split()]
        assert found == pytest.approx(sum(reference.of_text(known)), abs=1e-9)


def test_tokens_of_several_words_are_refused(tmp_path):
    tokenizer = own_tokenizer(own_model(["an ant"] * 9, vocab_size=12, model_type="bpe", split_by_whitespace=False))
    assert "▁an▁ant" in tokenizer.pieces
    with pytest.raises(ValueError, match=r"\[' an a.* asr-lm"):
        scorer_of(random_arpa(0, 1, WORDS, pruned=False), tmp_path, tokenizer)


def test_a_beginning_is_worth_the_most_probable_word_that_has_it(tmp_path):
    text = "\\data\\\nngram 1=5\n\\1-grams:\n-1 <s>\n-0.5 </s>\n-2 an\n-1 ant\n-3 <unk>\n\\end\\\n"
    tokenizer = TOKENIZERS["characters"]
    scorer = scorer_of(text, tmp_path, tokenizer)
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
    scorer = scorer_of(text, tmp_path, tokenizer, str.lower)
    assert sum(scored(scorer, tokenizer.encode("ant bat"))) == pytest.approx(-2.5 * math.log(10))


def test_words_that_no_token_can_write_are_refused(tmp_path):
    text = "\\data\\\nngram 1=1\n\\1-grams:\n-1 zulu\n\\end\\\n"
    with pytest.raises(
        ValueError, match=r"its words are like \['zulu'\], and none is written with the letters of the run"
    ):
        scorer_of(text, tmp_path, TOKENIZERS["characters"])
