"""Tokenizers bring back the texts that they have seen, characters and subwords alike."""

import base64
import io
import json
import pickle
import random
import re

import pytest
import sentencepiece

from asr.inference.decode import spelled
from asr.run.options import Target
from asr.run.parts import build_text
from asr.text.tokenizer import (
    CharacterTokenizerTrainer,
    SentencePieceFile,
    SentencePieceTrainer,
    SubwordTokenizer,
    case_that_is_known,
    own_tokenizer,
    tokenizer_from_state,
    unknown_characters,
)
from werdict.normalization import TextNormalizer, collapse_spaces

from .cases import TEXTS, own_model, pieces_possible, trainers

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


PHRASES = [
    "the cat sat on the mat", "a cat and the other cat", "that mat is that of the cat", "she sees the sea",
    "the sea is the other side", "on the other mat", "cats see the seas and the mats",
]  # fmt: skip
NORMALIZER = Target(_target_="werdict.normalization.TextNormalizer")
MODEL_TYPES = ("bpe", "unigram")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_size_that_the_text_does_not_allow_is_refused_with_one_that_it_does(model_type):
    lowest = pieces_possible(PHRASES)
    with pytest.raises(ValueError, match=rf"tokenizer.*vocab_size=5,.* 5 vs {lowest}") as error:
        SentencePieceTrainer(vocab_size=5, model_type=model_type).train(PHRASES)
    with pytest.raises(ValueError, match=r"tokenizer.*vocab_size=5000,") as error:
        SentencePieceTrainer(vocab_size=5000, model_type=model_type).train(PHRASES)
    highest = int(re.search(r"value <= (\d+)", str(error.value))[1])
    for vocab_size in (lowest, highest):
        assert SentencePieceTrainer(vocab_size, model_type).train(PHRASES).vocab_size == vocab_size


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_alphabet_is_not_normalized_by_sentencepiece(model_type):
    texts = ["ﬁ ½ Å Å ａ", "e\u0301 é"]
    tokenizer = SentencePieceTrainer(pieces_possible(texts), model_type).train(texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_very_long_transcript_is_learned_from_too(model_type):
    texts = ["ab " * 5000 + "z"]  # sentencepiece's default leaves out lines beyond 4192 bytes
    tokenizer = SentencePieceTrainer(vocab_size=6, model_type=model_type).train(texts)
    assert 1 not in tokenizer.encode("ab z")


def test_training_writes_nothing_to_the_terminal(capfd):
    SentencePieceTrainer(vocab_size=40, model_type="bpe").train(PHRASES)
    SentencePieceTrainer(vocab_size=25, model_type="unigram").train(PHRASES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("options", [{"character_coverage": 0.9}, {"vocab_size": 0}])
def test_options_that_sentencepiece_refuses_are_refused_by_name(options):
    with pytest.raises(ValueError, match=r"tokenizer\.vocab_size"):
        SentencePieceTrainer(**({"vocab_size": 40, "model_type": "bpe"} | options)).train(PHRASES)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_decoding_equals_sentencepieces_own(model_type):
    tokenizer = SentencePieceTrainer(26, model_type).train(PHRASES)
    processor = sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(tokenizer.state()["model"]))
    for ids in (range(1, 26), [1, 1, 5, 1], *([token] for token in range(26)), tokenizer.encode("the sea q cats")):
        assert tokenizer.decode(ids) == processor.decode(list(ids)).strip()


@pytest.mark.parametrize(
    ("options", "first_pieces"),
    [
        ({}, r"\['<unk>', '<s>'\]"),
        ({"pad_id": 0, "pad_piece": "<pad>", "unk_id": 1, "bos_id": -1, "eos_id": -1}, r"\['<pad>', '<unk>'\]"),
        (
            {"pad_id": 1, "pad_piece": "<unk>", "unk_id": 0, "unk_piece": "<blk>", "bos_id": -1, "eos_id": -1},
            r"\['<blk>', '<unk>'\]",
        ),
    ],
    ids=["sentencepiece's default", "another blank", "swapped roles"],
)
def test_a_foreign_sentencepiece_model_is_refused(options, first_pieces):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PHRASES), model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2, **options
    )
    with pytest.raises(ValueError, match=rf"starts with pieces {first_pieces}.*<blk>"):
        SubwordTokenizer(model.getvalue())


OWN = {
    "bpe": {"model_type": "bpe", "vocab_size": 60},
    "unigram": {"vocab_size": 40},
    "bytes": {"model_type": "bpe", "vocab_size": 300, "byte_fallback": True},
    "user-defined": {"vocab_size": 50, "user_defined_symbols": ["<laugh>", "[um]"]},
    "other places": {"vocab_size": 50, "pad_id": 3, "unk_id": 2, "bos_id": 0, "eos_id": -1, "unk_piece": "[UNK]"},
}


@pytest.mark.parametrize("options", OWN.values(), ids=OWN)
def test_a_model_of_ones_own_reads_and_writes_as_sentencepiece_does(options, tmp_path):
    model = own_model(PHRASES, unk_surface="\u2047", **options)  # by default there are spaces around it
    (tmp_path / "own.model").write_bytes(model)
    kept = SentencePieceFile(str(tmp_path / "own.model")).train(PHRASES)
    tokenizer, theirs = tokenizer_from_state(kept.state()), sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.pieces[:2] == ["<blk>", "<unk>"]
    assert not {"<s>", "</s>", "<pad>", "[UNK]"} & set(tokenizer.pieces)
    for text in [*PHRASES, "a <laugh> [um]cat <laugh>", "ﬁve caté", "naïve 语音 👍 x"]:
        ids, expected = tokenizer.encode(text), theirs.encode(text)
        unknown = theirs.id_to_piece(theirs.unk_id())
        assert [unknown if token == 1 else tokenizer.pieces[token] for token in ids] == theirs.id_to_piece(expected)
        assert tokenizer.decode(ids) == collapse_spaces(theirs.decode(expected))
        words = spelled(tokenizer.surfaces[token] for token in ids)
        assert [word for word, _ in words] == tokenizer.decode(ids).split()
        if options.get("byte_fallback"):
            assert 1 not in ids
    rng = random.Random(0)
    for _ in range(200):
        ids = rng.choices(range(2, tokenizer.vocab_size), k=8)
        expected = theirs.decode([theirs.piece_to_id(tokenizer.pieces[token]) for token in ids])
        assert tokenizer.decode(ids) == collapse_spaces(expected)


@pytest.mark.parametrize("rule", ["nmt_nfkc_cf", "nmt_nfkc", "identity"])
@pytest.mark.parametrize("options", [{"model_type": "bpe"}, {"model_type": "char", "treat_whitespace_as_suffix": True}])
def test_texts_are_rewritten_as_by_the_rules_of_ones_own_model_or_refused(rule, options, tmp_path):
    texts = ["HELLO WORLD", "THE ﬁRST ½ OF Ａ LINE", "GOOD MORNING"]
    model = own_model(texts, vocab_size=60, normalization_rule_name=rule, **options)
    (tmp_path / "own.model").write_bytes(model)
    trainer = SentencePieceFile(str(tmp_path / "own.model"))
    text = pickle.loads(pickle.dumps(build_text(NORMALIZER, trainer.tokenizer)))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    transcripts = [text(line) for line in texts]
    assert transcripts == [theirs.decode(theirs.encode(line)).strip() for line in texts]
    tokenizer = trainer.train(transcripts)
    assert [tokenizer.decode(tokenizer.encode(line)) for line in transcripts] == transcripts
    if rule != "identity":
        with pytest.raises(ValueError, match=rf"{2 if rule == 'nmt_nfkc_cf' else 1} of 2 .*½.*1⁄2"):
            trainer.train(texts[:2])


def test_a_file_that_is_no_model_or_knows_little_of_the_texts_is_refused(tmp_path):
    (tmp_path / "own.model").write_bytes(own_model(PHRASES, vocab_size=40))
    (tmp_path / "no.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"tokenizer\.path"):
        SentencePieceFile(str(tmp_path / "no.model"))
    with pytest.raises(ValueError, match=r"tokenizer=bpe"):
        SentencePieceFile(str(tmp_path / "own.model")).train(["МЯУ"])
    with pytest.raises(ValueError, match="no pieces"):
        own_tokenizer(b"")
