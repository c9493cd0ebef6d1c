"""Which cuts are made of supervisions, and which an encoder makes too short for CTC."""

from pathlib import Path

import pytest
from lhotse import SupervisionSegment

import asr.data.preparation.cuts
from asr.data.preparation.cuts import Limits, SourceCheck, check_cuts, supervised_cuts
from asr.data.preparation.prepared import CtcLengths
from asr.text.tokenizer import CharacterTokenizerTrainer
from tests.data.corpora import PRECOMPUTED, SPEC, Pair, Recipe, contents, ids, manifests, printed, run, utterance
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


def add_long_transcripts(folder: Path, splits: dict[str, list[Pair]]) -> None:
    for split in splits:
        splits[split].append(utterance(folder, f"{split}-fast", 1.0, text="ab" * 15))


def test_two_encoders_share_prepared_data_and_one_uses_a_cut_that_is_too_short_for_the_other(tmp_path):
    recipe = Recipe(add_long_transcripts)
    quarter = run(tmp_path, recipe, PRECOMPUTED)
    before = contents(tmp_path)
    half = run(tmp_path, recipe, PRECOMPUTED, output_frames=lambda num_frames: num_frames // 2)
    assert len(recipe.folders) == 1
    assert contents(tmp_path) == before  # neither a tokenizer nor features again
    assert (quarter.folder, quarter.tokenizer.state(), quarter.mean) == (half.folder, half.tokenizer.state(), half.mean)
    assert ids(half, "train") == [*ids(quarter, "train"), "train-fast"]
    assert ids(half, "dev") == [*ids(quarter, "dev"), "dev-fast"]
    assert ids(half, "test-x") == ids(quarter, "test-x") == ["test-x-0", "test-x-fast"]
    assert (quarter.splits["train"]["num_utterances"], half.splits["train"]["num_utterances"]) == (3, 4)
    assert (quarter.splits["train"]["num_dropped"], half.splits["train"]["num_dropped"]) == (1, 0)
    assert half.too_short == ()


def test_masked_cuts_are_counted_named_and_listed(tmp_path):
    prepared = run(tmp_path, Recipe(add_long_transcripts))
    assert "dropped from train: 1 × too short for its transcript\n" in printed(prepared)
    assert "too short with this encoder: train-fast, dev-fast; a run lists each in too_short.tsv" in printed(prepared)
    prepared.record(tmp_path)
    assert (tmp_path / "too_short.tsv").read_text().splitlines() == [
        "split\titem\treason",
        "train\ttrain-fast\ttoo short for its transcript: 25 frames, 30 needed",
        "dev\tdev-fast\ttoo short for its transcript: 25 frames, 30 needed",
    ]


def test_a_blank_between_equal_neighbors_is_needed_too(tmp_path):
    tokenizer = CharacterTokenizerTrainer().train(["ab"])
    cuts = run(tmp_path, Recipe(lambda _, splits: [setattr(s, "text", "aabbb") for _, s in splits["dev"]])).cuts("dev")
    texts = (cut.supervisions[0].text for cut in cuts)
    lengths = CtcLengths.of(cuts.durations, texts, tokenizer, frame_shift_s=0.01)
    assert (lengths.num_frames.tolist(), lengths.num_ctc_frames.tolist()) == ([100, 100], [8, 8])
