import base64
import io
import pickle
import random
import re

import pytest
import sentencepiece

from asr.inference.decode import spelled
from asr.run.options import Target
from asr.run.parts import build_text
from asr.text.tokenizer import (
    SentencePieceFile,
    SentencePieceTrainer,
    SubwordTokenizer,
    own_tokenizer,
    tokenizer_from_state,
)
from werdict.normalization import collapse_spaces

from .cases import own_model, pieces_possible

TEXTS = [
    "the cat sat on the mat", "a cat and the other cat", "that mat is that of the cat", "she sees the sea",
    "the sea is the other side", "on the other mat", "cats see the seas and the mats",
]  # fmt: skip
NORMALIZER = Target(_target_="werdict.normalization.TextNormalizer")
MODEL_TYPES = ("bpe", "unigram")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_size_that_the_text_does_not_allow_is_refused_with_one_that_it_does(model_type):
    lowest = pieces_possible(TEXTS)
    with pytest.raises(ValueError, match=rf"tokenizer.*vocab_size=5,.* 5 vs {lowest}") as error:
        SentencePieceTrainer(vocab_size=5, model_type=model_type).train(TEXTS)
    with pytest.raises(ValueError, match=r"tokenizer.*vocab_size=5000,") as error:
        SentencePieceTrainer(vocab_size=5000, model_type=model_type).train(TEXTS)
    highest = int(re.search(r"value <= (\d+)", str(error.value))[1])
    for vocab_size in (lowest, highest):
        assert SentencePieceTrainer(vocab_size, model_type).train(TEXTS).vocab_size == vocab_size


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
    SentencePieceTrainer(vocab_size=40, model_type="bpe").train(TEXTS)
    SentencePieceTrainer(vocab_size=25, model_type="unigram").train(TEXTS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("options", [{"character_coverage": 0.9}, {"vocab_size": 0}])
def test_options_that_sentencepiece_refuses_are_refused_by_name(options):
    with pytest.raises(ValueError, match=r"tokenizer\.vocab_size"):
        SentencePieceTrainer(**({"vocab_size": 40, "model_type": "bpe"} | options)).train(TEXTS)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_decoding_equals_sentencepieces_own(model_type):
    tokenizer = SentencePieceTrainer(26, model_type).train(TEXTS)
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
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2, **options
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
    model = own_model(TEXTS, unk_surface="\u2047", **options)  # by default there are spaces around it
    (tmp_path / "own.model").write_bytes(model)
    kept = SentencePieceFile(str(tmp_path / "own.model")).train(TEXTS)
    tokenizer, theirs = tokenizer_from_state(kept.state()), sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.pieces[:2] == ["<blk>", "<unk>"]
    assert not {"<s>", "</s>", "<pad>", "[UNK]"} & set(tokenizer.pieces)
    for text in [*TEXTS, "a <laugh> [um]cat <laugh>", "ﬁve caté", "naïve 语音 👍 x"]:
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
    (tmp_path / "own.model").write_bytes(own_model(TEXTS, vocab_size=40))
    (tmp_path / "no.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"tokenizer\.path"):
        SentencePieceFile(str(tmp_path / "no.model"))
    with pytest.raises(ValueError, match=r"tokenizer=bpe"):
        SentencePieceFile(str(tmp_path / "own.model")).train(["МЯУ"])
    with pytest.raises(ValueError, match="no pieces"):
        own_tokenizer(b"")
