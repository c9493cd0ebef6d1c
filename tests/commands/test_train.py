"""asr-train end to end on a tiny corpus: what is printed, what is left, what is the same again."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

from asr.training.checkpoints import load_checkpoint
from tests.commands.conftest import TINY
from tests.commands.wandb_file import read_wandb
from tests.small_runs import TINY_MODEL
from tests.werdict.report.parsed_page import parse, table_of


def metrics_of(run_dir) -> list[tuple[int, str, str]]:
    with (run_dir / "metrics.csv").open() as file:
        rows = [(int(row["step"]), row["name"], row["value"]) for row in csv.DictReader(file)]
    timed = ("train/audio_s_per_s", "train/elapsed_s", "train/data_wait", "train/peak_memory_mb")
    return [row for row in rows if row[1] not in timed]


def test_it_ends_with_the_error_rate_and_where_everything_is(trained):
    headline = re.search(r"test  WER \d+\.\d\d % \[.*\] .*10 utterances", trained.printed)
    assert headline, trained.printed
    assert "synthetic speech" in trained.printed
    for line in ("report:", "hypotheses:", "checkpoint:", "wandb sync "):
        path = re.search(rf"{line} *(\S+)$", trained.printed, re.M)
        assert path, f"{line} is not said in:\n{trained.printed}"
        assert (trained.folder / path.group(1)).exists()


def test_the_run_folder_holds_what_it_should(trained):
    files = {str(file.relative_to(trained.run_dir)) for file in trained.run_dir.rglob("*")}
    for name in (
        *("config.yaml", "overrides.yaml", "metrics.csv", "checkpoints/best.ckpt", "checkpoints/last.ckpt"),
        *(f"decode/test.{name}" for name in ("hyp.txt", "wer.txt", "alignments.txt", "errors.tsv", "ctm")),
        *("report/report.html", "report/summary.json", "report/loss.png", "report/wer.png", "report/lr.png"),
    ):
        assert name in files
    assert yaml.safe_load((trained.run_dir / "overrides.yaml").read_text())[: len(TINY)] == list(TINY)
    assert yaml.safe_load((trained.run_dir / "config.yaml").read_text())["encoder"]["d_model"] == 48


def test_the_page_of_a_run_shows_how_it_learned_what_it_mistook_and_what_was_changed(trained):
    page = parse((trained.run_dir / "report" / "report.html").read_text(encoding="utf-8"))
    facts = dict(table_of(page, "This run"))
    assert (facts["recipe"], facts["seed"], facts["peak learning rate"]) == ("digits/transformer_ctc", "1", "0.0015")
    assert "12 of 12" in facts["updates"]
    assert "AdamW" in facts["optimizer"]
    assert page.all("details")[0].all("pre")[0].text.strip() == (trained.run_dir / "config.yaml").read_text().strip()
    shown = [image.attributes["alt"] for image in page.all("img")]
    names = ["Loss", "WER on dev", "Learning rate", "Gradient norm before clipping"]
    assert [alt.partition(":")[0] for alt in shown[:4]] == names
    assert [name.rpartition("-")[0] for name in shown[4:]] == ["digits-train"] * 2 + ["digits-dev"] * 2
    assert len(page.all("audio")) == 5
    assert ["encoder.d_model", "144", "48"] in table_of(page, "Differs from its recipe")


def test_the_summary_says_what_was_measured(trained):
    summary = json.loads((trained.run_dir / "report" / "summary.json").read_text())
    assert summary["test"]["test"]["num_utterances"] == 10
    assert summary["test"]["test"]["wer_low"] <= summary["test"]["test"]["wer"] <= summary["test"]["test"]["wer_high"]
    assert 0 < summary["test"]["test"]["real_time_factor"] < 100
    assert summary["num_parameters"] > 10_000
    assert summary["training"]["cpu_seconds"] > 0
    assert "synthetic" in summary["notes"][0]
    said = (trained.run_dir / "decode" / "test.wer.txt").read_text()
    assert f"note: decoded with best.ckpt of update {summary['checkpoint_update']}, weights: raw\n" in said
    assert (summary["checkpoint"], summary["weights"]) == ("best.ckpt", "raw")
    losses = [float(value) for _, name, value in metrics_of(trained.run_dir) if name == "train/loss"]
    assert (len(losses), losses[-1] < losses[0]) == (12, True)


def test_wandb_gets_numbers_config_samples_and_summary(trained):
    found = read_wandb(trained.run_dir)
    assert {"train/loss", "train/lr", "train/gradient_norm", "train/audio_s_per_s"} <= found.history
    assert {"val/dev/wer", "val/dev/cer", "val/dev/loss"} <= found.history & found.minima
    assert {"val/dev/samples/_type", "test/test/samples/_type"} <= found.history
    assert {"test/test/wer", "test/test/wer_lo", "test/test/wer_hi"} <= set(found.summary)
    assert {"test/test/substitutions", "num_parameters", "minutes"} <= set(found.summary)
    # a table of each set can be played
    files = [[entry.path for entry in one.manifest.contents] for one in found.artifacts]
    assert sum(any(path.endswith(".wav") for path in one) for one in files) == 2
    assert found.config["encoder"]["d_model"] == 48
    assert found.exit_codes == [0]


def test_one_checkpoint_is_enough_and_is_plain_data(trained):
    loaded = load_checkpoint(trained.run_dir / "checkpoints" / "best.ckpt")
    assert loaded.config["optimizer"]["_target_"] == "optim.AdamW"
    assert loaded.tokenizer["kind"] == "character"
    assert loaded.update in (6, 12)
    assert Path(loaded.data["folder"]).is_dir()
    summary = json.loads((trained.run_dir / "report" / "summary.json").read_text())
    assert loaded.data["fingerprint"] == summary["data"]


def test_the_same_command_gives_the_same_numbers_also_if_the_optimizers_health_is_logged(trained):
    trained.run("train", *TINY, "run_dir=again", "logger=csv", "callbacks.optimizer_health.every=5")
    health = [row for row in metrics_of(trained.folder / "again") if row[1].startswith("health/")]
    assert {row[0] for row in health} == {4, 9}
    for group in (0, 1):
        assert {f"health/{group}/{name}" for name in ("update_ratio", "effective_lr")} <= {row[1] for row in health}
    rest = [row for row in metrics_of(trained.folder / "again") if row not in health]
    assert rest == metrics_of(trained.run_dir)
    weights = [
        torch.load(trained.folder / name / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("first", "again")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_epochs_are_converted_to_updates(trained):
    kept = [word for word in TINY if "max_steps" not in word]
    words = (*kept, "run_dir=epochs", "logger=none", "trainer.max_epochs=2")
    printed = trained.run("train", *words)
    assert "update 6/" in printed
    updates = int(re.search(r"2 epochs are (\d+) updates", printed).group(1))
    assert 10 <= updates <= 30
    # 6 does not divide the budget: the last update is validated and kept all the same
    assert updates % 6
    assert load_checkpoint(trained.folder / "epochs" / "checkpoints" / "last.ckpt").update == updates
    assert max(int(update) for update in re.findall(rf"update (\d+)/{updates} .*dev/wer", printed)) == updates
    assert not (trained.folder / "epochs" / "metrics.csv").exists()
    assert "trainer.max_epochs=2" in trained.run("train", *words, "run_dir=both", "trainer.max_steps=20", code=2)


def test_a_run_folder_is_never_overwritten(trained):
    before = (trained.run_dir / "metrics.csv").read_bytes()
    said = trained.run("train", *TINY, "run_dir=first", code=2)
    assert "run_dir" in said
    assert "not empty" in said
    assert (trained.run_dir / "metrics.csv").read_bytes() == before


def test_a_failed_run_is_marked_as_failed(trained):
    """The learning rate is so large that the weights overflow."""
    said = trained.run("train", *TINY, "run_dir=failed", "optimizer.lr=1e30", "trainer.max_steps=80", code=77)
    assert "not finite; lower optimizer.lr" in said
    assert read_wandb(trained.folder / "failed").exit_codes == [1]


def test_a_run_lists_the_cuts_that_are_too_short_in_its_folder(programs, tmp_path):
    rows = ["audio\ttext\tsplit"]
    # of a second of audio a transformer leaves 24 frames
    for index, (text, split) in enumerate([("ab", "train"), ("ab" * 13, "train"), ("ab", "dev"), ("ba", "test")]):
        audio = np.random.default_rng(index).normal(size=16_000) * 0.1
        soundfile.write(tmp_path / f"{index}.wav", audio, 16_000)
        rows.append(f"{index}.wav\t{text}\t{split}")
    (tmp_path / "table.tsv").write_text("\n".join(rows))
    words = ("recipe=custom/transformer_ctc", "data.source=table.tsv", "run_dir=run", *TINY_MODEL)
    programs.run("train", *words, cwd=tmp_path)
    listed = (tmp_path / "run" / "too_short.tsv").read_text().splitlines()
    assert listed == ["split\titem\treason", "train\t1\ttoo short for its transcript: 24 frames, 26 needed"]


def test_find_batch_size_measures_proposes_and_leaves_without_a_run(trained, find_batch_size):
    def files() -> set:
        return {path for path in trained.folder.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    options = ("augment=speed_specaugment", "trainer.accumulate_grad_batches=3", "data.batch.num_buckets=2")
    printed = find_batch_size(trained.folder, *TINY, *options)
    assert files() == before
    assert re.search(r"seconds of audio.*fits.*peak MiB", printed)
    assert re.search(r"^ +\d+\.\d │ +yes │ +1 *$", printed, re.M)
    assert re.search(r"proposed: data\.batch\.max_duration_s=[\d.]+ \(now 30\)", printed)
