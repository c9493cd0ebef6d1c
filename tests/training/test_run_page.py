"""The page of a run: what it draws, what it plays, and that it loads and breaks nothing."""

from __future__ import annotations

from urllib.parse import unquote

import numpy as np
import pytest
from lhotse.testing.dummies import dummy_cut
from lhotse.utils import fastcopy
from matplotlib.figure import Figure

from asr.training.run_page import Example, RunPage, plot_run_curves, token_probs, write_run_page
from tests.training.heads import HEADS, module_with
from tests.training.tiny import batch_of
from tests.werdict.report.parsed_page import has_own_script_alone, parse, table_of
from werdict.scoring import Utterance, score

EVIL = "<script>alert(1)</script>"
LOSSES = {"train": (45, 2, 0.3), "dev": (30, 2.5, 0.9)}
ROWS = {"train/loss": (45.0, 2.0, 0.3), "train/lr": (0.1, 0.2, 0.1), "val/dev/loss": (30.0, 2.5, 0.9)}


@pytest.fixture
def written(tmp_path):
    rows = [f"{step},{name},{value}\n" for name, values in ROWS.items() for step, value in enumerate(values)]
    (tmp_path / "metrics.csv").write_text("step,name,value\n" + "".join(rows))
    (tmp_path / "report").mkdir()
    (tmp_path / "config.yaml").write_text(f"seed: 1\nnote: {EVIL}\n")
    said = [Utterance("u1", "one two", "one too"), Utterance("u2", f"two {EVIL}", "too"), Utterance("u3", "a", "a")]
    cut = fastcopy(dummy_cut(0, with_data=True), id="u1")  # of u2 there is no audio
    features = [Example("a", EVIL, np.random.default_rng(0).normal(size=(8, 50)), 0.01)]
    alignments = [Example("b", "ab", np.eye(2), 0.04, ("\u2581a", "b"))]
    given = {"test": score(said)}, {"test": [cut]}, features, alignments, {"optimizer.lr": ("0.002", "0.01")}
    write_run_page(RunPage(tmp_path, ["test: 50 %"], {"encoder": "Conformer"}, ["synthetic"], *given))
    return (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_the_page_has_curves_pictures_errors_audio_and_the_difference_from_the_recipe(written):
    found = parse(written)
    assert [image.attributes["alt"] for image in found.all("img")] == [
        "Loss: train, dev; nats per token against updates",
        "Learning rate: train; updates",
        "a: feature 0, feature 1, feature 2, feature 3, feature 4 and 3 more; feature against seconds",
        "b: \u2581a, b; seconds",
    ]
    assert all(image.attributes["src"].startswith("data:image/svg") for image in found.all("img"))
    assert table_of(found, "This run")[1] == ["encoder", "Conformer"]
    assert found.all("details")[0].all("pre")[0].text.startswith("seed: 1")
    assert table_of(found, "Most frequent errors on test")[1] == ["two", "too", "2", "substitution"]
    assert table_of(found, "Differs from its recipe")[1] == ["optimizer.lr", "0.002", "0.01"]
    (sound,) = found.all("audio")
    assert sound.attributes["src"].startswith("data:audio/flac;base64,")
    assert [one.text.split(":")[0] for one in found.all("figcaption")[-2:]] == ["u2", "u1"]


def test_the_numbers_behind_the_pictures_are_there(written):
    texts = {
        link.attributes["download"]: unquote(link.attributes["href"].partition(",")[2])
        for link in parse(written).all("a")
    }
    rows = [f"{name},{step},{value:g}\n" for name, values in LOSSES.items() for step, value in enumerate(values)]
    assert texts["loss.csv"] == "curve,updates,nats per token\n" + "".join(rows)
    assert texts["tokens_0.csv"] == "starts at s,0,0.04\n\u2581a,1,0\nb,0,1\n"
    assert len(texts["features_0.csv"].splitlines()) == 9


def test_loss_shows_training_and_dev_on_a_logarithmic_axis(tmp_path, monkeypatch):
    losses = {"train/loss": (45.0, 2.0, 0.3), "val/dev/loss": (30.0, 2.5, 0.9), "val/dev/ctc_loss": (9.0, 9.0, 9.0)}
    rows = [f"{step},{name},{value}\n" for name, values in losses.items() for step, value in enumerate(values)]
    (tmp_path / "metrics.csv").write_text("step,name,value\n" + "".join(rows))
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    (plot,) = plot_run_curves(tmp_path / "metrics.csv", "WER")
    (axes,) = figures[0].axes
    assert (plot.name, plot.png[1:4], axes.get_yscale()) == ("loss", b"PNG", "log")
    assert [tuple(line.get_ydata()) for line in axes.lines] == [losses["train/loss"], losses["val/dev/loss"]]


def test_the_page_loads_nothing_and_texts_of_others_stay_text(written):
    assert has_own_script_alone(written)
    assert "://" not in written.replace("http%3A//", "").replace("https%3A//", "")
    (policy,) = [one for one in parse(written).all("meta") if "http-equiv" in one.attributes]
    assert policy.attributes["content"].startswith("default-src 'none'")


@pytest.mark.parametrize("head", HEADS)
def test_every_head_says_how_probable_tokens_are_over_time(head):
    recognizer, batch = module_with(head, dropout=0.2).recognizer.eval(), batch_of(60, 52)
    first, second = token_probs(recognizer, batch)
    lengths = recognizer(batch.features, batch.num_frames)[1].tolist()
    assert [tuple(first.shape), tuple(second.shape)] == [(1, lengths[0]), (2, lengths[1])]
    assert 0 <= second.min() < second.max() <= 1
