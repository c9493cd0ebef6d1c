import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from asr.language_models import arpa
from asr.language_models.arpa import arpa_lines, read_arpa
from asr.language_models.ngrams import NGrams
from tests.language_models.arpa_texts import TINY, Reference


def read(folder: Path, text: str | bytes, name: str = "lm.arpa") -> NGrams:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_arpa(folder / name)


def grams(model: NGrams) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return log-probability and back-off weight of each n-gram."""
    texts: list[tuple[str, ...]] = [()]
    for key in model.keys.tolist():
        parent, word = divmod(key, len(model.words))
        texts.append((*texts[parent], model.words[word]))
    return dict(zip(texts[1:], zip(model.log_probs.tolist(), model.backoffs.tolist(), strict=True), strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\t", "  "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n\n", "\n"),
        lambda text: "made by hand\n" + text.replace("ngram 1=5", "ngram  1 = 5"),
        lambda text: text.replace("<unk>", "<UNK>"),
        lambda text: "\ufeff" + text,
        lambda text: text + "more that is not read",
    ],
)
def test_what_other_programs_write_is_read_alike(change, tmp_path):
    reference = Reference(TINY)
    expected = {words: (log_prob, reference.backoffs[words]) for words, log_prob in reference.log_probs.items()}
    assert len(expected) == 11
    assert grams(read(tmp_path, change(TINY))) == expected
    assert grams(read(tmp_path, gzip.compress(change(TINY).encode()), "lm.arpa.gz")) == expected


def test_shorter_ngrams_come_first_and_keys_ascend(tmp_path):
    model = read(tmp_path, TINY)
    assert model.counts == [5, 4, 2]
    assert (np.diff(model.keys) > 0).all()
    assert model.num_contexts == 10


def test_a_model_without_unknown_word_gets_an_impossible_one(tmp_path):
    text = "\\data\\\nngram 1=1\n\\1-grams:\n-0.5 a\n\\end\\"
    assert grams(read(tmp_path, text)) == {("a",): (-0.5, 0.0), ("<unk>",): (-100.0, 0.0)}


def test_a_probability_that_rounding_has_raised_above_1_is_taken_for_1(tmp_path):
    assert grams(read(tmp_path, TINY.replace("-0.4\ta", "1e-07\ta")))["a",][0] == 0


def test_ngrams_are_looked_up_in_blocks(tmp_path, monkeypatch):
    whole = grams(read(tmp_path, TINY))
    monkeypatch.setattr(arpa, "BLOCK", 1)
    assert grams(read(tmp_path, TINY)) == whole
    with pytest.raises(ValueError, match="line 22: its first 2 words are no 2-gram"):
        read(tmp_path, TINY.replace("-0.05\ta b </s>", "-0.05\tb b </s>"))


def test_what_is_written_is_read_again(tmp_path):
    model = read(tmp_path, TINY)
    assert grams(read(tmp_path, "".join(arpa_lines(model)), "again.arpa")) == grams(model)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\\data\\", "", "line 24: the file ends before \\end\\; it is no ARPA language model"),
        ("\\end\\", "", "line 24: the file ends before \\end\\"),
        ("ngram 1=5", "ngram 1=4", "line 12: there are more 1-grams than the 4 of the header"),
        ("ngram 2=4", "ngram 2=5", "line 20: there are 4 2-grams before it, but the header says 5"),
        ("ngram 2=4", "ngram 3=4", "line 4: expected 'ngram 2=COUNT', found 'ngram 3=4'"),
        ("ngram 2=4", "ngram 2=-4", "line 4: expected 'ngram 2=COUNT', found 'ngram 2=-4'"),
        ("ngram 1=5", "ngram 1=0", "line 3: n-grams of each order: [0]; at least one word"),
        ("ngram 3=2", "ngram 3=99999999999", "line 5: n-grams of each order: [5, 4, 99999999999]"),
        ("ngram 1=5\nngram 2=4\nngram 3=2\n", "", "line 4: the header has no line 'ngram 1=COUNT'"),
        ("\\2-grams:", "\\4-grams:", "line 14: expected \\2-grams:, found '\\\\4-grams:'"),
        ("\\end\\", "\\4-grams:", "line 24: expected \\end\\, found"),
        ("-0.4\ta", "0.4\ta", "line 11: a log10 probability must be at most 0, found '0.4'"),
        ("-0.4\ta", "nan\ta", "line 11: expected a number from -1000 to 1000, found 'nan'"),
        ("-0.4\ta", "-1e999\ta", "line 11: expected a number from -1000 to 1000, found '-1e999'"),
        ("-0.4\ta", "-1_0\ta", "line 11: expected a number from -1000 to 1000, found '-1_0'"),
        ("-0.4\ta", "-1e300\ta", "line 11: expected a number from -1000 to 1000, found '-1e300'"),
        ("a\t-0.25", "a\t1e308", "line 11: expected a number from -1000 to 1000, found '1e308'"),
        ("a\t-0.25", "a\tb\t-0.25", "line 11: expected a log10 probability, 1 words and perhaps a back-off weight"),
        ("-0.15\t<s> a b", "-0.15\t<s> a", "line 21: expected a log10 probability, 3 words"),
        ("-0.15\t<s> a b", "-0.15\t<s> a b\t-1", "line 21: the longest n-grams have no back-off weight, found '-1'"),
        ("-0.7\tb", "-0.7\ta", "line 12: the word 'a' has a 1-gram already"),
        ("-0.8\tb a", "-0.8\tb x", "line 17: the word 'x' has no 1-gram"),
        ("-0.8\tb a", "-0.8\ta b", "line 17: this 2-gram occurs before too"),
        ("-0.05\ta b </s>", "-0.05\tb b </s>", "line 22: its first 2 words are no 2-gram"),
    ],
)
def test_wrong_lines_are_named(old, new, said, tmp_path):
    assert TINY.count(old) >= 1
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read(tmp_path, TINY.replace(old, new, 1))
    assert f"lm.arpa: {said}" in str(caught.value)


def test_files_that_are_none_or_would_fill_memory_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a regular file"):
        read_arpa(tmp_path / "pipe")
    with pytest.raises(ValueError, match="there is no file"):
        read_arpa(tmp_path / "gone")
    with pytest.raises(ValueError, match="line 1: it has more than 16384 bytes"):
        read(tmp_path, b"x" * 20_000)
    with pytest.raises(ValueError, match=r"lm\.gz: it cannot be decompressed: Not a gzipped file"):
        read(tmp_path, TINY, "lm.gz")
    with pytest.raises(ValueError, match=r"lm\.gz: it cannot be decompressed: .*ended before the end"):
        read(tmp_path, gzip.compress(TINY.encode())[:-60], "lm.gz")
    with pytest.raises(ValueError, match="line 9: the word 'caf\\\\\\\\xe9' is not UTF-8"):
        read(tmp_path, TINY.encode().replace(b"</s>", b"caf\xe9"))
    with pytest.raises(ValueError, match="line 10001: the file has more than 10000 lines that are no n-grams"):
        read(tmp_path, gzip.compress(b"\n" * 10**6), "lm.gz")
    with pytest.raises(ValueError, match="line 10012: the file has more than 10000 lines that are no n-grams"):
        read(tmp_path, gzip.compress(TINY.replace("\\2-grams:", "\n" * 20_000).encode()), "lm.gz")
    many = b"\\data\\\nngram 1=9\nngram 2=1100000\n"
    with pytest.raises(ValueError, match=r"at most 10 orders and 10\d+ n-grams are read from a file of this size"):
        read(tmp_path, gzip.compress(many), "lm.gz")
    monkeypatch.setattr(arpa, "FREE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"the file has more than \d+ bytes when unpacked"):
        read(tmp_path, gzip.compress((b"x" * 999 + b"\n") * 1000), "lm.gz")
