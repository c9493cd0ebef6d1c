"""asr-lm: what it makes of text, and what it says of options and files that cannot work."""

import gzip
from pathlib import Path

import pytest

from asr.cli.builders.restore import restore_text
from asr.language_models.arpa import read_arpa
from tests.language_models.arpa_texts import Reference

TEXT = "one two three\nONE TWO\n\nfour five one two three\n" * 5


def test_tokens_of_the_run_are_the_words_of_its_language_model(small_run, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    words = (f"run={small_run.run_dir}", f"text={tmp_path}/text.txt", "order=3", f"output={tmp_path}/new/lm.arpa")
    ended = small_run.run("lm", *words)
    assert ended.code == 0, ended.printed
    text = restore_text(small_run.run_dir)
    model = read_arpa(tmp_path / "new" / "lm.arpa")
    assert set(model.words) == {"<s>", "</s>", *text.tokenizer.pieces} - {"<blk>"}
    assert model.order == 3
    sentences = [text.tokenizer.encode(text.normalize(line)) for line in TEXT.splitlines() if line]
    assert f"text: 15 sentences, {sum(map(len, sentences))} tokens, 30 of them unknown" in ended.printed
    assert "discounts of 1, 3-grams: 0.5, 1.0, 1.5, because too few n-grams occur" in ended.printed
    assert ended.printed.splitlines()[-1] == f"language model: {tmp_path}/new/lm.arpa"
    found = Reference((tmp_path / "new" / "lm.arpa").read_text())
    probs = [10 ** found.log_prob(["o", "n"], word) for word in model.words if word != "<s>"]
    assert sum(probs) == pytest.approx(1, abs=1e-5)
    assert 10 ** found.log_prob(["o", "n"], "e") > 0.7


def test_words_of_files_and_of_the_transcripts_of_the_run(small_run, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"alpha beta\n"))
    (tmp_path / "b.txt").write_text("alpha gamma\n")
    words = (f"text=[{tmp_path}/a.txt.gz,{tmp_path}/b.txt]", "transcripts=true", "units=words", "order=2")
    ended = small_run.run("lm", f"run={small_run.run_dir}", *words, f"output={tmp_path}/lm.arpa.gz")
    assert ended.code == 0, ended.printed
    model = read_arpa(tmp_path / "lm.arpa.gz")
    assert {"alpha", "beta", "gamma", "one", "two", "<unk>"} <= set(model.words)
    assert "text: 26 sentences" in ended.printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["text=TEXT", "units=letters"], "units must be one of tokens, words, given 'letters'"),
        (["text=TEXT", "order=11"], "order must be at least 1 and at most 10, given 11"),
        ([], "there is no text: give text=FILE, or transcripts=true"),
        (["text=gone.txt"], "there is no file gone.txt"),
        (["text=EMPTY"], "text: no line holds a word"),
        (["text=MARKS", "units=words"], "has the word </s>, which marks something else; remove it"),
        (["text=BROKEN"], "broken.txt, line 2: not UTF-8 text"),
        (["text=TEXT", "output=TEXT"], "text.txt' exists; name another file, or remove it"),
        (["text={a:1}"], "text must be the name of a file"),
    ],
)
def test_what_cannot_work_is_said_and_leaves_no_file(small_run, tmp_path, words, said):
    files = {"TEXT": TEXT.encode(), "EMPTY": b" \n\n", "MARKS": b"a </s> b\n", "BROKEN": b"good\n\xff\n"}
    for name, content in files.items():
        (tmp_path / f"{name.lower()}.txt").write_bytes(content)
        words = [word.replace(f"={name}", f"={tmp_path}/{name.lower()}.txt") for word in words]
    ended = small_run.run("lm", f"run={small_run.run_dir}", f"output={tmp_path}/lm.arpa", *words)
    assert (ended.code, said in ended.printed) == (2, True), ended.printed
    assert not Path(tmp_path / "lm.arpa").exists()
