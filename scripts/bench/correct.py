"""Whether a GPU computes what a CPU does: optimizers, losses, encoders, streams."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from asr.training.cuda_graphs import GraphedEncoder, rounded
from bench.configs import options_from, with_head
from bench.measure import NUM_WARM_UPS, Row, Setting, at_most, captured, holds, lacking, left_out, until_error
from bench.runs import largest_difference

LARGEST_STEP, LARGEST_BF16, LARGEST_MODEL = 2e-5, 1e-2, 1e-4
# in 16 bits one kernel that adds in another order rounds some gradients otherwise
LARGEST_CAPTURED = {torch.float32: LARGEST_MODEL, torch.bfloat16: 5e-3}
NUM_STEPS = 8
COMPANIES = ("together", "alone", "stacked")
FRAMES, NUM_FEATURES = (240, 180, 90), 16
SEEDS = {1: "", 3: ", with all that works seldom"}  # 1, 3: with which a Zipformer draws a pass without and with it


def rows(setting: Setting, of: str) -> Iterator[Row]:
    """Yield all checks of ``optimizers`` or of ``models``."""
    for package in ("pytest", "hypothesis"):
        if why := lacking(package):
            yield left_out("everything: the arrays of the tests are read by them", why, "as on a CPU")
            return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if of == "models":
        for case in _of_tests("models.encoders").CASES:
            yield from until_error(case.name, encoders(case, setting), setting)
            if setting.on_gpu:
                for seed, dtype in itertools.product(SEEDS, LARGEST_CAPTURED):
                    check = f"{case.name}, captured{SEEDS[seed]}"
                    yield from until_error(check, captured_passes(case, seed, dtype, setting), setting)
        yield from until_error("losses", losses(setting), setting)
        yield from until_error("streams", streams(setting), setting)
        return
    for case in _of_tests("optim.cases").CASES:
        if case.golden:
            yield from until_error(f"{case.name}: 32-bit trajectory", trajectory(case, setting), setting)
    for case in _of_tests("optim.cases").CASES:
        yield from until_error(f"{case.name}: steps", optimizer_steps(case, setting), setting)


def _of_tests(module: str) -> Any:
    """Return a module of the tests, whose rows and arrays are checked here on another device."""
    return importlib.import_module(f"tests.{module}")


def trajectory(case: Any, setting: Setting) -> Iterator[Row]:
    """Yield how far an optimizer is from its reference in 32 bits."""
    follow, worst, where = _of_tests("optim.test_golden").follow, 0.0, ""
    single = [one for one in _of_tests("optim.golden.reader").trajectories(case.golden) if one.kind == "f32"]
    for one in single[:1] if setting.small else single:
        coupled = any(one.hyper.get(option) for option in case.couplings)
        for company in COMPANIES[:1] if coupled else COMPANIES:
            with torch.device(setting.device):
                difference = max(follow(case, one, company).values())
            # some references are themselves further from their 64-bit form than this
            excess = difference / max(LARGEST_STEP, one.tolerance)
            if excess >= worst:
                worst, where = excess, f"{difference:.1e} at {one.name}, {company}"
    yield Row(f"{case.name}: 32-bit trajectory of its reference", where, f"at most {LARGEST_STEP:g}", worst <= 1)


def optimizer_steps(case: Any, setting: Setting) -> Iterator[Row]:
    """Yield of an optimizer: bf16 parameters, a captured step, and whether a step waits for the device."""
    both = [_stepped(case, device, torch.bfloat16) for device in (setting.device, "cpu")]
    yield at_most(f"{case.name}: bf16 parameters, {NUM_STEPS} steps, to those of a CPU", _distance(*both), LARGEST_BF16)
    if setting.on_gpu:
        yield _waits(case, setting.device)
    if case.not_capturable:
        yield Row(f"{case.name}: captured step", f"refused: {case.not_capturable} decides by the count of steps")
        return
    graph, eager = (_stepped(case, setting.device, torch.float32, capture=capture) for capture in (True, False))
    yield at_most(f"{case.name}: captured step, to the eager one", _distance(graph, eager), LARGEST_STEP)


def _optimizer(case: Any, params: list[nn.Parameter], capturable: bool) -> Any:
    optimizer = case.factory(params)
    if capturable:
        optimizer.make_capturable()
    return optimizer


def _stepped(case: Any, device: str, dtype: torch.dtype, capture: bool | None = None) -> list[Tensor]:
    """Return parameters after ``NUM_STEPS``; if ``capture`` says by a CUDA graph or not, with gradients that stay."""
    made = _of_tests("optim.training")
    params = [nn.Parameter(value.detach().to(device)) for value in made.make_parameters(dtype)]

    def give(index: int) -> None:
        for place, param in enumerate(params):
            param.grad = made.make_gradient(param.detach().cpu(), index, place).to(device)

    give(0)
    optimizer = _optimizer(case, params, capturable=capture is not None)
    step: Callable[[], Any] = optimizer.step
    num = NUM_STEPS
    if capture:
        step, num = captured(step, device), NUM_STEPS - NUM_WARM_UPS
    for index in range(num):
        # a gradient that stays is diagonal in SOAP's bases but for rounding, which Adam makes as large as the rest
        if capture is None:
            give(index)
        step()
    return [param.detach().cpu().float() for param in params]


def _waits(case: Any, device: str) -> Row:
    params = [nn.Parameter(value.detach().to(device)) for value in _of_tests("optim.training").make_parameters()]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = _optimizer(case, params, capturable=False)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    except RuntimeError as error:
        return holds(f"{case.name}: no step waits for the GPU", False, str(error).splitlines()[0][:200])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return holds(f"{case.name}: no step waits for the GPU", True)


def _distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest magnitude of each tensor."""
    return largest_difference(*(dict(enumerate(tensors)) for tensors in (theirs, ours)))


def encoders(case: Any, setting: Setting) -> Iterator[Row]:
    """Yield how far encodings and gradients of an encoder are from those of a CPU."""
    torch.manual_seed(0)
    encoder = case.make().eval()  # nothing is drawn
    features, num_frames = torch.randn(len(FRAMES), max(FRAMES), NUM_FEATURES), torch.tensor(FRAMES)
    by_device = []
    for device in (setting.device, "cpu"):
        encoder.to(device).zero_grad()
        encodings, lengths = encoder(features.to(device), num_frames.to(device))
        valid = torch.arange(encodings.shape[1], device=device) < lengths.unsqueeze(1)
        encodings = encodings.masked_fill(~valid.unsqueeze(2), 0.0)
        encodings.square().sum().backward()
        grads = [parameter.grad.cpu().flatten() for parameter in encoder.parameters() if parameter.grad is not None]
        by_device.append((encodings.detach().cpu(), torch.cat(grads)))
    for what, ours, theirs in zip(("encodings", "gradients"), *by_device, strict=True):
        yield at_most(f"{case.name}: {what}, to those of a CPU", _distance([ours], [theirs]), LARGEST_MODEL)


def captured_passes(case: Any, seed: int, dtype: torch.dtype, setting: Setting) -> Iterator[Row]:
    """Yield how far gradients of replayed passes in training are from those of passes that are not captured."""
    torch.manual_seed(0)
    encoder = case.make().to(setting.device).train()
    features = torch.randn(len(FRAMES), rounded(max(FRAMES)), NUM_FEATURES, device=setting.device)
    num_frames = torch.tensor(FRAMES, device=setting.device)
    forwards = [encoder.forward, GraphedEncoder(encoder)]
    gradients = []
    for forward in (*forwards[:1], *forwards[1:] * 4):
        if hasattr(encoder, "set_trained_seconds"):
            encoder.set_trained_seconds(1e9)
        encoder.zero_grad()
        torch.manual_seed(seed)
        with torch.autocast(setting.device, dtype, enabled=dtype != torch.float32):
            encodings, lengths = forward(features, num_frames)
        valid = torch.arange(encodings.shape[1], device=setting.device) < lengths.unsqueeze(1)
        encodings.float().masked_fill(~valid.unsqueeze(2), 0.0).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]).cpu())
        # a capture fails while anything holds the graph of an earlier pass, whose leaves belong to another stream
        del encodings
    check = f"{case.name}, {str(dtype)[6:]}: gradients of replayed passes{SEEDS[seed]}, to those of others"
    furthest = max(_distance([gradient], gradients[:1]) for gradient in gradients[1:])
    yield at_most(check, furthest, LARGEST_CAPTURED[dtype])


def losses(setting: Setting) -> Iterator[Row]:
    """Yield for CTC, CR-CTC with its augmented views, and inter-CTC how far loss and gradients are from a CPU's."""
    from asr.features.specaugment import SpecAugment
    from asr.models.encoders.transformer import TransformerEncoder
    from asr.run.instantiate import build_component

    tokens, num_tokens = torch.randint(2, 20, (len(FRAMES), 8)), torch.tensor([8, 5, 2])
    features, num_frames = torch.randn(len(FRAMES), max(FRAMES), NUM_FEATURES), torch.tensor(FRAMES)
    for name in ("ctc", "cr_ctc", "inter_ctc"):
        inner = () if name == "ctc" else ("head.intermediate_layers=[1]",)
        torch.manual_seed(0)
        encoder = TransformerEncoder(NUM_FEATURES, 24, 2, 2, 32, dropout=0.0)
        target = options_from(f"head={name}", *inner).head
        head = build_component(target, "head", d_model=24, vocab_size=20)
        model = with_head(encoder, head, SpecAugment(), NUM_FEATURES)
        by_device = []
        for device in (setting.device, "cpu"):
            model.to(device).zero_grad()
            moved = features.to(device), num_frames.to(device), tokens.to(device), num_tokens.to(device)
            total = model.losses(*moved, torch.Generator().manual_seed(3)).total
            total.sum().backward()
            grads = [p.grad.cpu().flatten() for p in model.parameters() if p.grad is not None]
            by_device.append([total.detach().cpu(), torch.cat(grads)])
        yield at_most(f"{name}: loss and gradients, to those of a CPU", _distance(*by_device), LARGEST_MODEL)


def streams(setting: Setting) -> Iterator[Row]:
    """Yield whether a stream gives the tokens of the whole recording."""
    from asr.data.features import LogMel
    from asr.decoding.greedy import CtcGreedy
    from asr.inference.streaming import StreamingRecognizer

    tested, features = _of_tests("inference.test_streaming"), LogMel()
    model, samples = tested.recognizer("ctc").to(setting.device), tested.babble(1, 3.0)
    stream = StreamingRecognizer(model, tested.TOKENIZER, features, endpoint_s=100.0)
    for begin in range(0, len(samples), 1600):
        stream.accept(samples[begin : begin + 1600])
    stream.finish()
    matrix = torch.from_numpy(features.extractor.extract(samples, 16_000)).to(setting.device)
    with torch.inference_mode():
        encodings, lengths = model(matrix[None], torch.tensor([len(matrix)], device=setting.device))
        ((whole,),) = CtcGreedy()(model.head, encodings, lengths)
    yield holds("a stream gives the tokens of the whole", stream.search.tokens == whole.tokens)
