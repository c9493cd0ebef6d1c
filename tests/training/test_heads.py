"""Heads that need more than one layer train as exactly as plain CTC."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from asr.features.normalise import GlobalNorm
from asr.features.specaugment import SpecAugment
from asr.models.encoders.transformer import TransformerEncoder
from asr.models.heads.ctc import CtcHead
from asr.models.recogniser import Recogniser
from asr.training.module import TrainingModule
from tests.training import runs
from tests.training.tiny import NUM_FEATURES, TOKENIZER, tiny_module

HEADS = {
    "two layers": lambda: CtcHead(12, TOKENIZER.vocab_size, intermediate_layers=[1]),
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
