"""Heads other than plain CTC train as exactly as it does, and count tokens as it does."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pytest
import torch

from asr.data.loading.sampling import seed_for
from tests.training import runs
from tests.training.heads import HEADS, module_with, share_of
from tests.training.runs import same
from tests.training.test_module import module_with_zipformer
from tests.training.tiny import Metrics, batch_of, batches_loader, tiny_trainer


@pytest.mark.parametrize("make", [*(partial(module_with, head, 0.2) for head in HEADS), module_with_zipformer])
def test_a_training_that_goes_on_gives_the_same_weights(tmp_path, monkeypatch, make):
    monkeypatch.setattr(runs, "tiny_module", make)
    whole = runs.run(tmp_path / "whole", max_steps=5).state_dict()
    runs.run(tmp_path / "parts", max_steps=3)
    torch.manual_seed(99)
    resumed = runs.run(tmp_path / "parts", max_steps=5).state_dict()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_an_utterance_counts_once_whatever_the_number_of_its_views():
    module, metrics = module_with("two views", dropout=0.0), Metrics()
    batches = [batch_of(60, 52, seed=1), batch_of(44, 11, seed=2)]
    # three equal tokens need five frames; eleven input frames leave two
    batches[1].tokens[1], batches[1].num_tokens[1] = 2, 3
    generators = [torch.Generator().manual_seed(seed_for("augment", batch.seed)) for batch in batches]
    with torch.no_grad():
        losses = [
            module.recognizer.losses(b.features, b.num_frames, b.tokens, b.num_tokens, generator).total
            for b, generator in zip(batches, generators, strict=True)
        ]
    trainer = tiny_trainer(1, [metrics], accumulate_grad_batches=2)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    num_tokens = batches[0].num_tokens.sum() + batches[1].num_tokens[0]
    assert losses[1][1] == 0
    assert metrics.seen[-1]["train/loss"] == pytest.approx(float(torch.cat(losses).sum() / num_tokens), rel=1e-5)
    assert metrics.seen[-1]["train/ctc_loss"] + 0.2 * metrics.seen[-1]["train/consistency_loss"] == pytest.approx(
        metrics.seen[-1]["train/loss"], rel=1e-5
    )
    assert metrics.seen[-1]["train/utterances"] == 4
    assert metrics.seen[-1]["train/too_short"] == 1


@pytest.mark.slow
def test_two_processes_make_the_updates_of_one_that_accumulates(ranks):
    one, other = (rank.left["with_two_views_of_two_layers"] for rank in ranks)
    module = module_with("two views of two layers", dropout=0.2)
    before = {name: value.clone() for name, value in module.recognizer.state_dict().items()}
    batches = list(chain.from_iterable(zip(share_of(0), share_of(1), strict=True)))
    trainer = tiny_trainer(len(batches) // 2, accumulate_grad_batches=2)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    alone = module.recognizer.state_dict()
    assert same(one, other)
    assert all((one[name] - value).abs().max() < 1e-5 for name, value in alone.items())
    assert max((alone[name] - value).abs().max() for name, value in before.items()) > 0.01
