"""Everything works under the rules of CUDA's autocast, on the branches of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from asr.decoding.forced_alignment import align
from asr.decoding.greedy import CtcStream, TransducerStream
from asr.inference.decode import decode
from asr.models import devices
from asr.models.encoders.streaming import StreamingEncoder
from asr.models.encoders.zipformer import scaling
from asr.models.heads.protocols import FrameScores, ScoresPaths, Transduces
from asr.training.module import TrainingModule
from tests.gpu.cuda_autocast import cuda_autocast
from tests.gpu.trainings import PAIRS, TOKENIZER, batch, decoders_of, module_of
from tests.inference.test_word_times import Shape
from tests.models.encoders import NUM_FEATURES
from tests.training.tiny import Metrics, batches_loader, tiny_trainer

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def gpu(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "on_accelerator", lambda x: True)
    torch.set_num_threads(1)  # more of them would wait for each other at these sizes
    with cuda_autocast():
        yield


def train(module: TrainingModule, dtype: torch.dtype | None, monkeypatch) -> list[dict[str, float]]:
    """Make two updates, of which the first takes every branch of a Zipformer that is drawn, and the second none."""
    monkeypatch.setattr(scaling, "draw", lambda: 0.999 if module.global_step else 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if dtype is torch.float16 else None
    plugins = [] if dtype is None else [MixedPrecision("16-mixed" if scaler else "bf16-mixed", "cpu", scaler)]
    metrics = Metrics()
    trainer = tiny_trainer(2, [metrics], plugins=plugins, gradient_clip_val=1.0, num_sanity_val_steps=0)
    trainer.fit(module, batches_loader([batch(60, 44), batch(52, 61, 40, seed=1)]), batches_loader([batch(50, 32)]))
    return metrics.seen


@pytest.mark.parametrize(("encoder", "head"), PAIRS)
def test_every_recognizer_trains_and_decodes_in_every_precision(monkeypatch, encoder, head):
    losses = {}
    for precision, dtype in PRECISIONS.items():
        module = module_of(encoder, head)
        before = {name: value.clone() for name, value in module.recognizer.named_parameters()}
        first, _ = train(module, dtype, monkeypatch)
        losses[precision] = first["train/loss"]
        assert module.guard.counts["skipped_updates"] == 0
        assert module.scores["dev"].wer > 0
        for name, value in module.recognizer.named_parameters():
            assert value.dtype == torch.float32
            assert value.isfinite().all()
            assert not torch.equal(value, before[name]), (precision, name)
        with torch.autocast("cpu", dtype, enabled=dtype is not None), torch.inference_mode():
            decode_in_every_way(module)
    assert losses == pytest.approx(dict.fromkeys(PRECISIONS, losses["fp32"]), rel=0.01)


def decode_in_every_way(module: TrainingModule) -> None:
    recognizer, given = module.recognizer.eval(), batch(60, 44)
    encodings, lengths = recognizer(given.features, given.num_frames)
    for decoder in decoders_of(module):
        assert len(decode(recognizer, decoder, TOKENIZER, given, encodings, lengths, Shape(from_audio=True))) == 2
    if isinstance(recognizer.head, FrameScores | ScoresPaths):
        assert align(recognizer.head, encodings, lengths, given.tokens, given.num_tokens).score.isfinite().all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("encoder", "head"), [pair for pair in PAIRS if "causal" in pair.id])
def test_a_recognizer_streams_in_every_precision(encoder, head, precision):
    dtype, recognizer = PRECISIONS[precision], module_of(encoder, head).recognizer.eval()
    stream = StreamingEncoder(recognizer.encoder)
    state = stream.initial_state(1)
    searches = [TransducerStream(recognizer.head, 3)] if isinstance(recognizer.head, Transduces) else []
    searches += [CtcStream(recognizer.head)] if isinstance(recognizer.head, FrameScores) else []
    with torch.autocast("cpu", dtype, enabled=dtype is not None), torch.inference_mode():
        for _ in range(3):
            chunk = torch.randn(1, stream.num_features, NUM_FEATURES)
            encodings, lengths, state = stream(chunk, torch.tensor([stream.num_features]), state)
            for search in searches:
                search.accept(encodings[:, : int(lengths)])
    assert encodings.isfinite().all()
