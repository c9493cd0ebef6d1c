"""What an update is: nats per token whatever the accumulation; what a validation logs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

import asr
from asr.data.loading.loader import Batch
from asr.decoding.greedy import Hypothesis
from asr.models.encoders.zapformer.encoder import ZapformerEncoder
from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.tracking.metrics_csv import MetricsCsv
from asr.training.callbacks.checkpoints import CheckpointCallback, Preempted, Preemption
from asr.training.module import TrainingModule
from optim import Eden
from tests.models.zipformer.sizes import TINY
from tests.small_runs import TINY as SMALL
from tests.training import runs
from tests.training.heads import HEADS, module_with, share_of
from tests.training.runs import same
from tests.training.test_checkpoint_callback import Signalled
from tests.training.test_nonfinite_guard import unread
from tests.training.tiny import (
    NUM_FEATURES,
    TOKENIZER,
    Metrics,
    Unsized,
    batch_of,
    batches_loader,
    sgd,
    tiny_module,
    tiny_trainer,
    trained,
)
from werdict.errors import RunFailed


def half(batch: Batch, rows: slice) -> Batch:
    tensors = ("features", "num_frames", "tokens", "num_tokens", "ids", "texts", "speakers")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in tensors}, audio_s=batch.audio_s / 2)


def train(
    batches: list[Batch], accumulate: int = 1, clip: float | None = None, lr: float = 0.05, **options: Any
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Train in double precision with SGD: Adam turns the rounding of a gradient near zero into a whole step."""
    batches = [replace(batch, features=batch.features.double()) for batch in batches]
    module = tiny_module(partial(sgd, lr=lr)).double()
    _, _, seen = trained(batches, module, accumulate=accumulate, gradient_clip_val=clip, **options)
    return [p.detach() for p in module.recognizer.parameters()], seen


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulating_parts_of_a_batch_is_the_whole_batch(clip):
    whole = [batch_of(60, 52, 40, 33, 21, seed=seed) for seed in range(4)]
    # unequal parts: an average of averages would differ
    parts = [half(batch, rows) for batch in whole for rows in (slice(0, 1), slice(1, 5))]
    one, seen = train(whole, clip=clip)
    two, seen_parts = train(parts, accumulate=2, clip=clip)
    assert largest_difference(one, two) < 1e-12
    assert seen[-1]["train/loss"] == pytest.approx(seen_parts[-1]["train/loss"], rel=1e-6)
    assert seen[-1]["train/gradient_norm"] == pytest.approx(seen_parts[-1]["train/gradient_norm"], rel=1e-6)
    assert seen_parts[-1]["train/utterances"] == 5


def test_gradients_take_no_memory_in_the_next_forward_pass():
    module, num = tiny_module(), list[int]()
    encoder = module.recognizer.encoder
    encoder.register_forward_pre_hook(lambda *_: num.append(sum(p.grad is not None for p in encoder.parameters())))
    trained([batch_of(60, seed=seed) for seed in range(4)], module, accumulate=2)
    assert num[0] == num[2] == 0 < num[1] == num[3]


def test_the_loss_is_per_token_and_impossible_transcripts_do_not_count():
    possible = batch_of(60, 52)
    # three equal tokens need five frames; eleven input frames leave two
    impossible = batch_of(60, 52, 11)
    impossible.tokens[:2], impossible.num_tokens[:2] = possible.tokens, possible.num_tokens
    impossible.features[:2] = possible.features
    impossible.tokens[2], impossible.num_tokens[2] = 2, 3
    alone, seen = train([possible])
    together, seen_together = train([impossible])
    assert seen_together[0]["train/loss"] == pytest.approx(seen[0]["train/loss"], rel=1e-6)
    assert largest_difference(alone, together) < 1e-12


def plain_gradient(batches: list[Batch]) -> tuple[list[torch.Tensor], float]:
    """Return gradient and value of the summed loss of the batches divided by their tokens, without a trainer."""
    module = tiny_module().double()
    losses = [
        module.recognizer.losses(b.features.double(), b.num_frames, b.tokens, b.num_tokens).total for b in batches
    ]
    loss = torch.cat(losses).sum()
    loss.backward()
    # divided after backward: heads compute in single precision, which rounds a divided loss
    num_tokens = sum(int(b.num_tokens.sum()) for b in batches)
    gradient = [p.grad / num_tokens for p in module.recognizer.parameters() if p.grad is not None]
    return gradient, float(loss) / num_tokens


def norm_of(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())


def gradient_applied(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradient of the one SGD update with lr=1 that left these weights."""
    starts = tiny_module().double().recognizer.parameters()
    return [start.detach() - weight for start, weight in zip(starts, weights, strict=True)]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_is_the_gradient_of_the_summed_loss_divided_by_the_tokens(accumulate):
    # the first has a single token
    batches = [batch_of(33, seed=1), batch_of(60, 52, 40)][:accumulate]
    weights, metrics = train(batches, accumulate, lr=1.0)
    gradient, loss = plain_gradient(batches)
    assert largest_difference(gradient_applied(weights), gradient) < 1e-12
    logged = metrics[-1]
    assert logged["train/gradient_norm"] == pytest.approx(norm_of(gradient), rel=1e-6)
    assert logged["train/loss"] == pytest.approx(loss, rel=1e-6)
    assert logged["train/lr"] == 1.0
    assert logged["train/audio_s"] == pytest.approx(sum(batch.audio_s for batch in batches))


@pytest.mark.slow
def test_an_update_of_two_processes_is_that_of_their_batches_together(ranks):
    gradient, _ = plain_gradient([batch for rank in range(2) for batch in share_of(rank)[:1]])
    for rank in ranks:
        assert largest_difference(gradient_applied(rank.left["with_one_sgd_update"]), gradient) < 1e-12


def test_clipping_by_norm_or_value_acts_on_the_gradient_per_token():
    batch = batch_of(60, 52, 40)
    gradient, _ = plain_gradient([batch])
    by_norm, metrics = train([batch], clip=0.5, lr=1.0)
    # torch adds 1e-6 to the norm
    assert norm_of(gradient_applied(by_norm)) == pytest.approx(0.5, rel=1e-5)
    assert metrics[-1]["train/gradient_norm"] == pytest.approx(norm_of(gradient), rel=1e-6)
    by_value, _ = train([batch], clip=0.01, lr=1.0, gradient_clip_algorithm="value")
    assert largest_difference(gradient_applied(by_value), [g.clamp(-0.01, 0.01) for g in gradient]) < 1e-12


def test_masks_depend_on_the_batch_alone():
    batch = batch_of(60, 52, seed=1)
    weights = []
    for seed, given in ((1, batch), (2, batch), (2, replace(batch, seed=2))):
        module = module_with("two views", dropout=0.2)
        torch.manual_seed(seed)
        tiny_trainer(1).fit(module, train_dataloaders=batches_loader([given]))
        weights.append([p.detach() for p in module.recognizer.parameters()])
    assert largest_difference(weights[0], weights[1]) == 0
    assert largest_difference(weights[0], weights[2]) > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_edens_rate_follows_the_updates_and_the_epochs(accumulate):
    module, metrics = tiny_module(), Metrics()
    module.schedule_factory = lambda optimizer: Eden(optimizer, lr_batches=3, lr_epochs=1.5)
    batches = [batch_of(60, 52, seed=seed) for seed in range(2 * accumulate)]
    trainer = tiny_trainer(8, [metrics], accumulate_grad_batches=accumulate)
    trainer.fit(module, train_dataloaders=batches_loader(batches))
    updates = metrics.seen[accumulate - 1 :: accumulate]
    # two updates per epoch
    assert [logged["train/epoch"] for logged in updates] == [0, 0, 1, 1, 2, 2, 3, 3]
    rates = [0.01 * (1 + (b / 3) ** 2) ** -0.25 * (1 + (b // 2 / 1.5) ** 2) ** -0.25 for b in range(8)]
    assert [logged["train/lr"] for logged in updates] == pytest.approx(rates, rel=1e-6)


class Listener(torch.nn.Module):
    """An encoder that keeps what it was told about the course of training."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.told = encoder, list[float]()

    def set_trained_seconds(self, audio_s: float) -> None:
        self.told.append(audio_s)

    def forward(self, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.encoder(features, num_frames)


@pytest.fixture
def listeners(monkeypatch) -> list[Listener]:
    """The encoders of all trainings of `runs`."""
    made = list[Listener]()

    def listening() -> TrainingModule:
        module = tiny_module()
        made.append(Listener(module.recognizer.encoder))
        module.recognizer.encoder = made[-1]
        return module

    monkeypatch.setattr(runs, "tiny_module", listening)
    return made


def test_an_empty_update_under_a_gradient_scaler_moves_nothing():
    weights = []
    for batches in ([batch_of(60)], [unread("lost"), batch_of(60)], [batch_of(60), unread("lost")]):
        module, plugin = tiny_module(), MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
        trainer = tiny_trainer(len(batches), plugins=[plugin], gradient_clip_val=1.0)
        trainer.fit(module, train_dataloaders=batches_loader(batches))
        weights.append([p.detach() for p in module.recognizer.parameters()])
    assert largest_difference(weights[0], weights[1]) == largest_difference(weights[0], weights[2]) == 0


def test_updates_of_another_size_do_not_change_how_much_the_ones_before_may_have_held(tmp_path, listeners):
    for max_steps, accumulate in ((4, 1), (6, 2), (8, 2), (9, 1)):
        runs.run(tmp_path, max_steps, validate_every=None, accumulate_grad_batches=accumulate)
    told = [sorted(set(listener.told)) for listener in listeners]
    assert told == [[0.0, 10.0, 20.0, 30.0], [40.0, 60.0], [80.0, 100.0], [120.0]]


class ToldInValidation(pl.Callback):
    """Keeps what a `Listener` was told last before each validation, by update."""

    def __init__(self) -> None:
        self.told: dict[int, list[float]] = {}

    def on_validation_batch_start(self, trainer, pl_module, *_):
        self.told[trainer.global_step] = pl_module.recognizer.encoder.told[-1:]


@pytest.mark.usefixtures("listeners")
def test_a_validation_counts_all_updates_before_it_also_after_a_resumption(tmp_path):
    stopped, resumed = ToldInValidation(), ToldInValidation()
    stop = Signalled("on_validation_batch_start", 6)
    with pytest.raises(Preempted):
        runs.run(tmp_path, 9, [stop, stopped, CheckpointCallback(tmp_path), Preemption()])
    runs.run(tmp_path, 9, [resumed])
    assert stopped.told == {3: [30.0], 6: [60.0]}
    assert resumed.told == {6: [60.0], 9: [90.0]}


def test_callbacks_see_the_numbers_of_every_update_and_loggers_those_of_the_logged_ones(tmp_path):
    logger = MetricsCsv(tmp_path)
    *_, seen = trained([batch_of(60, seed=seed) for seed in range(5)], logger=logger, log_every_n_steps=2)
    losses = [row["train/loss"] for row in seen]
    assert len(set(losses)) == 5
    rows = (line.split(",") for line in logger.path.read_text().splitlines())
    logged = {int(step): float(value) for step, name, value in rows if name == "train/loss"}
    # counted from 0; the last update is logged always
    assert logged == pytest.approx({1: losses[1], 3: losses[3], 4: losses[4]})


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


def module_with_zipformer() -> TrainingModule:
    module = tiny_module()
    torch.manual_seed(0)
    module.recognizer.encoder = ZipformerEncoder(
        NUM_FEATURES,
        **TINY,
        # oneDNN 3.12 (torch 2.13) computes bfloat16 convolutions of two channels wrongly with AMX
        subsampling_channels=[8, 8, 8],
        ref_duration_s=0.01,
    )
    return module


def module_with_zapformer() -> TrainingModule:
    module = tiny_module()
    torch.manual_seed(0)
    module.recognizer.encoder = ZapformerEncoder(
        NUM_FEATURES,
        input_dim=6,
        encoder_dim=[8, 8],
        feedforward_multiple=[1, 1],
        num_encoder_layers=[1, 1],
        cnn_module_kernel=[3, 3],
        downsampling_factor=[1, 2],
        num_heads=2,
        query_head_dim=4,
        value_head_dim=4,
        num_freqs=4,
        subsampling_channels=(8, 8, 8),
        noise=0.0,
    )
    return module


@pytest.mark.slow
def test_two_processes_that_go_on_give_the_same_weights_and_the_same_state_of_whitening(ranks):
    left = [rank.left["with_a_zipformer"] for rank in ranks]
    assert all(same(of_rank["whole"], of_rank["resumed"]) for of_rank in left)
    weights = [{k: v for k, v in of_rank["whole"].items() if not k.endswith(".probability")} for of_rank in left]
    assert same(*weights)
    assert len({float(value) for name, value in left[0]["whole"].items() if name.endswith(".probability")}) == 2


def test_every_parameter_has_a_gradient_whatever_is_left_out():
    encoder = module_with_zipformer().recognizer.encoder.train()
    batch, positions_left_out = batch_of(90, 61), 0
    for seed in range(8):
        torch.manual_seed(seed)
        encoder.set_trained_seconds(0.0)
        encoder.zero_grad()
        encodings, _ = encoder(batch.features, batch.num_frames)
        encodings.sum().backward()
        assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []
        gradients = (p.grad for name, p in encoder.named_parameters() if "linear_pos" in name)
        positions_left_out += sum(not gradient.any() for gradient in gradients)
    assert positions_left_out > 0


def test_it_makes_the_updates_of_asr_train(small_run, tmp_path):
    module, data = asr.training_parts([*SMALL, f"data.dir={small_run.data_dir}"])
    metrics = Metrics()
    trainer = pl.Trainer(
        max_steps=5,
        accelerator="cpu",
        gradient_clip_val=5.0,
        callbacks=[metrics],
        default_root_dir=tmp_path,
        enable_progress_bar=False,
    )
    trainer.fit(module, data)
    lines = (line.split(",") for line in (small_run.run_dir / "metrics.csv").read_text().splitlines())
    losses = [float(value) for _, name, value, *_ in lines if name == "train/loss"]
    assert [seen["train/loss"] for seen in metrics.seen] == pytest.approx(losses[:5], rel=1e-6)
    assert "val/wer" in trainer.callback_metrics
