import base64
import io
import re

import pytest
import sentencepiece

from asr.text import subword
from asr.text.icefall import icefall_tokenizer
from asr.text.sentencepiece_limits import MAX_OTHER_BYTES, MAX_VOCAB_SIZE, check_size
from asr.text.subword import SentencePieceTrainer, SubwordTokenizer
from asr.text.tokenizer import tokenizer_from_state

from .cases import pieces_possible

TEXTS = [
    "the cat sat on the mat", "a cat and the other cat", "that mat is that of the cat", "she sees the sea",
    "the sea is the other side", "on the other mat", "cats see the seas and the mats",
]  # fmt: skip
MODEL_TYPES = ("bpe", "unigram")


def allowed(model_type, texts=TEXTS, asked=5000):
    """The limits that the error message gives."""
    with pytest.raises(ValueError, match="not possible") as error:
        SentencePieceTrainer(vocab_size=asked, model_type=model_type).train(texts)
    lowest, highest = re.search(r"allows (\d+) .* to (\d+)\.", str(error.value)).groups()
    return int(lowest), int(highest)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_vocabulary_size_within_the_named_limits_is_possible(model_type):
    lowest, highest = allowed(model_type)
    assert lowest == pieces_possible(TEXTS)
    assert highest > lowest + 5
    for vocab_size in range(lowest, highest + 1):
        assert SentencePieceTrainer(vocab_size, model_type).train(TEXTS).vocab_size == vocab_size


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("below_or_above", ["below", "above"])
def test_a_size_just_outside_the_limits_is_refused_with_them(model_type, below_or_above):
    lowest, highest = allowed(model_type)
    asked = lowest - 1 if below_or_above == "below" else highest + 1
    assert allowed(model_type, asked=asked) == (lowest, highest)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_refusal_says_what_was_asked_and_what_to_do(model_type):
    with pytest.raises(ValueError, match=rf"vocab_size=5 .*'{model_type}'.*Set tokenizer.vocab_size.*tokenizer=char"):
        SentencePieceTrainer(vocab_size=5, model_type=model_type).train(TEXTS)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_upper_limit_that_was_not_reached_is_not_claimed(model_type, monkeypatch):
    lowest, highest = allowed(model_type)
    monkeypatch.setattr(subword, "PROBE_PIECES", 4)
    with pytest.raises(ValueError, match=rf"allows {lowest} .* to {lowest + 2} or more\."):
        SentencePieceTrainer(vocab_size=5, model_type=model_type).train(TEXTS)
    assert allowed(model_type) == (lowest, highest)


def test_frequent_words_become_one_token():
    tokenizer = SentencePieceTrainer(vocab_size=60, model_type="bpe").train(TEXTS)
    assert tokenizer.encode("the") == [tokenizer.pieces.index("\u2581the")]


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


def test_low_coverage_leaves_the_rarest_characters_unknown():
    texts = ["ab " * 200 + "q"]
    full = SentencePieceTrainer(6, "bpe").train(texts)
    partial = SentencePieceTrainer(6, "bpe", character_coverage=0.99).train(texts)
    assert 1 not in full.encode("q")
    assert 1 in partial.encode("q")


def test_a_size_below_a_partial_coverage_names_its_own_lower_limit():
    with pytest.raises(ValueError, match=r"vocab_size=4 .* allows 5 "):
        SentencePieceTrainer(4, "bpe", character_coverage=0.99).train(["ab " * 200 + "q"])


def test_training_writes_nothing_to_the_terminal(capfd):
    SentencePieceTrainer(vocab_size=40, model_type="bpe").train(TEXTS)
    SentencePieceTrainer(vocab_size=25, model_type="unigram").train(TEXTS)
    assert capfd.readouterr() == ("", "")


def test_a_character_that_sentencepiece_reserves_is_refused():
    with pytest.raises(ValueError, match=r"'a ▅ b' holds ▅ \(U\+2585\).*punctuation=strip"):
        SentencePieceTrainer(vocab_size=10, model_type="bpe").train(["c", "a ▅ b"])


@pytest.mark.parametrize("coverage", [0.98, 1, 1.0])
def test_the_ends_of_the_coverage_range_are_allowed(coverage):
    assert SentencePieceTrainer(40, "bpe", character_coverage=coverage).train(TEXTS).vocab_size == 40


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"vocab_size": 3, "model_type": "bpe"}, "vocab_size=3 leaves no room.*at least 4"),
        ({"vocab_size": 500, "model_type": "word"}, "model_type='word' is not one of bpe, unigram"),
        ({"vocab_size": 500, "model_type": "bpe", "character_coverage": 0.9}, "0.9 lies outside 0.98 to 1"),
        ({"vocab_size": 500, "model_type": "bpe", "character_coverage": 1.1}, "1.1 lies outside 0.98 to 1"),
    ],
)
def test_impossible_options_are_refused_before_training(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SentencePieceTrainer(**options)


def own_model(**options):
    """A model whose special pieces are ours."""
    model = io.BytesIO()
    special = {"pad_id": 0, "pad_piece": "<blk>", "unk_id": 1, "bos_id": -1, "eos_id": -1, "unk_surface": "?"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        **(
            {"model_type": "bpe", "vocab_size": 40, "minloglevel": 2, "normalization_rule_name": "identity"}
            | special
            | options
        ),
    )
    return model.getvalue()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_decoding_equals_sentencepieces_own(model_type):
    tokenizer = SentencePieceTrainer(26, model_type).train(TEXTS)
    processor = sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(tokenizer.state()["model"]))
    for ids in (range(1, 26), [1, 1, 5, 1], *([token] for token in range(26)), tokenizer.encode("the sea q cats")):
        assert tokenizer.decode(ids) == processor.decode(list(ids)).strip()


def test_an_unknown_piece_has_no_other_text_than_ours():
    assert SubwordTokenizer(own_model(unk_surface="x" * 1000)).decode([1]) == "\u2047"


REFUSED = {
    "a long piece": (
        {"user_defined_symbols": ["x" * 101]},
        r"piece 2 .*'x{20}', is 101 characters long; .*at most 100",
    ),
    "a line of its own": (
        {"user_defined_symbols": ["x 0\n<blk> 7"]},
        r"piece 2 .*'x 0\\n<blk> 7', holds whitespace or control characters",
    ),
    "an end of a line of Unicode": ({"user_defined_symbols": ["a\u2028b"]}, r"'a\\u2028b', holds whitespace"),
    "an escape sequence": ({"user_defined_symbols": ["\x1b]0;title\x07"]}, "holds whitespace or control characters"),
    "a space": ({"user_defined_symbols": ["a b"]}, "'a b', holds whitespace .*a space is written ▁"),
    "bytes": ({"byte_fallback": True, "vocab_size": 300}, "piece 2 .*'<0x00>', is a byte; pieces are text"),
    "rules": ({"normalization_rule_name": "nmt_nfkc"}, "rewrites characters.*normalization_rule_name=identity"),
    "rules of decoding": (
        {"denormalization_rule_tsv": "rules.tsv"},
        "rewrites characters.*normalization_rule_name=identity",
    ),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_makes_more_of_a_piece_than_its_text_is_refused(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.tsv").write_text("61\t" + "62 " * 100 + "\n")
    with pytest.raises(ValueError, match=said):
        SubwordTokenizer(own_model(**options))


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
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2, **options
    )
    with pytest.raises(ValueError, match=rf"starts with pieces {first_pieces}.*<blk>"):
        SubwordTokenizer(model.getvalue())


EMPTY_PIECE = b"\x0a\x02\x0a\x00"  # field 1, two bytes long: its own field 1, of no byte
# field 2, three bytes of length: options, of which none is known
OTHER = b"\x12\x80\x80\x02" + b"\xc0\x3e\x00\x00" * 2**13


@pytest.mark.parametrize("read", [SubwordTokenizer, icefall_tokenizer])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (EMPTY_PIECE * (MAX_VOCAB_SIZE + 1), "more than 1000000 pieces; give one with fewer"),
        (OTHER * (MAX_OTHER_BYTES // len(OTHER) + 1), "more than 4194304 bytes beside its pieces"),
        (b"\x0a\x7f\x0a", r"\d+ bytes are no sentencepiece model: byte \d+ begins no field of one"),
        (b"\x0b", "begins no field of one"),
        (b"\xff" * 20, "begins no field of one"),
    ],
    ids=["pieces", "options", "a field beyond the end", "a group", "a number without end"],
)
def test_a_model_that_would_fill_the_memory_is_refused_before_it_is_parsed(read, more, said):
    with pytest.raises(ValueError, match=said):
        read(own_model() + more)


def test_every_field_of_a_model_is_stepped_over():
    fixed = b"\x39" + bytes(8) + b"\x3d" + bytes(4) + b"\x40\xff\x01"
    for end in range(len(fixed)):
        if end in (0, 9, 14):
            check_size(own_model() + fixed[:end])
        else:
            with pytest.raises(ValueError, match="begins no field"):
                check_size(own_model() + fixed[:end])


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_cut_off_model_is_refused(keep):
    model = base64.b64decode(SentencePieceTrainer(40, "bpe").train(TEXTS).state()["model"])
    state = {"kind": "sentencepiece", "model": base64.b64encode(model[: int(len(model) * keep)]).decode()}
    with pytest.raises(ValueError, match=r"no sentencepiece model|pieces"):
        tokenizer_from_state(state)


def test_text_that_sentencepiece_fails_on_is_named(monkeypatch):
    # as on words of 100,000 letters, whose scores are no longer finite
    def fail(**options):
        raise RuntimeError("INTERNAL: [std::isfinite(score)]\nand more")

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", fail)
    with pytest.raises(ValueError, match=r"\(INTERNAL: \[std::isfinite\(score\)\]\); check that its words are parted"):
        SentencePieceTrainer(50, "unigram").train(["a b"])
