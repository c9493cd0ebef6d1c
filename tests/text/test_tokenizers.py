import json
import pickle

import pytest

from asr.text.tokenizer import CharacterTokenizerTrainer, case_that_is_known, tokenizer_from_state, unknown_characters
from werdict.normalization import TextNormalizer

from .cases import TEXTS, trainers

KINDS = ("character", "bpe", "unigram")
normalize = TextNormalizer()


def trained(kind, texts):
    return trainers(texts)[kind].train(texts)


@pytest.fixture(params=KINDS)
def tokenizer(request):
    """A tokenizer that has seen the letters a, b, c and the space."""
    return trained(request.param, ["abc cab", "bac", "aab c"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("script", TEXTS)
def test_decoding_brings_back_any_text_of_seen_characters(kind, script):
    texts = [normalize(text) for text in TEXTS[script]]
    tokenizer = trained(kind, texts)
    space = " " if " " in "".join(texts) else ""
    reordered = [text[::-1] for text in texts] + [space.join(reversed(texts))]
    for text in texts + reordered:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(2 <= token < tokenizer.vocab_size for token in ids)


def test_blank_is_id_0_and_unknown_id_1(tokenizer):
    assert tokenizer.pieces[:2] == ["<blk>", "<unk>"]
    assert tokenizer.vocab_size == len(tokenizer.pieces) == len(set(tokenizer.pieces))
    assert {"a", "b", "c", "\u2581"} <= set(tokenizer.pieces)


def test_blanks_are_dropped_anywhere(tokenizer):
    ids = tokenizer.encode("abc cab")
    padded = [0] + [number for token in ids for number in (token, 0)]
    assert tokenizer.decode(padded) == "abc cab"


@pytest.mark.parametrize("unseen", ["x", "é", "你", "▅", "\u0301", "👍"])
def test_unseen_characters_are_unknown_and_read_as_a_double_question_mark(tokenizer, unseen):
    ids = tokenizer.encode(f"ab{unseen}c")
    assert ids.count(1) == 1
    assert tokenizer.decode(ids) == "ab\u2047c"


def test_the_names_of_special_pieces_in_a_text_are_plain_characters(tokenizer):
    assert 0 not in tokenizer.encode("<blk>")
    assert tokenizer.decode(tokenizer.encode("a <blk> b")) != "a  b"


@pytest.mark.parametrize("text", ["  abc \t cab\n", "abc\u2581cab", "\u2581abc\u00a0\u2581cab"])
def test_stray_spaces_do_not_change_the_tokens(tokenizer, text):
    assert tokenizer.encode(text) == tokenizer.encode("abc cab")


def test_repeated_space_tokens_decode_to_one_space(tokenizer):
    space = tokenizer.pieces.index("\u2581")
    letter = tokenizer.pieces.index("a")
    assert tokenizer.decode([space, letter, space, 0, space, letter, space]) == "a a"


def test_ids_out_of_range_are_refused(tokenizer):
    assert isinstance(tokenizer.decode([tokenizer.vocab_size - 1]), str)
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=rf"\[{wrong}\] .* vocabulary of {tokenizer.vocab_size}"):
            tokenizer.decode([2, wrong])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("script", ["turkish", "devanagari", "chinese", "emoji"])
def test_a_tokenizer_survives_json_and_pickle(kind, script):
    texts = [normalize(text) for text in TEXTS[script]]
    tokenizer = trained(kind, texts)
    by_json, by_pickle = json.loads(json.dumps(tokenizer.state())), pickle.loads(pickle.dumps(tokenizer))
    for again in (tokenizer_from_state(by_json), by_pickle):
        assert again.pieces == tokenizer.pieces
        assert [again.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]
        assert again.state() == tokenizer.state()


@pytest.mark.parametrize("kind", KINDS)
def test_all_scripts_fit_into_one_tokenizer_that_is_the_same_when_trained_again(kind):
    texts = [normalize(text) for script in TEXTS.values() for text in script]
    tokenizer = trained(kind, texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert trainers(texts)[kind].train(text for text in texts).state() == tokenizer.state()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], ["  ", "\u2581"]], ids=["nothing", "empty", "spaces"])
def test_training_on_no_characters_is_refused(kind, texts):
    with pytest.raises(ValueError, match="tokenizer"):
        trained(kind, texts)


def test_characters_are_ordered_by_code_point_whatever_the_order_of_the_texts():
    first, second = (CharacterTokenizerTrainer().train(texts) for texts in (["ba c", "é"], ["é", "c ab"]))
    assert first.pieces == second.pieces == ["<blk>", "<unk>", "\u2581", "a", "b", "c", "é"]


def test_a_text_without_spaces_gives_no_space_character():
    tokenizer = CharacterTokenizerTrainer().train(["你好", "好"])
    assert tokenizer.pieces == ["<blk>", "<unk>", "你", "好"]
    assert tokenizer.encode("你 好") == [2, 1, 3]


@pytest.mark.parametrize(
    ("trained_on", "texts", "expected"),
    [
        (["ab ba"], ["ab", "b a"], (0.0, [])),
        (["ab ba"], ["cab", "cad"], (0.5, ["c", "d"])),
        (["a", "b"], ["a b a"], (0.4, [" "])),  # of single words
        (["ab"], ["cc d"], (0.75, ["c", "d"])),
        (["ab"], [], (0.0, [])),
    ],
)
def test_what_a_tokenizer_cannot_spell_is_counted(trained_on, texts, expected):
    assert unknown_characters(CharacterTokenizerTrainer().train(trained_on), texts) == expected


@pytest.mark.parametrize(
    ("trained_on", "unknown", "option"),
    [
        ("ABC'", "ab,", "data.text.case=upper"),
        ("abc", "ABC", "data.text.case=lower"),
        ("abc", "xÿ1", ""),
        ("ABC", "", ""),
    ],
)
def test_the_case_of_a_vocabulary_is_named_if_it_makes_characters_known(trained_on, unknown, option):
    assert case_that_is_known(CharacterTokenizerTrainer().train([trained_on]), unknown) == option


def test_a_state_of_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"os\.system.*character, sentencepiece"):
        tokenizer_from_state({"kind": "os.system"})
