"""Any number of processes prepares the same data and continues where it was killed; corpora are joined into one."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem

import asr.data.preparation.cuts
import asr.data.preparation.prepare
from asr.data.features import LogMel
from asr.data.manifests.corpus import Corpus, Manifests
from asr.data.preparation.cuts import CheckedSplit
from asr.data.preparation.prepare import prepare
from asr.data.preparation.saved_corpus import Mixture, SavedCorpus
from tests.data.corpora import (
    PRECOMPUTED,
    RATE_HZ,
    SPEC,
    Killed,
    Pair,
    Recipe,
    contents,
    dropped,
    ids,
    noise,
    run,
    utterance,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("asr.data.preparation.saved_corpus.CHUNK_UTTERANCES", 2)
    monkeypatch.setattr("asr.data.preparation.cuts.CUTS_PER_JOB", 2)


def many(folder: Path, splits: dict[str, list[Pair]]) -> None:
    """Add utterances, among them one without audio, one too short, and one that only decoding finds bad."""
    splits["train"] += [utterance(folder, f"more-{i}", 0.5 + i / 10, text="ab " * (1 + i % 3)) for i in range(9)]
    splits["train"].append(utterance(folder, "short", 0.05))
    (folder / "more-4.wav").unlink()
    samples = noise(0.8)
    samples[500] = np.nan
    soundfile.write(folder / "more-3.wav", samples, RATE_HZ, subtype="FLOAT")


@pytest.mark.parametrize("spec", [SPEC, PRECOMPUTED], ids=["computed", "stored"])
def test_the_number_of_processes_changes_nothing(tmp_path, spec):
    corpus = Recipe(many)(tmp_path)
    found = []
    for num_jobs in (1, 2, 5):
        prepared = prepare(tmp_path / "data", "corpus", lambda _: corpus, spec, "spec", num_jobs=num_jobs)
        found.append(
            {path.relative_to(tmp_path): content for path, (_, content) in contents(tmp_path / "data").items()}
        )
        assert not list(tmp_path.rglob("*.chunks"))
        (tmp_path / "data").rename(tmp_path / f"data-{num_jobs}")
    assert found[0] == found[1] == found[2]
    assert prepared.splits["train"]["num_utterances"] == 10
    reasons = [line.split("\t")[1] for line in found[0][Path("data/corpus/spec/dropped.tsv")].decode().splitlines()]
    assert reasons == ["item", "more-4", "short", "more-3"]


def killed_in(monkeypatch, owner: object, name: str, calls: int) -> list[tuple]:
    """Let the n-th call of a function that handles chunks raise KeyboardInterrupt; return arguments of the calls."""
    real, seen = getattr(owner, name), []

    def call(*args):
        seen.append(args)
        if len(seen) == calls:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(owner, name, call)
    return seen


@pytest.mark.parametrize(
    ("spec", "work", "calls", "left"),
    [
        # chunks of 2 of the 12 utterances of train, the 2 of dev and the 1 of test: of 8, 4 were done
        (SPEC, (asr.data.preparation.cuts, "check_cuts"), 5, 4),
        # utterances, of which those of 2 chunks were done
        (PRECOMPUTED, (LogMel, "with_features"), 6, 15 - 4),
    ],
    ids=["audio is checked", "features are stored"],
)
def test_chunks_that_were_done_before_a_kill_are_not_done_again(tmp_path, monkeypatch, spec, work, calls, left):
    recipe = Recipe(lambda folder, splits: splits["train"].extend(utterance(folder, f"more-{i}") for i in range(9)))
    first = killed_in(monkeypatch, *work, calls)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, recipe, spec)
    assert len(first) == calls
    assert spec is PRECOMPUTED or not [*tmp_path.rglob("*.partial"), *tmp_path.rglob("cuts_*")]
    done = killed_in(monkeypatch, *work, 1000)
    prepared = run(tmp_path, recipe, spec)
    assert len(done) == left
    assert len(recipe.folders) == 1
    whole = run(tmp_path / "whole", Recipe(recipe.change), spec)
    assert ids(prepared, "train") == ids(whole, "train")
    assert (prepared.mean, prepared.splits) == (whole.mean, whole.splits)
    assert not list(tmp_path.rglob("*.chunks"))
    for split in ("train", "dev"):
        assert all(spec.features(cut).shape[0] == 100 for cut in prepared.cuts(split))


def test_chunks_that_were_made_of_other_manifests_are_checked_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Recipe(), replace(SPEC, tokenizer_trainer=Killed()))
    (tmp_path / "corpus" / "corpus.json").unlink()
    prepared = run(tmp_path, Recipe(lambda _, splits: setattr(splits["train"][0][1], "text", "xy")))
    assert [cut.supervisions[0].text for cut in prepared.cuts("train")] == ["xy", "ab", "ab"]


@pytest.mark.parametrize("spec", [SPEC, PRECOMPUTED], ids=["computed", "stored"])
def test_audio_that_was_repaired_after_a_kill_is_used(tmp_path, monkeypatch, spec):
    def lose(folder: Path, splits: dict[str, list[Pair]]) -> None:
        (folder / "train-1.wav").rename(folder / "lost")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    recipe = Recipe(lose)
    with monkeypatch.context() as patched:
        patched.setattr(CheckedSplit, "ctc_lengths", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, recipe, spec)
    (tmp_path / "corpus" / "lost").rename(tmp_path / "corpus" / "train-1.wav")
    prepared = run(tmp_path, recipe, spec)
    assert dropped(prepared) == {}
    assert ids(prepared, "train") == ["train-0", "train-1", "train-2"]


def test_recordings_out_of_order_and_without_utterances_are_kept_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("asr.data.preparation.saved_corpus.CHUNK_SOURCES", 3)

    def shuffle(folder: Path, splits: dict[str, list[Pair]]) -> None:
        splits["train"] = [utterance(folder, f"u{i}") for i in range(7)]

    def make(folder: Path) -> Corpus:
        corpus = Recipe(shuffle)(folder)
        train = corpus.splits["train"]
        segments = list(train.supervisions)[::-1]
        corpus.splits["train"] = type(train).of(
            train.recordings, [s for s in segments if s.id not in ("u0", "u1", "u2")]
        )
        return corpus

    prepared = run(tmp_path, make)
    assert ids(prepared, "train") == ["u3", "u4", "u5", "u6"]


WORD = AlignmentItem("x", 0.0, 0.5)


def audio(folder, name):
    soundfile.write(folder / f"{name}.wav", 0.1 * np.sin(np.arange(4000)), 8000)
    return folder / f"{name}.wav"


def mixture(folder, *corpora):
    """Return the mixture of corpora a, b …, each given as its splits: ids and files, also with a text of their own."""
    made = {}
    for name, splits in zip("ab", corpora, strict=False):
        manifests = {}
        for split, items in splits.items():
            recordings = [
                Recording.from_file(file, recording_id=item.partition(" ")[0]) for item, file in items.items()
            ]
            segments = [
                SupervisionSegment(each.id, each.id, 0.0, each.duration, text=item, alignment={"word": [WORD]})
                for each, item in zip(recordings, items, strict=True)
            ]
            manifests[split] = Manifests.of(recordings, segments)
        (folder / name).mkdir()
        made[name] = itertools.repeat(SavedCorpus.save(folder / name, Corpus(manifests))).__next__
    return Mixture({name: lambda _, saved=saved: saved() for name, saved in made.items()})


def test_what_two_dev_sets_share_is_taken_once(tmp_path):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    mixed = mixture(tmp_path, {"train": {"x": one}, "dev-a": {"y": two, "z": three}, "dev-b": {"y": two}})(
        tmp_path / "m"
    )
    assert sorted(mixed.splits["dev"].sources()) == ["a:y", "a:z"]
    assert [segment.id for segment in mixed.splits["dev"].supervisions] == ["a:y", "a:z"]
    (tmp_path / "m").mkdir()
    saved = SavedCorpus.save(tmp_path / "m", mixed)
    (chunk,) = saved.chunks("dev")
    assert [segment.alignment for segment in chunk.manifests().supervisions] == [{"word": [WORD]}] * 2


@pytest.mark.parametrize("item", ["y otherwise", "y"], ids=["another text", "another file"])
def test_one_id_for_two_items_is_refused(tmp_path, item):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    other = two if " " in item else three
    with pytest.raises(ValueError, match=r"data\.sources: a:y occurs twice in dev, and differs"):
        mixture(tmp_path, {"train": {"x": one}, "dev-a": {"y": two}, "dev-b": {item: other}})(tmp_path / "m")


def test_a_link_hides_no_file_that_is_held_out(tmp_path):
    one, two, three = (audio(tmp_path, name) for name in ("one", "two", "three"))
    (tmp_path / "link.wav").symlink_to(two)
    with pytest.raises(ValueError, match=r"two\.wav is in training of a and in the dev set of b"):
        mixture(
            tmp_path,
            {"train": {"x": two}, "dev": {"y": one}},
            {"train": {"x": three}, "dev": {"y": tmp_path / "link.wav"}},
        )(tmp_path / "m")
