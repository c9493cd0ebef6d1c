"""asr-evaluate and asr-transcribe: what one checkpoint is good for."""

import shutil
from pathlib import Path

import pytest
import torch

from asr.run.restore import restore
from asr.training.checkpoints import choose_weights, load_checkpoint
from tests.configs import composed


def audio_of(trained, split: str) -> list[Path]:
    return sorted(trained.folder.glob(f"data/digits/*/audio/{split}-*/*.flac"))


def test_the_runs_own_test_set_gives_the_same_hypotheses(trained):
    printed = trained.run("evaluate", "run=first", "output_dir=evaluated")
    for name in ("test.hyp.txt", "test.wer.txt", "test.alignments.txt", "test.ctm", "test.errors.tsv"):
        assert (trained.folder / "evaluated" / name).read_text() == (trained.run_dir / "decode" / name).read_text()
    assert "WER" in printed
    assert "synthetic speech" in printed


def test_restored_are_the_weights_asked_for(trained):
    path = trained.run_dir / "checkpoints" / "update-000012.ckpt"
    words = (f"run={path}", "weights=average", "average_since=6", "audio=any.wav")
    restored = restore(composed(*words, command="transcribe").options, torch_threads=1)
    expected = choose_weights(load_checkpoint(path), "average", 6)
    assert expected.described == "average of updates 7 to 12"
    found = restored.recognizer.state_dict()
    assert all(torch.equal(found[name].cpu(), value) for name, value in expected.weights.items())
    raw = load_checkpoint(path).weights
    assert not all(torch.equal(found[name].cpu(), value) for name, value in raw.items())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("weights=average", "average_since=5"), "average_since"),
        (("average_since=5",), "weights=average"),
        (("run=nowhere",), "nowhere"),
        (("audio=gone.wav",), "gone.wav"),
    ],
)
def test_what_is_not_there_is_named(small_run, words, said):
    ended = small_run.run("transcribe", f"run={small_run.run_dir}", f"audio={small_run.audio}", *words, code=2)
    assert said in ended.last_line, ended.printed


def test_a_checkpoint_alone_decodes_elsewhere(small_run, tmp_path):
    """Only one file travels: no data folder, no config, no tokenizer."""
    shutil.copy(small_run.run_dir / "checkpoints" / "best.ckpt", tmp_path / "model.ckpt")
    shutil.copy(small_run.audio, tmp_path / "a [1], b.flac")
    ended = small_run.programs.run("transcribe", "run=model.ckpt", "audio='*.flac'", cwd=tmp_path)
    assert "a [1], b.flac\t" in ended.printed


def test_transcripts_do_not_depend_on_what_else_is_transcribed_and_are_never_overwritten(trained):
    pattern = str(trained.folder / "data/digits/*/audio/test-*/*.flac")
    words = ("transcribe", "run=first", f"audio='{pattern}'", "output=all.tsv")
    trained.run(*words)
    written = (trained.folder / "all.tsv").read_text()
    lines = written.splitlines()
    assert len(lines) == 10
    alone = trained.run("transcribe", "run=first", f"audio={audio_of(trained, 'test')[3]}")
    assert lines[3] in alone.splitlines()
    hypotheses = (trained.run_dir / "decode" / "test.hyp.txt").read_text().splitlines()
    assert [line.split("\t")[1] for line in lines] == [line.split("\t")[1] for line in hypotheses]
    assert "all.tsv" in trained.run(*words, code=2)
    assert (trained.folder / "all.tsv").read_text() == written


def test_any_manifest_is_evaluated(small_run, tmp_path):
    rows = [f"{small_run.audio}\tone two three\tspeaker\t0.5", f"{tmp_path}/gone.wav\thi\tx\t0"]
    (tmp_path / "my set.tsv").write_text("\n".join(["audio\ttext\tspeaker\tmood", *rows]))
    words = (f"run={small_run.run_dir}", f"manifest='{tmp_path}/my set.tsv'", f"output_dir={tmp_path}/out")
    ended = small_run.run("evaluate", *words)
    assert "missing audio" in ended.printed
    assert "not used: mood" in ended.printed
    assert (tmp_path / "out" / "my_set.wer.txt").read_text().startswith("WER ")
    assert len((tmp_path / "out" / "my_set.hyp.txt").read_text().splitlines()) == 1
    again = small_run.run("evaluate", *words, code=2)
    assert "output_dir" in again.last_line, again.printed


def test_several_manifests_give_one_table_and_texts_are_normalized_if_that_is_asked_for(trained, tmp_path):
    audio = audio_of(trained, "test")
    for name, files in (("a", audio[:2]), ("b", audio[2:3])):
        rows = "".join(f"{file}\tZERO, Zero!\n" for file in files)
        (tmp_path / f"{name}.tsv").write_text(f"audio\ttext\n{rows}")
    manifests = f"manifest=[{tmp_path}/a.tsv,{tmp_path}/b.tsv]"
    printed = trained.run("evaluate", "run=first", manifests, "scoring.normalize=basic", f"output_dir={tmp_path}/out")
    table = [line.split() for line in printed.splitlines() if line.split()[:1] in (["a"], ["b"])][-2:]
    assert [(row[0], row[-3::2]) for row in table] == [("a", ["4", "2"]), ("b", ["2", "1"])]
    assert "scoring.normalize=basic" in (tmp_path / "out" / "b.wer.txt").read_text()
    assert "ZERO" not in (tmp_path / "out" / "b.alignments.txt").read_text()
    printed = trained.run("evaluate", "run=first", f"manifest={tmp_path}/b.tsv", f"output_dir={tmp_path}/upper")
    assert "2 of 2 words of the references have characters that the run does not know" in " ".join(printed.split())
    same = f"manifest=[{tmp_path}/a.tsv,{tmp_path}/./a.tsv]"
    assert "the set 'a'" in trained.run("evaluate", "run=first", same, code=2)


def test_a_strangers_checkpoint_builds_nothing_but_a_recognizer(small_run, tmp_path):
    state = torch.load(small_run.run_dir / "checkpoints" / "best.ckpt", weights_only=True)
    state["werdict"]["config"]["encoder"] = {"_target_": "os.system", "command": f"touch {tmp_path}/hacked"}
    torch.save(state, tmp_path / "stranger.ckpt")
    ended = small_run.run("transcribe", f"run={tmp_path}/stranger.ckpt", f"audio={small_run.audio}", code=2)
    assert "os.system" in ended.printed
    assert not (tmp_path / "hacked").exists()
