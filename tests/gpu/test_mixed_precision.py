"""Everything works under the rules of CUDA's autocast, which the stand-in has, within a budget of memory."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr.decoding.forced_alignment import align
from asr.decoding.greedy import CtcStream, TransducerStream
from asr.inference.decode import decode
from asr.models import devices
from asr.models.encoders.streaming import StreamingEncoder
from asr.models.encoders.zipformer import schedules
from asr.models.heads.protocols import FrameScores, ScoresPaths, Transduces
from asr.run.parts import build_encoder
from asr.training.module import TrainingModule
from tests.configs import composed
from tests.gpu.cuda_autocast import cuda_autocast, function, functions_of
from tests.gpu.trainings import PAIRS, TOKENIZER, batch, decoders_of, module_of
from tests.inference.test_word_times import Shape
from tests.models.encoders import NUM_FEATURES
from tests.training.tiny import Metrics, batches_loader, tiny_trainer

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture
def gpu(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "on_accelerator", lambda x: True)
    torch.set_num_threads(1)  # more of them would wait for each other at these sizes
    with cuda_autocast():
        yield


def train(module: TrainingModule, dtype: torch.dtype | None, monkeypatch) -> list[dict[str, float]]:
    """Make two updates, of which the first takes every branch of a Zipformer that is drawn, and the second none."""
    monkeypatch.setattr(schedules, "draw", lambda: 0.999 if module.global_step else 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if dtype is torch.float16 else None
    plugins = [] if dtype is None else [MixedPrecision("16-mixed" if scaler else "bf16-mixed", "cpu", scaler)]
    metrics = Metrics()
    trainer = tiny_trainer(2, [metrics], plugins=plugins, gradient_clip_val=1.0, num_sanity_val_steps=0)
    trainer.fit(module, batches_loader([batch(60, 44), batch(52, 61, 40, seed=1)]), batches_loader([batch(50, 32)]))
    return metrics.seen


@pytest.mark.usefixtures("gpu")
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


@pytest.mark.usefixtures("gpu")
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


VALUES = {
    "int": 0,
    "float": 0.5,
    "number": 2,
    "bool": False,
    "str": "fro",
    "List[int]": [1, 1],
    "Optional[List[int]]": [1],
}


class Reached(Exception):
    """A function has been reached, with these tensors."""


class UntilReached(TorchDispatchMode):
    """Keeps the conversions that come first; stops at any other function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs or {}))
        dtypes = [x.dtype if isinstance(x, Tensor) else x for x in leaves if isinstance(x, Tensor | torch.dtype)]
        self.seen.append((func, dtypes))
        if func is torch.ops.aten._to_copy.default:
            return func(*args, **(kwargs or {}))
        raise Reached


def arguments(name: str, dtypes: list[torch.dtype], device: str) -> list[Any]:
    """Return arguments of the right kinds, but not of shapes that go together: they are converted before a use."""

    def value(kind: str) -> Any:
        if kind == "List[Optional[Tensor]]":  # of indices
            return [torch.zeros(2, dtype=torch.int64, device=device)]
        if "Tensor" in kind:
            tensor = torch.ones(2, 2, dtype=dtypes[0], device=device)
            dtypes.append(dtypes.pop(0))
            return [tensor] if kind.startswith("List") else tensor
        return VALUES.get(kind)

    return [value(str(argument.type)) for argument in function(name)._schema.arguments if not argument.kwarg_only]


def conversions(name: str, dtypes: list[torch.dtype], device: str) -> list[Any]:
    # in a build for a CPU, tensors of CUDA can only be pretended
    with FakeTensorMode():
        given = arguments(name, [*dtypes], device)
        # as torch.autocast(device) does, which refuses CUDA here
        torch.set_autocast_dtype(device, torch.bfloat16)
        torch.set_autocast_enabled(device, True)
        try:
            with UntilReached() as recorded, suppress(Exception):
                function(name)(*given)
        finally:
            torch.set_autocast_enabled(device, False)
    return recorded.seen


MIXTURES = [[torch.bfloat16], [torch.float32], [torch.bfloat16, torch.float32], [torch.float64], [torch.int64]]


@pytest.mark.parametrize("dtypes", MIXTURES, ids=str)
def test_the_stand_in_converts_the_arguments_of_every_function_as_cuda_does(dtypes):
    # what asks cuDNN first (which builds for a GPU alone have), or takes bfloat16 on a GPU alone
    special = {"ctc_loss.Tensor", "_cudnn_rnn"} | {x for x in functions_of("AutocastCPU") if x.startswith("fft_")}
    names = sorted((functions_of("AutocastCUDA") | functions_of("AutocastCPU")) - special)
    expected = {name: conversions(name, dtypes, "cuda") for name in names}
    with cuda_autocast():
        found = {name: conversions(name, dtypes, "cpu") for name in names}
    assert found == expected
    assert any(expected.values())


def test_the_stand_in_leaves_nothing_behind():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        before = x.exp().dtype
        with cuda_autocast():
            assert x.exp().dtype == torch.float32
        assert x.exp().dtype == before == torch.bfloat16


MOST = {"zipformer_xs": 2.05, "transformer_xs": 2.8, "conformer_xs": 2.8}  # megabytes for each second of audio


@pytest.mark.filterwarnings("ignore:Warning only once")
@pytest.mark.parametrize("name", MOST)
def test_a_pass_keeps_no_more_than_its_budget(monkeypatch, name):
    monkeypatch.setattr(schedules, "draw", lambda: 0.9)  # neither balancing nor whitening
    encoder = build_encoder(composed(f"encoder={name}").options.encoder, 80).train()
    if hasattr(encoder, "set_trained_seconds"):
        encoder.set_trained_seconds(20_000 * encoder.ref_duration_s)
    known = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in known:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    with (
        cuda_autocast(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x),
    ):
        encoder(torch.randn(2, 500, 80), torch.tensor([500, 500]))
    num_bytes = sum(x.untyped_storage().nbytes() for x in kept.values())
    assert num_bytes / 1e6 / 10.0 <= MOST[name], num_bytes / 1e7
