"""Corpora of features without audio: what `prepare` keeps of them, what it drops, and what it refuses."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr.data.features import PrecomputedFeatures
from asr.data.loading.loader import SpeechDataset
from tests.data.corpora import SPEC, Recipe, contents, dropped, ids, run
from tests.data.feature_corpora import (
    FEATURES_SPEC,
    WIDTH,
    FeatureRecipe,
    Pair,
    file_of,
    matrix,
    stored_utterance,
)
from werdict.normalization import TextNormalizer


def test_features_without_audio_become_prepared_data_and_batches(tmp_path):
    prepared = run(tmp_path, FeatureRecipe(), FEATURES_SPEC)
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert prepared.splits["train"]["hours"] == round(3.0 / 3600, 4)
    assert prepared.tokenizer.pieces[2:] == ["a", "b"]
    assert dropped(prepared) == {}
    frames = np.concatenate([matrix(100, seed=7)] * 3).astype(np.float64)
    np.testing.assert_allclose(prepared.mean, frames.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(prepared.std, frames.std(axis=0), atol=1e-6)
    batch = SpeechDataset(FEATURES_SPEC.features, prepared.tokenizer)[(0, list(prepared.cuts("dev")))]
    assert batch.num_frames.tolist() == [100, 100]
    assert batch.audio_s == 2.0
    np.testing.assert_array_equal(batch.features[0], matrix(100, seed=5).astype(np.float32))


def test_a_second_call_does_no_work_and_another_spec_uses_the_manifests_again(tmp_path):
    recipe = FeatureRecipe()
    first = run(tmp_path, recipe, FEATURES_SPEC)
    before = contents(tmp_path)
    assert run(tmp_path, recipe, FEATURES_SPEC).mean == first.mean
    assert contents(tmp_path) == before
    other = run(tmp_path, recipe, replace(FEATURES_SPEC, text=TextNormalizer("upper")), "other")
    assert ids(other, "train") == ids(first, "train")
    assert recipe.calls == 1


def missing(pair: Pair) -> None:
    file_of(pair[0]).unlink()


def truncated(pair: Pair) -> None:
    np.save(file_of(pair[0]), matrix(90))


def not_a_number(pair: Pair) -> None:
    frames = matrix(100)
    frames[70, 2] = np.nan
    np.save(file_of(pair[0]), frames)


def other_shift(pair: Pair) -> None:
    np.save(file_of(pair[0]), matrix(50))
    pair[0].num_frames, pair[0].frame_shift = 50, 0.02


def objects(pair: Pair) -> None:
    np.save(file_of(pair[0]), np.full((100, WIDTH), None), allow_pickle=True)


def too_short(pair: Pair) -> None:
    pair[1].text = "ab" * 20


def other_width(pair: Pair) -> None:
    np.save(file_of(pair[0]), np.zeros((100, 2)))
    pair[0].num_features = 2


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (missing, "missing features: "),
        (truncated, "unreadable features: .*shape \\(90, 5\\)"),
        (other_width, "unreadable features: .*shape \\(100, 2\\)"),
        (not_a_number, "unreadable features: .*not finite"),
        (other_shift, "unreadable features: .*every 20 ms"),
        (objects, "unreadable features: .*allow_pickle=False"),
        (too_short, "too short for its transcript: 25 frames, 40 needed"),
    ],
)
def test_features_that_cannot_be_trained_on_are_dropped_with_the_reason(tmp_path, spoil, reason):
    def change(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["train"].append(stored_utterance(folder, "bad"))
        spoil(splits["train"][-1])

    prepared = run(tmp_path, FeatureRecipe(change), FEATURES_SPEC)
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]
    assert list(dropped(prepared)) == [("train", "bad")]
    assert re.match(reason, dropped(prepared)["train", "bad"])


def test_features_lost_after_preparing_are_skipped_and_named(tmp_path):
    prepared = run(tmp_path, FeatureRecipe(), FEATURES_SPEC)
    cuts = list(prepared.cuts("train"))
    file_of(cuts[1].features).unlink()
    batch = SpeechDataset(FEATURES_SPEC.features, prepared.tokenizer)[(0, cuts)]
    assert batch.ids == ("train-0", "train-2")
    assert [name for name, _ in batch.skipped] == ["train-1"]


@pytest.mark.parametrize(
    ("recipe", "features", "message"),
    [
        (FeatureRecipe(), SPEC.features, "features=precomputed data.num_features=5"),
        (Recipe(), PrecomputedFeatures(WIDTH), "choose features=log_mel"),
        (FeatureRecipe(), PrecomputedFeatures(80), "data.num_features=5"),
        (FeatureRecipe(), PrecomputedFeatures(WIDTH, 20.0), "every 20 ms"),
    ],
)
def test_features_that_cannot_be_had_are_refused_before_any_is_read(tmp_path, monkeypatch, recipe, features, message):
    monkeypatch.setattr("asr.data.preparation.cuts.check_cuts", lambda *_: pytest.fail("cuts were looked at"))
    with pytest.raises(ValueError, match=message):
        run(tmp_path, recipe, replace(SPEC, features=features))


def beyond_the_end(folder: Path, splits: dict[str, list[Pair]]) -> None:
    splits["dev"][0][1].duration = 1.6


def test_manifests_of_features_that_contradict_are_refused_before_they_are_kept(tmp_path):
    with pytest.raises(ValueError, match="dev-0: outside its recording"):
        run(tmp_path, FeatureRecipe(beyond_the_end), FEATURES_SPEC)
    assert list(tmp_path.rglob("*.json*")) == []
