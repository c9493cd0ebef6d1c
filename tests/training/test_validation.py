"""What a validation logs: error rates of every development set, and their mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asr.data.loading.loader import Batch
from asr.decoding.greedy import Hypothesis
from asr.training.module import TrainingModule
from tests.training.heads import HEADS, module_with
from tests.training.test_unreadable import unread
from tests.training.tiny import TOKENIZER, Unsized, batch_of, tiny_module, tiny_trainer
from werdict.errors import RunFailed


def spoken(*texts: str, first: int = 0) -> Batch:
    """Return a batch with these transcripts, whose utterances are numbered from ``first``."""
    ids = tuple(f"cut{first + i}" for i in range(len(texts)))
    return replace(batch_of(*[50] * len(texts)), texts=texts, ids=ids)


def hears(text: str) -> TrainingModule:
    """Return a module of two development sets that recognizes the same text in every utterance."""
    module = tiny_module()
    module.dev_names = ["a", "b"]
    heard = Hypothesis(TOKENIZER.encode(text), [0] * len(text), [0.0] * len(text), 0.0)
    module.decoder = lambda head, encodings, lengths: [[heard]] * len(lengths)
    return module


def validate(module: TrainingModule, *sets: list[Batch]) -> dict[str, float]:
    trainer = tiny_trainer(1)
    # a DataLoader would draw a random seed
    trainer.validate(module, [Unsized(batches) for batches in sets], verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def test_every_set_has_its_rates_and_their_mean_selects_the_checkpoint():
    sets = [spoken("abc", "abc b"), spoken("abc", first=2), unread("lost")], [unread("gone", "away"), spoken("b")]
    logged = {name: value for name, value in validate(hears("abc"), *sets).items() if not name.endswith("loss")}
    wanted = {"val/a/wer": 1 / 4, "val/a/cer": 2 / 11, "val/b/wer": 1.0, "val/b/cer": 2.0, "val/wer": 5 / 8}
    assert logged == pytest.approx(wanted)


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_of_a_set_is_per_token_without_dropout_and_draws_nothing(head):
    """A validation between updates changes no weight: it draws no random numbers, nor leaves anything behind."""
    module = module_with(head, dropout=0.2)
    module.dev_names = ["a", "b"]
    # three equal tokens need five frames; eleven input frames leave two
    impossible = batch_of(60, 11, seed=3)
    impossible.tokens[1], impossible.num_tokens[1] = 2, 3
    sets = [batch_of(60, 52, 44, seed=1), impossible], [batch_of(50, seed=2)]
    state, weights = torch.get_rng_state(), [p.clone() for p in module.parameters()]
    logged = validate(module, *sets)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, module.parameters(), weights))
    for name, batches in zip("ab", sets, strict=True):
        module.eval()
        inputs = [(one.features, one.num_frames, one.tokens, one.num_tokens) for one in batches]
        losses = [module.recognizer.losses(*each) for each in inputs]
        num_tokens = sum(int(one.num_tokens[found.feasible].sum()) for one, found in zip(batches, losses, strict=True))
        expected = {"loss": sum(found.total.sum() for found in losses)}
        expected |= {f"{part}_loss": sum(found.parts[part].sum() for found in losses) for part in losses[0].parts}
        wanted = {name: float(value) / num_tokens for name, value in expected.items()}
        found = {key: logged[f"val/{name}/{key}"] for key in wanted if len(wanted) > 2 or key == "loss"}
        assert found == pytest.approx({key: wanted[key] for key in found}, rel=1e-5, abs=1e-6)


def test_a_validation_forgets_the_one_before():
    module = hears("abc")
    assert validate(module, [spoken("abc")], [spoken("b")])["val/wer"] == 0.5
    module.decoder = hears("b").decoder
    assert validate(module, [spoken("abc")], [spoken("b")])["val/wer"] == 0.5
    assert [module.scores[name].wer for name in "ab"] == [1.0, 0.0]
    with pytest.raises(RunFailed, match="none of the 1 utterances of a could be read"):
        validate(module, [unread("lost")], [spoken("b")])


@pytest.mark.slow
def test_a_process_without_a_batch_of_its_own_does_not_stop_the_others(ranks):
    first, second = (rank.left["with_one_development_batch"] for rank in ranks)
    assert first == second
    assert {"val/wer", "val/dev/wer", "val/dev/cer", "val/dev/loss"} <= set(first)


def test_a_set_of_which_nothing_can_be_read_is_refused(capsys):
    with pytest.raises(RunFailed, match="none of the 3 utterances of b could be read"):
        validate(hears("abc"), [spoken("abc")], [unread("x", "y"), unread("z")])
    assert "left out x: missing audio" in capsys.readouterr().out
