"""Heads that need more than one view or one layer train as exactly as plain CTC, and count tokens as it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from asr.data.seeding import seed_for
from asr.features.normalise import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.cr_ctc import CrCtcHead
from asr.models.heads.ctc import CtcHead
from asr.models.recogniser import Recogniser
from asr.training.module import TrainingModule
from tests.training import runs
from tests.training.tiny import (
    NUM_FEATURES,
    TOKENIZER,
    Metrics,
    batch_of,
    batches_loader,
    tiny_module,
    tiny_trainer,
)

HEADS = {
    "two views": lambda: CrCtcHead(12, TOKENIZER.vocab_size),
    "two layers": lambda: CtcHead(12, TOKENIZER.vocab_size, intermediate_layers=[1]),
    "two views of two layers": lambda: CrCtcHead(12, TOKENIZER.vocab_size, intermediate_layers=[1]),
}


def module_with(make_head: Callable[[], CtcHead], dropout: float) -> TrainingModule:
    module = tiny_module()
    torch.manual_seed(0)
    module.recogniser = Recogniser(
        TransformerEncoder(NUM_FEATURES, 12, 2, 2, 16, dropout=dropout, subsampling_channels=2),
        make_head(),
        GlobalNorm([0.0] * NUM_FEATURES, [1.0] * NUM_FEATURES),
        SpecAugment(max_feature_bins=3),
    )
    return module


@pytest.mark.parametrize("name", HEADS)
def test_a_training_that_goes_on_gives_the_same_weights(tmp_path, monkeypatch, name):
    monkeypatch.setattr(runs, "tiny_module", lambda: module_with(HEADS[name], dropout=0.2))
    whole = runs.run(tmp_path / "whole", max_steps=5).state_dict()
    runs.run(tmp_path / "parts", max_steps=3)
    torch.manual_seed(99)
    resumed = runs.run(tmp_path / "parts", max_steps=5).state_dict()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_an_utterance_counts_once_whatever_the_number_of_its_views():
    module, metrics = module_with(HEADS["two views"], dropout=0.0), Metrics()
    batches = [batch_of(60, 52, seed=1), batch_of(44, 11, seed=2)]
    # three equal tokens need five frames; eleven input frames leave two
    batches[1].tokens[1], batches[1].num_tokens[1] = 2, 3
    generators = [torch.Generator().manual_seed(seed_for("augment", batch.seed)) for batch in batches]
    with torch.no_grad():
        losses = [
            module.recogniser.losses(b.features, b.num_frames, b.tokens, b.num_tokens, generator)
            for b, generator in zip(batches, generators, strict=True)
        ]
    trainer = tiny_trainer(1, [metrics], accumulate_grad_batches=2)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    num_tokens = batches[0].num_tokens.sum() + batches[1].num_tokens[0]
    assert losses[1][1] == 0
    assert metrics.seen[-1]["train/loss"] == pytest.approx(float(torch.cat(losses).sum() / num_tokens), rel=1e-5)
    assert metrics.seen[-1]["train/utterances"] == 4
    assert metrics.seen[-1]["train/too_short"] == 1
