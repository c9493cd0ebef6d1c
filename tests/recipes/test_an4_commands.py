import pytest

from tests.commands.conftest import TINY, Workplace

RECIPE = ("recipe=an4/transformer_ctc", "logger=none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "data.source"),
        (("features=log_mel",), "features"),
        (("data.num_features=12",), "data.num_features"),
        (("data.prepare.num_dev_speakers=5",), "num_dev_speakers"),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(an4_archive, tmp_path, words, message):
    source = [f"data.source={an4_archive}", "data.prepare.num_dev_speakers=2"] if words else []
    assert message in Workplace(tmp_path).run("prepare", *RECIPE, *source, *words, code=2)


@pytest.fixture(scope="module")
def place(an4_archive, tmp_path_factory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("trained"))
    model = [word for word in TINY if not word.startswith("data.prepare")]
    source = (f"data.source={an4_archive}", "data.prepare.num_dev_speakers=2", "run_dir=run")
    short = ("trainer.max_steps=4", "trainer.val_check_interval=4", "data.workers.num_workers=0")
    place.run("train", *RECIPE, *model, *short, *source)
    return place


def test_who_was_trained_on_features_cannot_transcribe_audio(place):
    (place.folder / "a.wav").write_bytes(b"")
    assert "features without audio" in place.run("transcribe", "run=run", "audio=a.wav", "torch_threads=1", code=2)
