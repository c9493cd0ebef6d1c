"""Texts of many scripts, and the trainers that must bring each of them back unchanged."""

import io

import sentencepiece

from asr.text.tokenizer import CharacterTokenizerTrainer, SentencePieceTrainer

TEXTS = {
    "english": ["don't stop", "mother-in-law's café", "a", "0 1 2 three"],
    "turkish": ["İstanbul'da ılık ırmak", "şemsiyeyi düşürdüğü için çağrıldı", "IĞDIR ığdır İğne iğne"],
    "devanagari": ["नमस्ते दुनिया", "क्षत्रिय विद्यार्थी", "र\u094d\u200dक"],
    "thai": ["สวัสดีชาวโลก", "กิ่งไม้ น้ำแข็ง"],
    "chinese": ["今天天气很好我们去公园散步", "语音识别", "𠮷野家"],
    "arabic": ["السَّلامُ عَلَيْكُمْ", "مرحبا بالعالم", "می\u200cخواهم"],
    "hebrew": ["שָׁלוֹם עוֹלָם"],
    "korean": ["안녕하세요 세계"],
    "emoji": ["👩‍🚀 goes 🚀", "👍🏽 ❤️", "🇹🇷"],
    "stacked marks": ["x\u0323\u0307 q\u0303", "ệ ǖ", "z\u0335\u0336\u0337"],
    "special piece names": ["<blk> <unk> <s> </s>", "<unk>s are <blk>s"],
}

LETTERS = ["abc cab", "bac", "aab c"]


def own_model(texts: list[str] = LETTERS, **options) -> bytes:
    """A sentencepiece model as the user trains it, with sentencepiece's own order of pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    return model.getvalue()


def pieces_possible(texts: list[str]) -> int:
    """The smallest sentencepiece vocabulary: blank, unknown, space and every character."""
    return 2 + len(set("".join(texts)) | {" "})


def trainers(texts: list[str]) -> dict:
    """Every trainer, with a vocabulary size that these texts allow."""
    vocab_size = max(pieces_possible(texts), 4)
    return {
        "character": CharacterTokenizerTrainer(),
        "bpe": SentencePieceTrainer(vocab_size=vocab_size, model_type="bpe"),
        "unigram": SentencePieceTrainer(vocab_size=vocab_size, model_type="unigram"),
    }
