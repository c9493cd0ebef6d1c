"""Texts come from scores that are finite, or from none."""

import pytest
import torch

from asr.decoding.greedy import CtcGreedy
from asr.inference.decode import decode
from tests.training.tiny import TOKENIZER, batch_of, tiny_module
from werdict.errors import RunFailed


@pytest.mark.parametrize("weight", [3e38, float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["encoder", "head"])
def test_scores_that_are_not_finite_give_no_text(part, weight):
    module = tiny_module()
    for parameter in getattr(module.recognizer, part).parameters():
        torch.nn.init.constant_(parameter, weight)
    batch = batch_of(40, 20)
    encoded = module.recognizer.eval()(batch.features, batch.num_frames)
    with pytest.raises(RunFailed, match="the scores of the model are not finite: its weights are too large or damaged"):
        decode(module.recognizer.eval(), CtcGreedy(), TOKENIZER, batch, *encoded)
