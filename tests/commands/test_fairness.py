"""In a comparison all optimizers begin alike: the same seed gives the same weights, batches and augmentation."""

from __future__ import annotations

import itertools

import pytest
import torch

from asr.data.loading.loader import LoaderFactory
from asr.run.command_line import CONFIGS, choices
from asr.run.data import data_for_run
from asr.run.parts import build_data_parts, build_recognizer
from tests.commands.conftest import TINY
from tests.commands.test_resume import data
from tests.configs import composed

OPTIMIZERS = list(choices(CONFIGS, "optimizer"))


def beginning(trained, *words: str):
    """Return initial weights, and the first micro-batches as a training reads them."""
    options = composed(*TINY, f"data.dir={data(trained)}", "augment=speed_specaugment", *words).options
    prepared, parts = data_for_run(options, quiet=True), build_data_parts(options)
    loaders = LoaderFactory(parts.features, prepared.tokenizer, parts.batch, parts.workers)
    dataset, order = loaders.training_data(prepared.cuts("train"), options.seed, parts.augmentation)
    recognizer = build_recognizer(options, prepared.tokenizer.vocab_size, prepared.mean, prepared.std)
    planned = order.updates(epoch=0, start=0, rank=0, world_size=1, accumulate=1)
    return recognizer.state_dict(), [dataset[item] for item in itertools.islice(planned, 2)]


@pytest.fixture(scope="module")
def baseline(trained):
    return beginning(trained, "optimizer=adamw")


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adamw"])
def test_every_optimizer_begins_with_the_same_weights_and_batches(optimizer, trained, baseline):
    weights, batches = beginning(trained, f"optimizer={optimizer}")
    assert weights.keys() == baseline[0].keys()
    assert all(torch.equal(weights[name], baseline[0][name]) for name in weights)
    for batch, first in zip(batches, baseline[1], strict=True):
        assert (batch.ids, batch.seed) == (first.ids, first.seed)
        assert torch.equal(batch.features, first.features)


def test_another_seed_begins_otherwise(trained, baseline):
    weights, batches = beginning(trained, "seed=2")
    assert not all(torch.equal(weights[name], baseline[0][name]) for name in weights)
    assert batches[0].ids != baseline[1][0].ids
