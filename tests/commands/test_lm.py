"""asr-lm, and decoding with what it makes: what is said of options and files that cannot work."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.config.restore import restore_text
from asr.language_models.arpa import read_arpa
from tests.language_models.arpa_texts import Reference
from tests.small_runs import TINY_MODEL

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


def test_words_are_no_units_where_no_token_begins_one(small_run, tmp_path):
    rows = ["audio\ttext\tsplit"]
    for split in ("train", "dev", "test"):
        shutil.copy(small_run.audio(), tmp_path / f"{split}.flac")
        rows.append(f"{split}.flac\tone\t{split}")
    (tmp_path / "table.tsv").write_text("\n".join(rows))
    single = ("recipe=custom/transformer_ctc", f"data.source={tmp_path}/table.tsv", "data.transcripts_lm=0")
    ended = small_run.run("train", *TINY_MODEL, *single, f"run_dir={tmp_path}/run")
    assert ended.code == 0, ended.printed
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    words = (f"run={tmp_path}/run", f"text={tmp_path}/text.txt", f"output={tmp_path}/lm.arpa")
    ended = small_run.run("lm", *words, "units=words")
    assert (ended.code, "no token of this run marks where a word begins" in ended.printed) == (2, True), ended.printed
    assert small_run.run("lm", *words).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["text=TEXT", "units=letters"], "given 'letters'"),
        (["text=TEXT", "order=0"], "order must be at least 1, given 0"),
        ([], "there is no text: give text=FILE, or transcripts=true"),
        (["text=gone.txt"], "text: 'gone.txt' names no file; give a file, a pattern like 'corpus/*.txt.gz', or a list"),
        (["text=[]"], "text: the list is empty; give a file"),
        (["text=EMPTY"], "text: no line holds a word"),
        (["text=MARKS", "units=words"], "has the word </s>, which marks something else; remove it"),
        (["text=BROKEN"], "broken.txt, line 2: not UTF-8 text"),
        (["text=TEXT", "output=TEXT"], "text.txt' exists; name another file, or remove it"),
        (["text={a:1}"], "given {'a': 1}"),
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


def test_a_pattern_names_all_its_files(small_run, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(TEXT)
    words = (f"run={small_run.run_dir}", f"text={tmp_path}/*.txt", f"output={tmp_path}/lm.arpa")
    ended = small_run.run("lm", *words)
    assert (ended.code, "text: 30 sentences" in ended.printed) == (0, True), ended.printed


@pytest.fixture
def lm(small_run, tmp_path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    path = tmp_path / "lm.arpa"
    ended = small_run.run("lm", f"run={small_run.run_dir}", f"text={tmp_path}/text.txt", f"output={path}")
    assert ended.code == 0, ended.printed
    return path


def test_a_set_is_decoded_with_a_language_model_and_hotwords(small_run, lm, tmp_path):
    (tmp_path / "words.txt").write_text("one two\nthree\t3\n")
    words = ("decoder=ctc_beam", f"decoder.lm={lm}", f"decoder.hotwords={tmp_path}/words.txt", "torch_threads=1")
    ended = small_run.run("evaluate", f"run={small_run.run_dir}", *words, f"output_dir={tmp_path}/out")
    assert ended.code == 0, ended.printed
    said = (tmp_path / "out" / "test.wer.txt").read_text()
    for note in (f"language model {lm} of order 4; weight 0.3, bonus", f"2 hotwords of {tmp_path}/words.txt"):
        assert note in ended.printed
        assert f"note: {note}" in said


def test_a_language_model_changes_transcripts_as_its_weight_and_bonus_say(small_run, lm):
    words = (f"run={small_run.run_dir}", f"audio={small_run.audio()}", "decoder=ctc_beam", "torch_threads=1")
    printed = []
    for more in ("decoder.token_bonus=0", "decoder.token_bonus=20", f"decoder.lm={lm}"):
        ended = small_run.run("transcribe", *words, more)
        assert ended.code == 0, ended.printed
        printed.append(ended.printed)
    assert len(printed[0].strip()) < len(printed[1].strip())
    assert f"language model {lm} of order 4" in printed[2]


def test_weights_are_chosen_on_dev_and_hold_for_test(small_run, lm, tmp_path):
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "torch_threads=1")
    ended = small_run.run("evaluate", *run, "tune=true", f"output_dir={tmp_path}/tuned")
    assert ended.code == 0, ended.printed
    header, *rows = (line.split("\t") for line in (tmp_path / "tuned" / "tuning.tsv").read_text().splitlines())
    assert header == ["lm_weight", "token_bonus", "wer", "cer"]
    assert len({(weight, bonus) for weight, bonus, *_ in rows}) == len(rows) == 70
    weight, bonus, wer, _ = min(rows, key=lambda row: (float(row[2]), float(row[3])))
    chosen = f"decoder.lm_weight={weight} decoder.token_bonus={bonus}"
    assert f"chosen: {chosen}\n" in ended.printed
    said = (tmp_path / "tuned" / "test.wer.txt").read_text()
    assert f"weights chosen on dev, where the WER was {wer} %: {chosen}" in said
    assert f"weight {weight}, bonus per token {bonus}" in said
    again = small_run.run("evaluate", *run, *chosen.split(), f"output_dir={tmp_path}/typed")
    assert again.code == 0, again.printed
    typed, tuned = (tmp_path / name / "test.hyp.txt" for name in ("typed", "tuned"))
    assert typed.read_bytes() == tuned.read_bytes()


def test_a_model_of_low_order_is_subtracted(small_run, lm, tmp_path):
    words = ("transcripts=true", "order=2", f"output={tmp_path}/low.arpa")
    assert small_run.run("lm", f"run={small_run.run_dir}", *words).code == 0
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "decoder.lm_weight=1", "torch_threads=1")
    texts = {}
    for name, options in (("without", ()), ("with", (f"decoder.lodr={tmp_path}/low.arpa", "decoder.lodr_weight=1"))):
        ended = small_run.run("evaluate", *run, *options, f"output_dir={tmp_path}/{name}")
        assert ended.code == 0, ended.printed
        texts[name] = (tmp_path / name / "test.hyp.txt").read_text()
    assert texts["with"] != texts["without"]


def test_weights_are_chosen_on_any_manifest_but_that_of_the_test(small_run, lm, tmp_path):
    other = sorted(small_run.folder.glob("data/digits/*/audio/dev-*/*.flac"))[0]
    (tmp_path / "dev.tsv").write_text(f"audio\ttext\n{other}\tone two\n")
    (tmp_path / "test.tsv").write_text(f"audio\ttext\n{small_run.audio()}\tone two\n")
    run = (f"run={small_run.run_dir}", "decoder=ctc_beam", f"decoder.lm={lm}", "torch_threads=1")
    ended = small_run.run("evaluate", *run, f"tune={tmp_path}/dev.tsv", f"output_dir={tmp_path}/out")
    assert (ended.code, "weights chosen on dev, where" in ended.printed) == (0, True), ended.printed
    same = small_run.run("evaluate", *run, f"tune={tmp_path}/test.tsv")
    said = "1 of its utterances are among those that are decoded"
    assert (same.code, said in same.printed) == (2, True), same.printed


def test_no_weights_are_chosen_on_audio_that_cannot_be_read(small_run, lm, tmp_path):
    soundfile.write(tmp_path / "nan.wav", np.full(16_000, np.nan), 16_000, "FLOAT")
    (tmp_path / "nan.tsv").write_text(f"audio\ttext\n{tmp_path}/nan.wav\tone two\n")
    words = ("decoder=ctc_beam", f"decoder.lm={lm}", f"tune={tmp_path}/nan.tsv", "torch_threads=1")
    ended = small_run.run("evaluate", f"run={small_run.run_dir}", *words, f"output_dir={tmp_path}/out")
    said = "none of the 1 utterances of nan could be read to choose weights on"
    assert (ended.code, said in ended.last_line) == (1, True), ended.printed
    assert "could not read nan: " in ended.printed


def test_no_weights_are_chosen_without_words(small_run, lm, tmp_path):
    (tmp_path / "silent.tsv").write_text(f"audio\ttext\n{small_run.audio()}\t\n")
    words = ("decoder=ctc_beam", f"decoder.lm={lm}", f"tune={tmp_path}/silent.tsv", f"output_dir={tmp_path}/out")
    ended = small_run.run("evaluate", f"run={small_run.run_dir}", *words)
    said = "silent.tsv' hold no words; name other data"
    assert (ended.code, said in ended.last_line) == (2, True), ended.printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["evaluate", "transcribe"])
def test_an_option_of_a_decoder_needs_the_decoder(small_run, command):
    ended = small_run.run(command, f"run={small_run.run_dir}", "decoder.hotword_boost=2")
    assert (ended.code, "decoder=… chooses one" in ended.printed) == (2, True), ended.printed


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("evaluate", ["tune=yes"], "tune must be true, false, or a manifest that exists, given 'yes'"),
        ("evaluate", ["tune=1"], "tune must be true, false, or a manifest that exists, given 1"),
        ("evaluate", ["manifest=gone.tsv"], "manifest: there is no file or folder 'gone.tsv'"),
        ("evaluate", ["manifest=AUDIO"], "AUDIO, line 1: "),
        ("evaluate", ["decoder=transducer_greedy", "decoder.max_symbols=0"], "max_symbols must be at least 1"),
        ("evaluate", ["tune=true"], "tune=True: CtcBeam has no weights to choose; give it a language model"),
        ("evaluate", ["tune=2.5"], "given 2.5"),
        ("evaluate", ["decoder.lm=gone.arpa"], "decoder: lm: 'gone.arpa'"),
        ("evaluate", ["decoder.lm=TEXT"], "text.txt: line 1: the file ends before \\end\\"),
        (
            "evaluate",
            ["decoder.lm=WORDS"],
            "words.arpa: its words are like ['alpha'], and none is written with the letters",
        ),
        ("evaluate", ["decoder.hotwords=TEXT", "decoder.hotword_boost=0"], "hotword_boost must be above 0"),
        ("evaluate", ["decoder.beam_size=0"], "decoder: beam_size must be at least 1, given 0"),
        ("evaluate", ["decoder.lm_wait=1"], "lm_wait"),
        ("train", ["decoder.lm=TEXT"], "decoder.lm is for asr-evaluate and asr-transcribe"),
    ],
)
def test_decoders_that_cannot_work_are_refused_before_any_work(small_run, tmp_path, command, words, said):
    (tmp_path / "text.txt").write_text("no model\n")
    (tmp_path / "words.arpa").write_text("\\data\\\nngram 1=1\n\\1-grams:\n-1 alpha\n\\end\\\n")
    words = [word.replace("TEXT", f"{tmp_path}/text.txt").replace("WORDS", f"{tmp_path}/words.arpa") for word in words]
    words, said = (
        [word.replace("AUDIO", str(small_run.audio())) for word in words],
        said.replace("AUDIO", str(small_run.audio())),
    )
    run = (f"run={small_run.run_dir}", f"output_dir={tmp_path}/out") if command == "evaluate" else ()
    ended = small_run.run(command, *run, "decoder=ctc_beam", *words)
    assert (ended.code, said in ended.printed) == (2, True), ended.printed
    assert not (tmp_path / "out").exists()
