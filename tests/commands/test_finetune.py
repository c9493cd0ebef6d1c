"""Runs on a pretrained encoder: resumed, on two processes, decoded, and refused, as users meet them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import soundfile
import torch

from tests.commands.test_resume import last
from tests.models.pretrained import LETTERS, MODELS, save_ctc_model, save_model
from tests.small_runs import SmallRun
from tests.training.runs import same
from tests.werdict.report.parsed_page import parse, table_of

pytest.importorskip("transformers")
pytest.importorskip("peft")

DATA = (*(f"data.prepare.num_{split}" for split in ("train=24", "dev=4", "test=4")), "data.workers.num_workers=0")
RUN = ("tokenizer=char", "logger=csv", "torch_threads=1", "trainer.max_steps=6", "trainer.val_check_interval=3")
MODEL = (
    *("encoder=pretrained", "encoder.model=model", "encoder.layers=weighted", "encoder.freeze_updates=2"),
    *("encoder.train=adapters", "encoder.lora.dropout=0.1", "encoder.masks.time_share=0.3"),
)
WORDS = (*DATA, *RUN, *MODEL, "data.batch.max_duration_s=8")


@pytest.fixture(scope="module")
def run(small_run) -> SmallRun:
    """A run that accumulates two micro-batches, with dropout and masks."""
    save_model(small_run.folder / "model")
    ended = small_run.run("train", *WORDS, "trainer.accumulate_grad_batches=2", "run_dir=adapted", timeout_s=900)
    (small_run.folder / "adapted.log").write_text(ended.printed)
    return SmallRun(small_run.programs, small_run.folder, small_run.folder / "adapted", small_run.audio)


def test_a_run_that_stopped_is_resumed_bit_for_bit(run):
    folder = run.interrupted(run.folder / "stopped")
    assert "resuming from update 3" in run.run("train", "resume=stopped", timeout_s=900).printed
    first, second = last(run.run_dir), last(folder)
    for part in ("state_dict", "averages", "optimizer_states"):
        assert same(first[part], second[part]), part


def test_the_page_says_what_of_the_model_was_trained_and_for_how_long_as_the_screen_does(run):
    page = parse((run.run_dir / "report" / "report.html").read_text())
    facts = dict(table_of(page, "This run")[1:])
    assert facts["trained of it"].startswith("adapters, r 8")
    own, all_of_it = (int(number.replace(",", "")) for number in re.findall(r"[\d,]{3,}", facts["encoder"]))
    assert 0 < own < all_of_it
    assert "trained of" not in facts["head"]
    assert "trained of" in facts["parameters"]
    minutes = facts["time"].partition(" minutes")[0]
    assert f"trained in {minutes} minutes" in (run.folder / "adapted.log").read_text()


def test_two_processes_train_adapters_as_one_does(run):
    run.run("train", *WORDS, "trainer.devices=2", "run_dir=ranks", timeout_s=900)
    alone, ranks = last(run.run_dir)["state_dict"], last(run.folder / "ranks")["state_dict"]
    assert alone.keys() == ranks.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(ranks[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_holds_no_weights_of_the_base_and_no_update_before_it_may(run):
    state = last(run.run_dir)
    own = [name for name in state["state_dict"] if name.startswith("recognizer.encoder.")]
    assert len(own) == 1 + 3 * 2 * 2  # weights of layers, and two matrices of two projections of three layers
    assert all("lora" in name or name.endswith("layer_logits") for name in own)
    assert state["averages"]["sum"].keys() == {name.removeprefix("recognizer.") for name in own} | {
        "head.project.weight",
        "head.project.bias",
    }
    steps = {int(float(entry["step"])) for entry in state["optimizer_states"][0]["state"].values() if "step" in entry}
    assert steps <= {4, 6}  # without the first two, adapters have made four


def test_a_checkpoint_decodes_as_its_run_did_and_never_with_another_base(run):
    run.run("evaluate", "run=adapted", "output_dir=again", "num_workers=0")
    texts = [(run.folder / folder / "test.hyp.txt").read_text() for folder in ("again", "adapted/decode")]
    assert texts[0] == texts[1]
    model = run.folder / "model"
    kept = shutil.copytree(model, run.folder / "kept")
    try:
        save_model(model, layer_norm_eps=1e-6, intermediate_size=20)
        ended = run.run("evaluate", "run=adapted", "output_dir=other", "num_workers=0", code=2)
        assert "SHA-256" in ended.printed
    finally:
        shutil.rmtree(model)
        kept.rename(model)


def test_batch_sizes_are_measured_with_all_that_is_trained_after_the_first_updates(run, find_batch_size):
    assert "data.batch.max_duration_s" in find_batch_size(run.folder, *WORDS)


def test_the_model_and_its_licence_are_in_the_record_of_the_run(run):
    summary = json.loads((run.run_dir / "report" / "summary.json").read_text())
    assert summary["pretrained"] == {
        "model": "model",
        "license": "not named",
        "revision": "",
        "sha256": last(run.run_dir)["werdict"]["config"]["encoder"]["source"]["sha256"],
    }


def test_a_ctc_model_of_transformers_is_continued_with_its_head_and_tokenizer(small_run):
    model = save_ctc_model(small_run.folder / "ctc")
    words = (*DATA, *RUN, "encoder=pretrained", "encoder.model=ctc", "init=ctc", "init.keep_tokenizer=true")
    unmoved = ("optimizer.lr=1e-30", "trainer.max_steps=1", "trainer.val_check_interval=1", "data.text.case=upper")
    texts = ("data.prepare.num_train=4",)
    ended = small_run.run("train", *words, *unmoved, *texts, "run_dir=continued", timeout_s=900, code=2)
    assert "tokenizer does not know" in ended.printed  # some letters of digits
    kept = tuple(word for word in words if not word.startswith("init.keep"))
    ended = small_run.run("train", *kept, *unmoved, *texts, "run_dir=continued", timeout_s=900)
    assert "0 of 2 tensors taken, 2 new, with 7 of 18 tokens" in ended.printed  # the others are the encoder's own
    state = last(small_run.folder / "continued")
    head = state["state_dict"]["recognizer.head.project.weight"]
    pieces = state["werdict"]["tokenizer"]["pieces"]
    for number, letter in enumerate(LETTERS):
        torch.testing.assert_close(head[pieces.index(letter)], model.lm_head.weight[5 + number].detach())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("wav2vec2, group norm", "huggingface"),
        ("hubert, layer norm", "huggingface"),
        ("wavlm, layer norm", "huggingface"),
        ("data2vec", "huggingface"),
        ("w2v-bert", "safetensors"),
        ("whisper", "safetensors"),
    ],
)
def test_each_family_trains_resumes_decodes_and_exports(small_run, name, format_name):
    run_dir = f"{name.partition(',')[0]}-run"
    save_model(small_run.folder / f"{run_dir}-model", name)
    model = ("encoder=pretrained", f"encoder.model={run_dir}-model", "encoder.masks.time_share=0.3")
    words = (*DATA, *RUN, *model, "trainer.max_steps=4", "trainer.val_check_interval=2", f"run_dir={run_dir}")
    small_run.run("train", *words, timeout_s=900)
    folder = small_run.folder / run_dir
    state, texts = last(folder)["state_dict"], (folder / "decode" / "test.hyp.txt").read_text()
    newest = (folder / "checkpoints" / "last.ckpt").resolve()
    for checkpoint in [path for path in (folder / "checkpoints").iterdir() if path.resolve() == newest]:
        checkpoint.unlink()
    small_run.run("train", f"resume={run_dir}", timeout_s=900)
    assert same(state, last(folder)["state_dict"])
    small_run.run("evaluate", f"run={run_dir}", f"output_dir={run_dir}-again", "num_workers=0")
    assert (small_run.folder / f"{run_dir}-again" / "test.hyp.txt").read_text() == texts
    output = f"{run_dir}-exported"
    small_run.run("export", f"run={run_dir}", f"output={output}", f"format={format_name}")
    assert (small_run.folder / output / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("encoder.model=nobody/nothing",), "encoder.model"),
        (("encoder.lora.target_modules=[unheard]",), "target_modules"),
        (("features=log_mel",), "features=waveform"),
        (("trainer.compile=true",), "trainer.compile"),
        (("encoder.model=wavlm",), "no gradient"),
        (("encoder.model=another", "init=adapted"), "init"),
    ],
)
def test_what_cannot_work_is_refused_before_data_are_prepared(run, words, named):
    if not (run.folder / "wavlm").exists():
        save_model(run.folder / "wavlm", "wavlm, group norm")
        save_model(run.folder / "another", layer_norm_eps=1e-6, intermediate_size=20)
    here = (f"data.dir={run.folder}/none", "run_dir=refused")
    ended = run.run("train", *WORDS, *words, *here, environment={"HF_HUB_OFFLINE": "1"}, code=2)
    assert named in ended.printed
    assert not (run.folder / "none").exists()
    assert not (run.folder / "refused").exists()


@pytest.fixture(scope="module")
def moved(run) -> Path:
    """A copy of the run and its model, as sent to a colleague; where it was trained, the model is gone."""
    folder = run.folder.parent / "colleague"
    shutil.copytree(run.run_dir, folder / "adapted", symlinks=True)
    shutil.copytree(run.folder / "model", folder / "base")
    path = folder / "adapted" / "checkpoints" / "best.ckpt"
    state = torch.load(path, weights_only=True)
    state["werdict"]["config"]["encoder"] |= {"model": "/gone", "model_folder": "/gone"}
    path.unlink()
    torch.save(state, path)
    return folder


def test_a_run_finds_its_base_model_from_another_folder(run, tmp_path):
    run.programs.run("evaluate", f"run={run.run_dir}", "output_dir=again", "num_workers=0", cwd=tmp_path)


def test_a_run_that_was_sent_to_a_colleague_decodes_where_its_base_model_is_now(run, moved):
    ended = run.programs.run("evaluate", "adapted", "num_workers=0", cwd=moved, code=2)
    assert "encoder.model=PATH" in ended.printed
    for command, *words in (
        ("evaluate", "run=adapted", "output_dir=again", "num_workers=0"),
        ("export", "run=adapted", "output=exported", "format=safetensors"),
    ):
        run.programs.run(command, *words, "encoder.model=base", cwd=moved)
    texts = [path.read_text() for path in (moved / "again" / "test.hyp.txt", run.run_dir / "decode" / "test.hyp.txt")]
    assert texts[0] == texts[1]
    save_model(moved / "other", layer_norm_eps=1e-6, intermediate_size=20)
    ended = run.programs.run("evaluate", "run=adapted", "encoder.model=other", "num_workers=0", cwd=moved, code=2)
    assert "SHA-256" in ended.printed
    ended = run.programs.run("evaluate", "run=adapted", "encoder.model=nowhere", "num_workers=0", cwd=moved, code=2)
    assert "encoder.model" in ended.printed


def test_a_run_is_resumed_with_its_base_model_elsewhere(run, tmp_path):
    shutil.copytree(run.run_dir, tmp_path / "stopped", symlinks=True)
    base = shutil.copytree(run.folder / "model", tmp_path / "base")
    config = (tmp_path / "stopped" / "config.yaml").read_text()
    assert f"model_folder: {run.folder / 'model'}" in config
    (tmp_path / "stopped" / "config.yaml").write_text(config.replace(f"{run.folder / 'model'}\n", "/gone\n"))
    words = (f"resume={tmp_path}/stopped", "trainer.max_steps=7", "allow_changes=true")
    run.programs.run("train", *words, f"data.dir={run.data_dir}", cwd=tmp_path, code=2)
    run.programs.run("train", *words, f"data.dir={run.data_dir}", "encoder.model=base", cwd=tmp_path)
    assert f"model_folder: {base}" in (tmp_path / "stopped" / "config.yaml").read_text()


def test_adapters_and_their_base_become_one_whole_file(run, moved):
    run.programs.run("convert", "run=adapted", "output=whole.ckpt", "+encoder.model=base", cwd=moved)
    (moved / "alone").mkdir()
    shutil.move(moved / "whole.ckpt", moved / "alone")
    words = ("run=whole.ckpt", "output_dir=again", "num_workers=0")
    run.programs.run("evaluate", *words, cwd=moved / "alone")
    texts = [path / "test.hyp.txt" for path in (moved / "alone" / "again", run.run_dir / "decode")]
    assert texts[0].read_text() == texts[1].read_text()
    ended = run.programs.run("convert", "run=whole.ckpt", "output=again.ckpt", cwd=moved / "alone", code=2)
    assert "holds all weights already" in ended.printed


TABLE = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8").partition("| family |")[2]
# targets of adapters by the model types of the documented families
FAMILIES = {
    family: re.search(r"`\[(.*?)\]`", row[3])[1] if "[" in row[3] else "q_proj,v_proj"  # type: ignore[index]
    for row in (line.split("|") for line in TABLE.partition("\n\n")[0].splitlines()[2:])
    for family in re.findall(r"`([\w-]+)`", row[1])
}
BY_TYPE = {kind: name for name, (kind, _) in MODELS.items()}


@pytest.fixture(scope="module")
def table(small_run) -> Path:
    """A table of recordings, as the recipe takes it."""
    path = small_run.folder / "my.tsv"
    noise = 0.1 * torch.randn(12, 16_000, generator=torch.Generator().manual_seed(1)).numpy()
    rows = ["audio\ttext\tsplit"]
    for number, samples in enumerate(noise):
        soundfile.write(small_run.folder / f"{number}.wav", samples, 16_000)
        rows.append(f"{number}.wav\t{['yes', 'no'][number % 2]}\t{'train' if number < 8 else 'dev'}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("train", ["all", "adapters"])
def test_each_documented_family_is_run_by_its_recipe_as_documented(small_run, table, family, train):
    model = small_run.folder / f"family-{family}"
    if not model.exists():
        save_model(model, BY_TYPE[family])
    given = ("optimizer.lr=1e-3", f"encoder.lora.target_modules=[{FAMILIES[family]}]") if train == "adapters" else ()
    short = ("trainer=cpu", "trainer.max_steps=2", "trainer.val_check_interval=2", "data.workers.num_workers=0")
    words = (f"data.source={table}", f"encoder.model={model}", f"encoder.train={train}", *given)
    here = ("logger=csv", "torch_threads=1", f"data.dir={small_run.folder}/tuned", f"run_dir={family}-{train}")
    small_run.run("train", "recipe=finetune/ctc", *words, *short, *here, timeout_s=900)


@pytest.mark.parametrize("key", ["time_share", "channel_share"])
def test_masks_that_are_given_are_refused_where_nothing_can_be_masked(small_run, key):
    if not (small_run.folder / "family-sew").exists():
        save_model(small_run.folder / "family-sew", "sew")
    words = (*DATA, *RUN, "encoder=pretrained", "encoder.model=family-sew", f"encoder.masks.{key}=0.2")
    ended = small_run.run("train", *words, "encoder.masks.time_width=5", "run_dir=masked", code=2)
    assert "masks" in ended.printed
