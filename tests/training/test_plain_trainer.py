"""A plain Lightning trainer takes the module and the data as they are."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch

from asr.data.loading.loader import LoaderFactory
from asr.data.preparation.prepared import PreparedData
from asr.run.options import RunOptions
from asr.run.parts import build_data_parts, build_module
from asr.training.checkpoints import checkpoint_file, load_checkpoint
from asr.training.speech_data_module import SpeechDataModule
from tests.training.tiny import Metrics


def test_it_makes_the_updates_of_asr_train(small_run, tmp_path):
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(checkpoint_file(str(small_run.run_dir)))
    options = RunOptions.model_validate(checkpoint.config)
    prepared = PreparedData.load(small_run.folder / Path(checkpoint.data["folder"]))
    parts = build_data_parts(options)
    loaders = LoaderFactory(parts.features, prepared.tokenizer, parts.batch, parts.workers)
    module, metrics = build_module(options, parts, prepared), Metrics()
    trainer = pl.Trainer(
        max_steps=5,
        accelerator="cpu",
        gradient_clip_val=options.trainer.gradient_clip_val,
        callbacks=[metrics],
        default_root_dir=tmp_path,
        enable_progress_bar=False,
    )
    trainer.fit(module, SpeechDataModule(prepared, loaders, options.seed, parts.augmentation))
    lines = (line.split(",") for line in (small_run.run_dir / "metrics.csv").read_text().splitlines())
    losses = [float(value) for _, name, value, *_ in lines if name == "train/loss"]
    assert [seen["train/loss"] for seen in metrics.seen] == pytest.approx(losses[:5], rel=1e-6)
    assert "val/wer" in trainer.callback_metrics
