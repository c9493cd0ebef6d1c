"""asr-lm, and decoding with what it makes."""

import gzip
from pathlib import Path

import pytest

from asr.language_models import read_arpa
from asr.run.restore import restore_text
from tests.language_models.arpa_texts import Reference

TEXT = "one two three\nONE TWO\n\nfour five one two three\n" * 5


def test_tokens_of_the_run_are_the_words_of_its_language_model(small_run, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    words = (f"run={small_run.run_dir}", f"text={tmp_path}/text.txt", "order=3", f"output={tmp_path}/new/lm.arpa")
    ended = small_run.run("lm", *words)
    text = restore_text(small_run.run_dir)
    model = read_arpa(tmp_path / "new" / "lm.arpa")
    assert set(model.words) == {"<s>", "</s>", *text.tokenizer.pieces} - {"<blk>"}
    assert model.order == 3
    sentences = [text.tokenizer.encode(text.normalize(line)) for line in TEXT.splitlines() if line]
    assert f"text: 15 sentences, {sum(map(len, sentences))} tokens, 30 of them unknown" in ended.printed
    found = Reference((tmp_path / "new" / "lm.arpa").read_text())
    probs = [10 ** found.log_prob(["o", "n"], word) for word in model.words if word != "<s>"]
    assert sum(probs) == pytest.approx(1, abs=1e-5)
    assert 10 ** found.log_prob(["o", "n"], "e") > 0.7


def test_words_of_files_and_of_the_transcripts_of_the_run(small_run, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"alpha beta\n"))
    (tmp_path / "b.txt").write_text("alpha gamma\n")
    words = (f"text=[{tmp_path}/a*.gz,{tmp_path}/b.txt]", "transcripts=true", "units=words", "order=2")
    ended = small_run.run("lm", f"run={small_run.run_dir}", *words, f"output={tmp_path}/lm.arpa.gz")
    model = read_arpa(tmp_path / "lm.arpa.gz")
    assert {"alpha", "beta", "gamma", "one", "two", "<unk>"} <= set(model.words)
    assert "text: 26 sentences" in ended.printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "text=FILE"),
        (["text=gone.txt"], "text: 'gone.txt'"),
        (["text=EMPTY"], "text: "),
        (["text=MARKS", "units=words"], "</s>"),
        (["text=BROKEN"], "broken.txt, line 2"),
        (["text=TEXT", "output=TEXT"], "text.txt' exists"),
    ],
)
def test_what_cannot_work_is_said_and_leaves_no_file(small_run, tmp_path, words, said):
    files = {"TEXT": TEXT.encode(), "EMPTY": b" \n\n", "MARKS": b"a </s> b\n", "BROKEN": b"good\n\xff\n"}
    for name, content in files.items():
        (tmp_path / f"{name.lower()}.txt").write_bytes(content)
        words = [word.replace(f"={name}", f"={tmp_path}/{name.lower()}.txt") for word in words]
    ended = small_run.run("lm", f"run={small_run.run_dir}", f"output={tmp_path}/lm.arpa", *words, code=2)
    assert said in ended.printed
    assert not Path(tmp_path / "lm.arpa").exists()


@pytest.fixture
def lm(small_run, tmp_path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    path = tmp_path / "lm.arpa"
    small_run.run("lm", f"run={small_run.run_dir}", f"text={tmp_path}/text.txt", f"output={path}")
    return path


def test_a_set_is_decoded_with_a_language_model_and_hotwords(small_run, lm, tmp_path):
    (tmp_path / "words.txt").write_text("one two\nthree\t3\n")
    words = ("decoder=ctc_beam", f"decoder.lm={lm}", f"decoder.hotwords={tmp_path}/words.txt", "torch_threads=1")
    small_run.run("evaluate", f"run={small_run.run_dir}", *words, f"output_dir={tmp_path}/out")
    said = (tmp_path / "out" / "test.wer.txt").read_text()
    assert f"language model {lm} of order 4; weight 0.3" in said
    assert f"2 hotwords of {tmp_path}/words.txt" in said
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={small_run.audio}", *words)
    assert f"language model {lm}" in ended.printed


def test_weights_are_chosen_on_dev_and_hold_for_test(small_run, lm, tmp_path):
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "torch_threads=1")
    ended = small_run.run("evaluate", *run, "tune=true", f"output_dir={tmp_path}/tuned")
    header, *rows = (line.split("\t") for line in (tmp_path / "tuned" / "tuning.tsv").read_text().splitlines())
    assert header == ["lm_weight", "token_bonus", "wer", "cer"]
    assert len({(weight, bonus) for weight, bonus, *_ in rows}) == len(rows) == 70
    weight, bonus, wer, _ = min(rows, key=lambda row: (float(row[2]), float(row[3])))
    chosen = f"decoder.lm_weight={weight} decoder.token_bonus={bonus}"
    assert f"chosen: {chosen}\n" in ended.printed
    said = (tmp_path / "tuned" / "test.wer.txt").read_text()
    assert f"search chosen on dev, where the WER was {wer} %: {chosen}" in said
    assert f"weight {weight}, bonus per token {bonus}" in said
    small_run.run("evaluate", *run, *chosen.split(), f"output_dir={tmp_path}/given")
    given, tuned = (tmp_path / name / "test.hyp.txt" for name in ("given", "tuned"))
    assert given.read_bytes() == tuned.read_bytes()


def test_a_model_of_low_order_is_subtracted(small_run, lm, tmp_path):
    words = ("transcripts=true", "order=2", f"output={tmp_path}/low.arpa")
    small_run.run("lm", f"run={small_run.run_dir}", *words)
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "decoder.lm_weight=1", "torch_threads=1")
    texts = {}
    for name, options in (("without", ()), ("with", (f"decoder.lodr={tmp_path}/low.arpa", "decoder.lodr_weight=1"))):
        small_run.run("evaluate", *run, *options, f"output_dir={tmp_path}/{name}")
        texts[name] = (tmp_path / name / "test.hyp.txt").read_text()
    assert texts["with"] != texts["without"]


def test_weights_are_chosen_on_any_manifest_but_that_of_the_test(small_run, lm, tmp_path):
    other = sorted(small_run.folder.glob("data/digits/*/audio/dev-*/*.flac"))[0]
    (tmp_path / "dev.tsv").write_text(f"audio\ttext\n{other}\tone two\n")
    (tmp_path / "test.tsv").write_text(f"audio\ttext\n{small_run.audio}\tone two\n")
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "torch_threads=1")
    ended = small_run.run("evaluate", *run, f"tune={tmp_path}/dev.tsv", f"output_dir={tmp_path}/out")
    assert "search chosen on dev, where" in ended.printed
    same = small_run.run("evaluate", *run, f"tune={tmp_path}/test.tsv", code=2)
    assert "1 of its utterances" in same.last_line, same.printed


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("evaluate", ["tune=yes"], "tune"),
        ("evaluate", ["tune=true"], "tune=True"),
        ("evaluate", ["decoder.lm=gone.arpa"], "decoder: lm: 'gone.arpa'"),
        ("evaluate", ["decoder.lm=TEXT"], "text.txt: line 1"),
        ("evaluate", ["decoder.lm=WORDS"], "words.arpa: its words are like ['alpha']"),
        ("evaluate", ["decoder.beam_size=0"], "decoder.beam_size"),
        ("train", ["decoder.lm=TEXT"], "decoder.lm"),
    ],
)
def test_decoders_that_cannot_work_are_refused_before_any_work(small_run, tmp_path, command, words, said):
    (tmp_path / "text.txt").write_text("no model\n")
    (tmp_path / "words.arpa").write_text("\\data\\\nngram 1=1\n\\1-grams:\n-1 alpha\n\\end\\\n")
    words = [word.replace("TEXT", f"{tmp_path}/text.txt").replace("WORDS", f"{tmp_path}/words.arpa") for word in words]
    run = (f"run={small_run.run_dir}", f"output_dir={tmp_path}/out") if command == "evaluate" else ()
    ended = small_run.run(command, *run, "decoder=ctc_beam", *words, code=2)
    assert said in ended.printed
    assert not (tmp_path / "out").exists()
