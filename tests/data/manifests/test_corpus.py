"""A corpus holds out what it does not train on, whatever the names of utterances and files are."""

import os

import pytest
from lhotse import SupervisionSegment
from lhotse.utils import fastcopy

from asr.data.manifests.corpus import Corpus, Manifests
from tests.data.corpora import utterance


def twin(folder, name, link=None):
    """Return another recording of the audio of `name`, under another id, also by way of a link."""
    recording, _ = utterance(folder, name)
    if link is not None:
        link(recording.sources[0].source, folder / "link.wav")
        source = fastcopy(recording.sources[0], source=str(folder / "link.wav"))
        recording = fastcopy(recording, sources=[source])
    return fastcopy(recording, id="twin")


def split(recording, name, start=0.0, duration=0.5):
    return Manifests.of([recording], [SupervisionSegment(name, recording.id, start, duration, text="a")])


@pytest.mark.parametrize("link", [None, os.symlink], ids=["another name", "a link"])
@pytest.mark.parametrize("held_out", ["dev", "test-clean"])
def test_audio_of_training_that_is_held_out_under_another_name_is_refused(tmp_path, link, held_out):
    recording, _ = utterance(tmp_path, "a")
    splits = {"train": split(recording, "x"), held_out: split(twin(tmp_path, "a", link), "y")}
    with pytest.raises(ValueError, match=rf"'x' of train and 'y' of {held_out} are the same 0 to 0\.5 s of .*\.wav"):
        Corpus(splits)


def test_other_parts_of_a_recording_and_repetitions_in_training_are_allowed(tmp_path):
    recording, _ = utterance(tmp_path, "a")
    again = SupervisionSegment("again", "a", 0.0, 0.4, text="a")
    train = Manifests.of([recording], [SupervisionSegment("x", "a", 0.0, 0.4, text="a"), again])
    Corpus({"train": train, "dev": split(twin(tmp_path, "a"), "y", start=0.4, duration=0.1)})


def test_test_sets_may_share_recordings(tmp_path):
    recording, _ = utterance(tmp_path, "a")
    Corpus({"test-all": split(recording, "x"), "test-hard": split(twin(tmp_path, "a"), "y")})
