import pytest
from lhotse import SupervisionSegment

import asr.data.preparation.cuts
from asr.data.preparation.cuts import Limits, SourceCheck, check_cuts, supervised_cuts
from tests.data.corpora import SPEC, manifests, utterance
from werdict.normalization import TextNormalizer


def test_audio_is_looked_at_once_however_many_cuts_lie_in_it(tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(
        asr.data.preparation.cuts, "audio_problem", lambda recording, whole: looked_at.append(recording.id) or "broken"
    )
    recording, _ = utterance(tmp_path, "talk")
    segments = [(recording, SupervisionSegment(f"s{index}", "talk", 0.1 * index, 0.2)) for index in range(5)]
    check = SourceCheck(SPEC.features)
    assert [check(cut) for cut in supervised_cuts(manifests(*segments))] == ["broken"] * 5
    assert looked_at == ["talk"]


@pytest.mark.parametrize("start", [-1e-9, -0.0009])
def test_a_segment_that_begins_before_its_recording_by_rounding_begins_with_it(tmp_path, start):
    recording, segment = utterance(tmp_path, "a")
    segment.start, segment.duration = start, 0.5
    (cut,) = supervised_cuts(manifests((recording, segment)))
    assert (cut.start, cut.end) == (0.0, pytest.approx(0.5 + start, abs=1e-4))
    assert cut.load_audio().shape[1] > 0


def test_transcripts_are_normalized_and_the_rest_of_a_supervision_is_kept(tmp_path):
    recording, segment = utterance(tmp_path, "a", text="  Hello,\tWORLD ")
    segment.speaker, segment.language, segment.custom = "anna", "en", {"accent": "x"}
    cuts = supervised_cuts(manifests((recording, segment)))
    normalizer = TextNormalizer(case="lower", punctuation="strip")
    ((cut,), _, _) = check_cuts("train", cuts, normalizer, Limits(), SPEC.features)
    (found,) = cut.supervisions
    assert (found.id, found.text, found.speaker, found.language) == ("a", "hello world", "anna", "en")
    assert found.custom == {"accent": "x"}
