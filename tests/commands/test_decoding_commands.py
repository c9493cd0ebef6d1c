"""asr-evaluate and asr-transcribe: what one checkpoint is good for."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from lhotse.cut import CutSet
from omegaconf import DictConfig, OmegaConf

from asr.config.restore import restore
from asr.training.checkpoints.loading import load_checkpoint
from asr.training.weights import choose_weights


def audio_of(trained, split: str) -> list[Path]:
    return sorted(trained.folder.glob(f"data/digits/*/audio/{split}-*/*.flac"))


def test_the_runs_own_test_set_gives_the_same_hypotheses(trained):
    printed = trained.run("evaluate", "run=first", "output_dir=evaluated")
    files = ("test.hyp.txt", "test.wer.txt", "test.alignments.txt", "test.ctm", "test.errors.tsv")
    for name in files:
        assert (trained.folder / "evaluated" / name).read_text() == (trained.run_dir / "decode" / name).read_text()
    assert "WER" in printed
    assert "synthetic speech" in printed
    assert "evaluated" in printed.splitlines()[-1]


@pytest.mark.parametrize("weights", ["average", "ema"])
def test_averages_of_weights_decode_and_are_named(trained, weights):
    """The recognizer has learned too little to tell them apart by what it writes."""
    checkpoint = load_checkpoint(trained.run_dir / "checkpoints" / "best.ckpt")
    described = choose_weights(checkpoint, weights).described
    printed = trained.run("evaluate", "run=first", f"weights={weights}", f"output_dir={weights}")
    assert f"update {checkpoint.update}, {described}\n" in printed
    said = (trained.folder / weights / "test.wer.txt").read_text()
    assert f"note: decoded with best.ckpt of update {checkpoint.update}, weights: {described}\n" in said


def decoding(path: Path, since: int | None = None) -> DictConfig:
    options = {"run": str(path), "weights": "average", "average_since": since}
    return OmegaConf.create({**options, "torch_threads": 1, "num_workers": 0, "batch_duration_s": 10.0})


def test_restored_are_the_weights_asked_for(trained):
    path = trained.run_dir / "checkpoints" / "update-000012.ckpt"
    restored = restore(decoding(path, 6))
    expected = choose_weights(load_checkpoint(path), "average", 6)
    assert expected.described == "average of updates 7 to 12"
    found = restored.recognizer.state_dict()
    assert all(torch.equal(found[name].cpu(), value) for name, value in expected.weights.items())
    raw = load_checkpoint(path).weights
    assert not all(torch.equal(found[name].cpu(), value) for name, value in raw.items())


def test_weights_that_a_checkpoint_lacks_are_not_replaced_by_others(trained):
    audio = audio_of(trained, "test")[0]
    for words, part in (
        (("weights=last",), "weights must be one of raw, average, ema, given 'last'"),
        (("weights=average", "average_since=5"), "allowed: 0, "),
        (("average_since=5",), "average_since=5 is for weights=average, given weights=raw"),
    ):
        assert part in trained.run("transcribe", "run=first", f"audio={audio}", *words, code=2)


def test_a_checkpoint_alone_decodes_elsewhere(trained, tmp_path):
    """Only one file travels: no data folder, no config, no tokenizer."""
    shutil.copy(trained.run_dir / "checkpoints" / "best.ckpt", tmp_path / "model.ckpt")
    shutil.copy(audio_of(trained, "test")[0], tmp_path / "a [1], b.flac")
    printed = type(trained)(tmp_path, tmp_path, "").run("transcribe", "run=model.ckpt", "audio='*.flac'")
    assert "a [1], b.flac\t" in printed


def test_transcripts_do_not_depend_on_what_else_is_transcribed(trained):
    pattern = str(trained.folder / "data/digits/*/audio/test-*/*.flac")
    trained.run("transcribe", "run=first", f"audio='{pattern}'", "output=all.tsv")
    lines = (trained.folder / "all.tsv").read_text().splitlines()
    assert len(lines) == 10
    alone = trained.run("transcribe", "run=first", f"audio={audio_of(trained, 'test')[3]}")
    assert lines[3] in alone.splitlines()
    hypotheses = (trained.run_dir / "decode" / "test.hyp.txt").read_text().splitlines()
    assert [line.split("\t")[1] for line in lines] == [line.split("\t")[1] for line in hypotheses]


def test_a_transcript_is_never_overwritten(trained):
    (trained.folder / "mine.tsv").write_text("precious")
    said = trained.run("transcribe", "run=first", f"audio={audio_of(trained, 'test')[0]}", "output=mine.tsv", code=2)
    assert "mine.tsv" in said
    assert (trained.folder / "mine.tsv").read_text() == "precious"


def test_other_rates_short_and_broken_files_are_handled(trained, tmp_path):
    rng = np.random.default_rng(0)
    for name, rate_hz, seconds in (("low.wav", 8000, 1.0), ("high.wav", 44_100, 1.0), ("tiny.wav", 16_000, 0.02)):
        soundfile.write(tmp_path / name, rng.normal(size=int(rate_hz * seconds)) * 0.1, rate_hz)
    soundfile.write(tmp_path / "stereo.wav", rng.normal(size=(16_000, 2)) * 0.1, 16_000)
    (tmp_path / "broken.wav").write_bytes(b"RIFF no audio")
    printed = trained.run("transcribe", "run=first", f"audio={tmp_path}/*.wav", code=1)
    for name in ("low", "high", "tiny", "stereo"):
        assert f"{tmp_path}/{name}.wav\t" in printed
    assert "could not read" in printed
    assert "broken.wav" in printed


def test_any_manifest_is_evaluated(trained, tmp_path):
    files = audio_of(trained, "dev")[:4]
    rows = [f"{path}\tone two three\tspeaker{i % 2}\t0.5" for i, path in enumerate(files)]
    lines = ["audio\ttext\tspeaker\tstart", *rows, f"{tmp_path}/gone.wav\thi\tx\t0"]
    (tmp_path / "my set.tsv").write_text("\n".join(lines))
    output = tmp_path / "out"
    printed = trained.run("evaluate", "run=first", f"manifest='{tmp_path}/my set.tsv'", f"output_dir={output}")
    assert "left out" in printed
    assert "missing audio" in printed
    assert "my_set  note: columns not used: start" in printed
    assert (output / "my_set.wer.txt").read_text().startswith("WER ")
    assert len((output / "my_set.hyp.txt").read_text().splitlines()) == 4
    again = trained.run("evaluate", "run=first", f"manifest='{tmp_path}/my set.tsv'", f"output_dir={output}", code=2)
    assert "not empty" in again


def test_several_manifests_give_one_table_and_texts_are_normalized_if_that_is_asked_for(trained, tmp_path):
    audio = audio_of(trained, "test")
    for name, files in (("a", audio[:2]), ("b", audio[2:3])):
        rows = "".join(f"{file}\tZERO, Zero!\n" for file in files)
        (tmp_path / f"{name}.tsv").write_text(f"audio\ttext\n{rows}")
    manifests = f"manifest=[{tmp_path}/a.tsv,{tmp_path}/b.tsv]"
    printed = trained.run("evaluate", "run=first", manifests, "scoring.normalize=basic", f"output_dir={tmp_path}/out")
    table = [line.split() for line in printed.splitlines() if line.split()[:1] in (["a"], ["b"])][-2:]
    assert [(row[0], row[-3::2]) for row in table] == [("a", ["4", "2"]), ("b", ["2", "1"])]
    said = (tmp_path / "out" / "b.wer.txt").read_text()
    assert "scoring.normalize=basic" in said
    assert "ZERO" not in (tmp_path / "out" / "b.alignments.txt").read_text()
    assert "characters that the run does not know" not in printed
    printed = trained.run("evaluate", "run=first", f"manifest={tmp_path}/b.tsv", f"output_dir={tmp_path}/upper")
    told = (
        "2 of 2 words of the references have characters that the run does not know, and count as errors: ZERO,, Zero!"
    )
    assert told in " ".join(printed.split())
    assert (
        "(asr-evaluate scoring.normalize=basic compares without case" in (tmp_path / "upper" / "b.wer.txt").read_text()
    )
    same = f"manifest=[{tmp_path}/a.tsv,{tmp_path}/./a.tsv]"
    printed = trained.run("evaluate", "run=first", same, code=2)
    assert "two manifests would be the set 'a'" in printed
    assert "left out" not in printed, "they were read before"


def test_duplicated_cuts_count_once(trained, tmp_path):
    path = audio_of(trained, "dev")[0]
    recording = Recording.from_file(path, recording_id="r")
    cut = recording.to_cut().with_id("same")
    cut.supervisions = [SupervisionSegment("same", "r", 0, cut.duration, text="one two")]
    CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl")
    line = (tmp_path / "cuts.jsonl").read_text()
    (tmp_path / "cuts.jsonl").write_text(line * 3)
    printed = trained.run("evaluate", "run=first", f"manifest={tmp_path}/cuts.jsonl", f"output_dir={tmp_path}/out")
    assert "2 words, 1 utterance" in printed


def test_a_manifest_that_would_run_a_command_is_refused(trained, tmp_path):
    evil = Recording("evil", [AudioSource("command", [0], f"touch {tmp_path}/hacked")], 16_000, 16_000, 1.0)
    cut = MonoCut("c", 0, 1, 0, [SupervisionSegment("c", "evil", 0, 1, text="x")], recording=evil)
    CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl")
    said = trained.run("evaluate", "run=first", f"manifest={tmp_path}/cuts.jsonl", code=2)
    assert "refused" in said
    assert not (tmp_path / "hacked").exists()


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("kind", ["code", "target", "width", "cut", "empty", "other"])
def test_a_strangers_checkpoint_runs_no_code_and_damage_is_said(trained, tmp_path, kind):
    best = trained.run_dir / "checkpoints" / "best.ckpt"
    path = tmp_path / "stranger.ckpt"
    state = torch.load(best, weights_only=True)
    if kind == "code":
        torch.save(state | {"extra": Evil(tmp_path / "hacked")}, path)
    elif kind == "target":
        state["werdict"]["config"]["encoder"] = {"_target_": "os.system", "command": f"touch {tmp_path}/hacked"}
        torch.save(state, path)
    elif kind == "width":
        state["werdict"]["config"]["encoder"]["d_model"] = 24
        torch.save(state, path)
    else:
        path.write_bytes({"cut": best.read_bytes()[:50_000], "empty": b"", "other": b"hello"}[kind])
    said = trained.run("transcribe", f"run={path}", f"audio={audio_of(trained, 'test')[0]}", code=2)
    assert "stranger.ckpt" in said or "os.system" in said
    assert "Traceback" not in said
    assert not (tmp_path / "hacked").exists()


def test_wrong_paths_are_explained(trained):
    for words, part in (
        (("run=nowhere", "audio=x.wav"), "x.wav"),
        (("run=nowhere", f"audio={audio_of(trained, 'test')[0]}"), "nowhere"),
        (("run=first",), "audio"),
    ):
        assert part in trained.run("transcribe", *words, code=2)
    assert "gone.tsv" in trained.run("evaluate", "run=first", "manifest=gone.tsv", code=2)


def test_the_summary_of_a_checkpoint_names_its_data(trained):
    loaded = load_checkpoint(trained.run_dir / "checkpoints" / "best.ckpt")
    assert Path(loaded.data["folder"]).is_dir()
    summary = json.loads((trained.run_dir / "report" / "summary.json").read_text())
    assert loaded.data["fingerprint"] == summary["data"]
