from pathlib import Path

import pytest

from asr.commands import evaluate, prepare, train, transcribe
from tests.commands.conftest import TINY

RECIPE = ("recipe=an4/transformer_ctc", "logger=none")


def said(monkeypatch, capsys, folder: Path, command, *words: str) -> str:
    """Return what a command says when it refuses, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["asr", *words])
    with pytest.raises(SystemExit) as left:
        command.main()
    assert left.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "recipe an4 needs data.source=PATH: an archive or folder of AN4's cepstra"),
        (("augment=speed_specaugment",), "augment.audio changes the audio, but features are stored"),
        (("features=log_mel",), "features=log_mel is computed from audio, but there are features alone, 13 per frame"),
        (("data.num_features=12",), "the stored features are 13 per frame every 10 ms, but data.num_features=12"),
        (("data.prepare.num_dev_speakers=5",), "num_dev_speakers must be in [1, 4]"),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(monkeypatch, capsys, an4_archive, tmp_path, words, message):
    source = [f"data.source={an4_archive}"] if words else []
    options = [] if any("num_dev_speakers" in word for word in words) else ["data.prepare.num_dev_speakers=2"]
    command = prepare if words != ("augment=speed_specaugment",) else train
    assert message in said(monkeypatch, capsys, tmp_path, command, *RECIPE, *source, *options, *words)
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def trained(an4_archive, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    model = [word for word in TINY if not word.startswith("data.prepare")]
    source = (f"data.source={an4_archive}", "data.prepare.num_dev_speakers=2", "run_dir=run")
    short = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.workers.num_workers=0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["asr", *RECIPE, *model, *short, *source])
        train.main()
    return folder


def test_a_training_ends_with_an_error_rate_that_evaluating_finds_again(monkeypatch, capsys, trained):
    monkeypatch.chdir(trained)
    monkeypatch.setattr("sys.argv", ["asr", "run=run", "output_dir=again", "torch_threads=1"])
    evaluate.main()
    for name in ("test.hyp.txt", "test.wer.txt"):
        assert (trained / "again" / name).read_text() == (trained / "run" / "decode" / name).read_text()
    assert len((trained / "again" / "test.hyp.txt").read_text().splitlines()) == 10


def test_who_was_trained_on_features_cannot_transcribe_audio(monkeypatch, capsys, trained):
    (trained / "a.wav").write_bytes(b"")
    message = said(monkeypatch, capsys, trained, transcribe, "run=run", "audio=a.wav", "torch_threads=1")
    assert "trained on features without audio, 13 per frame, and cannot read audio" in message
