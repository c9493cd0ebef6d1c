import gzip
from pathlib import Path

import numpy as np
import pytest

from asr.language_models import NGrams, arpa_lines, read_arpa
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


def test_log10_of_0_becomes_a_number(tmp_path):
    text = "\\data\\\nngram 1=2\n\\1-grams:\n-inf\t<s>\t-Inf\n-0.5\t<unk>\n\\end\\"
    assert grams(read(tmp_path, text)) == {("<s>",): (-100.0, -100.0), ("<unk>",): (-0.5, 0.0)}


def test_a_probability_that_rounding_has_raised_above_1_is_taken_for_1(tmp_path):
    assert grams(read(tmp_path, TINY.replace("-0.4\ta", "1e-07\ta")))["a",][0] == 0


def test_ngrams_are_looked_up_in_blocks(tmp_path, monkeypatch):
    whole = grams(read(tmp_path, TINY))
    monkeypatch.setattr("asr.language_models.BLOCK", 1)
    assert grams(read(tmp_path, TINY)) == whole
    with pytest.raises(ValueError, match="line 22: "):
        read(tmp_path, TINY.replace("-0.05\ta b </s>", "-0.05\tb b </s>"))


def test_what_is_written_is_read_again(tmp_path):
    model = read(tmp_path, TINY)
    assert grams(read(tmp_path, "".join(arpa_lines(model)), "again.arpa")) == grams(model)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("\\data\\", "", 24, "the file ends before"),
        ("\\end\\", "", 24, "the file ends before"),
        ("\\2-grams:", "\\4-grams:", 14, "expected \\2-grams:"),
        ("-0.4\ta", "zero\ta", 11, "zero"),
        ("-0.4\ta", "nan\ta", 11, "nan"),
        ("-0.4\ta", "0.4\ta", 11, "0.4"),
        ("ngram 2=4", "ngram 2=5", 4, "ngram 2=5"),
        ("ngram 3=2", "ngram 3=2\nngram 4=1", 6, "ngram 4=1"),
        ("ngram 1=5", "ngram 1=five", 3, "five"),
        ("a\t-0.25", "a\tb\t-0.25", 11, "1 words"),
        ("-0.15\t<s> a b", "-0.15\t<s> a", 21, "3 words"),
        ("-0.8\tb a", "-0.8\tb x", 17, "1-gram"),
        ("-0.05\ta b </s>", "-0.05\tb b </s>", 22, "2-gram"),
    ],
)
def test_wrong_lines_are_named(old, new, line, said, tmp_path):
    assert TINY.count(old) >= 1
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read(tmp_path, TINY.replace(old, new, 1))
    assert f"lm.arpa: line {line}: " in str(caught.value)
    assert said in str(caught.value)


def test_files_that_are_damaged_are_named(tmp_path):
    for damaged in (TINY, gzip.compress(TINY.encode())[:-60]):
        with pytest.raises(ValueError, match=r"lm\.gz: line "):
            read(tmp_path, damaged, "lm.gz")
    with pytest.raises(ValueError, match=r"lm\.arpa: line 9: .*utf-8"):
        read(tmp_path, TINY.encode().replace(b"</s>", b"caf\xe9"))
