"""What recipe custom chooses by the corpus, and that what is typed wins."""

import json

import numpy as np
import pytest
import soundfile
from lhotse import FeatureSet, SupervisionSet
from omegaconf import OmegaConf

from asr.data.preparation.saved_corpus import Budget, Choice, CorpusFacts
from asr.recipes.custom.choose import choose_custom
from asr.run.choices import corpus_choices, with_choices
from tests.commands.conftest import Workplace
from tests.configs import composed
from tests.data.feature_corpora import WIDTH, stored_utterance
from tests.small_runs import TINY_MODEL
from werdict.files import flatten

OWN = Budget(updates=3000, batch_s=20.0)


def chosen(hours, rate_hz=16_000, num_speakers=50, fast_characters_hz=8.0):
    facts = CorpusFacts(hours, 100, num_speakers, rate_hz, 13 if rate_hz is None else None, fast_characters_hz)
    found = list(choose_custom(facts, OWN))
    advice = [one for one in found if isinstance(one, str)]
    return {one.key: one.value for one in found if isinstance(one, Choice)}, advice


@pytest.mark.parametrize(
    ("hours", "options"),
    [
        (0.6, {}),
        (1.0, {}),
        (1.28, {"trainer.max_steps": 3800}),
        (2.0, {"trainer.max_steps": 4000}),
        (4.0, {"data.batch.max_duration_s": 40, "trainer.max_steps": 4000}),
        (10.0, {"data.batch.max_duration_s": 100, "trainer.max_steps": 4000}),
        (40.0, {"data.batch.max_duration_s": 100, "trainer.max_steps": 16_000}),
        (5000.0, {"data.batch.max_duration_s": 100, "trainer.max_steps": 30_000}),
    ],
)
def test_the_budget_follows_the_hours(hours, options):
    assert chosen(hours) == (options, [])


@pytest.mark.parametrize(("rate_hz", "rates"), [(8000, [8000]), (6000, [8000]), (11_025, [])])
def test_the_rate_follows_the_audio(rate_hz, rates):
    assert list(chosen(1.0, rate_hz)[0].values()) == rates


def test_features_without_audio_are_taken_as_they_are():
    assert chosen(1.0, rate_hz=None)[0] == {
        "features": "precomputed",
        "data.num_features": 13,
        "augment.audio": None,
        "augment.features.max_feature_bins": 3,
    }


@pytest.mark.parametrize(("fast_characters_hz", "factors"), [(13.9, []), (14.1, [2]), (30.0, [2])])
def test_the_rate_of_encodings_follows_that_of_characters(fast_characters_hz, factors):
    assert list(chosen(1.0, fast_characters_hz=fast_characters_hz)[0].values()) == factors


def test_few_minutes_and_few_speakers_are_said():
    minutes, speakers = chosen(0.25, num_speakers=2)[1]
    assert "15 minutes of training audio are few" in minutes
    assert "2 speakers" in speakers
    assert chosen(1.0, num_speakers=0)[1] == []


@pytest.fixture
def place(tmp_path):
    rows = ["audio\ttext\tspeaker"]
    for number in range(30):
        soundfile.write(tmp_path / f"{number}.wav", np.random.default_rng(number).normal(size=8000) * 0.1, 8000)
        rows.append(f"{number}.wav\tab ba\ts{number % 15}")
    (tmp_path / "own.tsv").write_text("\n".join(rows) + "\n")
    return Workplace(tmp_path)


def test_choices_are_said_and_recorded_and_lose_against_what_is_typed(place):
    words = ("recipe=custom/transformer_ctc", "data.source=own.tsv", "data.transcripts_lm=0", *TINY_MODEL)
    printed = place.run("train", *words, "run_dir=a")
    assert "chosen: data.sampling_rate_hz=8000  (no audio has more)" in printed
    config = OmegaConf.load(place.folder / "a" / "config.yaml")
    assert config.data.sampling_rate_hz == config.features.sampling_rate_hz == 8000
    for option in ("data.sampling_rate_hz=16000", "data.by_corpus=false"):
        assert "chosen" not in place.run("prepare", *words[:2], option)
    assert "chosen" in place.run("prepare", *words[:2])
    # weights to start from know one rate
    start = place.run("train", *words, "run_dir=b", "data.sampling_rate_hz=16000") and place.folder / "b"
    assert "chosen: data" not in place.run("train", *words, "run_dir=c", f"init={start}")


def test_tables_with_columns_of_their_own_and_two_test_sets_train_by_one_command(place):
    for name, numbers in {"train": range(20), "val": (20, 21), "other": (22, 23), "more": (24, 25)}.items():
        rows = ["my_path,my_text", *(f"{number}.wav,ab" for number in numbers)]
        (place.folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    words = (
        "data.source={train: train.csv, dev: val.csv, test: [other.csv, more.csv]}",
        "data.columns={audio: my_path, text: my_text}",
        "data.transcripts_lm=0",
    )
    place.run("train", "recipe=custom/transformer_ctc", *words, *TINY_MODEL, "run_dir=run")
    summary = json.loads((place.folder / "run" / "report" / "summary.json").read_text())
    assert sorted(summary["test"]) == ["test-more", "test-other"]
    place.run("evaluate", "run=run", "manifest=other.csv")


def test_a_folder_of_features_alone_needs_no_other_option(tmp_path):
    (tmp_path / "own").mkdir()
    pairs = [stored_utterance(tmp_path, f"{number:02}", text="ab ba") for number in range(30)]
    FeatureSet.from_features(features for features, _ in pairs).to_file(tmp_path / "own" / "features.jsonl.gz")
    SupervisionSet.from_segments(segment for _, segment in pairs).to_file(tmp_path / "own" / "supervisions.jsonl.gz")
    words = ("recipe=custom/transformer_ctc", "data.source=own", "data.transcripts_lm=0", *TINY_MODEL)
    printed = Workplace(tmp_path).run("train", *words, "decode_test=false", "run_dir=a")
    for chosen in ("features=precomputed", f"data.num_features={WIDTH}", "augment.audio=null"):
        assert f"chosen: {chosen}  (" in printed
    assert OmegaConf.load(tmp_path / "a" / "config.yaml").features.num_features == WIDTH


def changed_by_corpus(place, monkeypatch, *words):
    """Return the keys that are chosen for the corpus of ``place``."""
    monkeypatch.chdir(place.folder)
    before = composed("data.source=own.tsv", "data.sampling_rate_hz=8000", *words)
    after = with_choices(before, corpus_choices(before))
    return {key for key, _ in flatten(before.unresolved()).items() ^ flatten(after.unresolved()).items()}


@pytest.mark.parametrize(
    ("word", "num_chosen"), [("seed=1", 2), ("data.batch.max_duration_s=9", 0), ("trainer.max_steps=7", 0)]
)
def test_who_types_one_part_of_the_budget_types_all_of_it(place, monkeypatch, word, num_chosen):
    for name in ("SMALL_HOURS", "SHORT_HOURS"):
        monkeypatch.setattr(f"asr.recipes.custom.choose.{name}", 0.001)
    assert len(changed_by_corpus(place, monkeypatch, "recipe=custom/transformer_ctc", word)) == num_chosen


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("recipe=custom/transformer_ctc",), {"encoder.subsampling_factor"}),
        (("recipe=custom/transformer_ctc", "encoder=conformer_xs"), {"encoder.subsampling_factor"}),
        (("recipe=custom/transformer_ctc", "tokenizer=bpe"), set()),
        (("recipe=custom/transformer_ctc", "init.path=start"), set()),
        (("recipe=custom/zipformer_ctc",), set()),
    ],
)
def test_the_rate_of_encodings_is_chosen_for_characters_and_encoders_that_have_one(place, monkeypatch, words, keys):
    monkeypatch.setattr("asr.recipes.custom.choose.FAST_CHARACTERS_HZ", 1.0)
    assert changed_by_corpus(place, monkeypatch, *words) == keys


def test_a_recipe_that_chooses_nothing_says_so(place):
    printed = place.run("prepare", "recipe=digits/transformer_ctc", "data.by_corpus=true", code=2)
    assert "data.by_corpus: " in printed
