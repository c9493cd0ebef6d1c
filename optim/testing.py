"""A contract that any optimizer can take: what trainers rely on, as checks with one report.

    report = check_optimizer(partial(MyOptimizer, lr=0.1))
    assert report.passed, report

A check is a function of `CHECKS`, whose docstring says why it matters. With pytest, a test that takes the fixture
``optimizer_check`` runs once per check (`pytest_optim`).
"""

from __future__ import annotations

import dis
import inspect
import io
import pickle
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any
from unittest import SkipTest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
import torch.distributed.checkpoint.state_dict_saver as dcp_saver
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import ProcessRaisedException, start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer, lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

Shapes = Sequence[tuple[int, ...]]
MATRICES: Shapes = ((16, 12), (20, 30), (16, 12))
SHAPES: Shapes = ((), (1,), (7,), (3, 8, 6), *MATRICES)


def gradient(param: Tensor, step: int, place: int, rank: int = 0) -> Tensor:
    """Return the gradient of the ``place``-th parameter at a step."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * place + rank)
    return torch.randn(param.shape, generator=generator).to(param.device, param.dtype)


class Model(nn.Module):
    """Parameters in a module, whose loss has these gradients."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.params = nn.ParameterList(params)

    def forward(self, step: int, rank: int) -> Tensor:
        """Return the loss of a rank's share of a batch."""
        terms = [(param * gradient(param, step, place, rank)).sum() for place, param in enumerate(self.params)]
        return torch.stack(terms).sum()


@dataclass(frozen=True)
class Subject:
    """What makes an optimizer of parameters or groups, what it is tried with, and options for a second group."""

    make: Callable[..., Optimizer]
    shapes: Shapes
    given: Mapping[str, Any] | None = None

    def params(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[nn.Parameter]:
        """Return one parameter per shape, the same in every call, neither tiny nor zero."""
        like = [torch.empty(shape, dtype=dtype, device=device) for shape in self.shapes]
        return [nn.Parameter(gradient(param, -1, place)) for place, param in enumerate(like)]

    def build(self, params: Iterable[Any], **options: Any) -> Optimizer:
        """Return the optimizer, in training mode if it has one, as those of Schedule-Free have."""
        optimizer = self.make(list(params), **options)
        getattr(optimizer, "train", lambda: None)()
        return optimizer

    def in_groups(self, params: list[nn.Parameter], **second: Any) -> Optimizer:
        """Return an optimizer of two groups, the second of which has options of its own."""
        return self.build([{"params": params[:2]}, {"params": params[2:], **second}])

    def options(self) -> dict[str, Any]:
        """Return other values than the default ones of lr and weight_decay, if it has them, and the given options."""
        usual = self.build(self.params()).param_groups[0]
        other = {"lr": (usual.get("lr") or 0) / 2, "weight_decay": 0.03 if usual.get("weight_decay") != 0.03 else 0.02}
        known = {key: value for key, value in other.items() if value and isinstance(usual.get(key), float | int)}
        return {**known, **(self.given or {})}

    def needs_closure(self, optimizer: Optimizer) -> bool:
        """Return whether a step must be given a closure."""
        asked = inspect.signature(optimizer.step).parameters.get("closure")
        return asked is not None and asked.default is asked.empty

    def run(
        self,
        optimizer: Optimizer,
        params: Iterable[Tensor],
        steps: Iterable[int],
        gradient: Callable[[Tensor, int, int], Tensor] = gradient,
        model: nn.Module | None = None,
        rank: int = 0,
    ) -> None:
        """Make the given steps with the gradients that belong to them, or with those of a model's losses."""
        for number in steps:

            def compute(number: int = number) -> Tensor:
                if model is None:
                    for place, param in enumerate(params):
                        param.grad = gradient(param, number, place)
                    return torch.ones(())
                optimizer.zero_grad()
                loss: Tensor = model(number, rank)
                loss.backward()
                return loss

            if self.needs_closure(optimizer):
                optimizer.step(compute)  # type: ignore[arg-type]
            else:
                compute()
                optimizer.step()

    def assert_moves(self, optimizer: Optimizer, params: Sequence[Tensor], before: Sequence[Tensor]) -> None:
        """Assert that all parameters move and stay finite; some rules only prepare statistics in their first steps."""
        for steps in (range(10, 13), range(13, 22)):
            self.run(optimizer, params, steps)
            still = [[*param.shape] for param, value in zip(params, before, strict=True) if torch.equal(param, value)]
            if not still:
                break
        assert not still, f"parameters of shapes {still} never moved"
        assert all(param.isfinite().all() for param in params), "parameters are not finite"

    def assert_resumes(self, optimizer: Optimizer, params: list[nn.Parameter], build: Callable[..., Optimizer]) -> None:
        """Assert that a new optimizer continues bit for bit from what ``torch.load(weights_only=True)`` returns."""
        twins = [nn.Parameter(value) for value in values(params)]
        twin, file = build(twins), io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        twin.load_state_dict(torch.load(file, weights_only=True))
        assert_same(optimizer.state_dict(), twin.state_dict(), "state_dict")
        for each, its in ((optimizer, params), (twin, twins)):
            self.run(each, its, range(30, 34))
        assert_same(values(params), values(twins), "a resumed parameter")


def values(params: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of the parameters' values."""
    return [param.detach().clone() for param in params]


def assert_same(first: Any, second: Any, where: str) -> None:
    """Assert that nested state agrees bit for bit, and in types, dtypes and strides."""
    assert type(first) is type(second), f"{where} is a {type(second).__name__} instead of a {type(first).__name__}"
    if isinstance(first, dict | list | tuple):
        keys = first if isinstance(first, dict) else range(len(first))
        assert len(first) == len(second), f"{where} has {len(second)} entries instead of {len(first)}"
        for key in keys:
            assert not isinstance(first, dict) or key in second, f"{where} lost {key!r}"
            assert_same(first[key], second[key], f"{where}[{key!r}]")
    elif isinstance(first, Tensor):
        wanted, found = ((x.dtype, x.shape, x.stride()) for x in (first, second))
        assert found == wanted, f"{where} has dtype, shape and strides {found} instead of {wanted}"
        assert torch.equal(first, second), f"{where} differs"
    else:
        assert first == second, f"{where} is {second!r} instead of {first!r}"


def assert_near(found: Iterable[Tensor], wanted: Iterable[Tensor], start: Iterable[Tensor]) -> None:
    """Assert that parameters are where they should be, but for the rounding of a rule that computes in bfloat16."""
    for place, (one, other, begun) in enumerate(zip(found, wanted, start, strict=True)):
        error, way = float((one - other).norm()), float((other - begun).norm())
        assert error <= 0.1 * way + 1e-6, f"parameter {place} is off by {error:.2g} after a way of {way:.2g}"


def refusal(error: Exception) -> str:
    """Return what the optimizer said when it refused; raise again what only went wrong in it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not str(error) or trace.tb_frame.f_code.co_code[trace.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        raise error
    raised_in, of_torch = Path(trace.tb_frame.f_code.co_filename), Path(torch.__file__).parent
    if raised_in.is_relative_to(of_torch) and not raised_in.is_relative_to(of_torch / "optim"):
        raise error
    return shorten(str(error), 240)


def keeps_groups(subject: Subject) -> None:
    """Each group keeps its parameters and options, and all of them are trained.

    DeepSpeed's Muon joined all groups, and used the options of its config (deepspeedai/DeepSpeed#8440).
    """
    params, options = subject.params(), subject.options()
    optimizer, before = subject.in_groups(params, **options), values(params)
    groups = {param: group for group in optimizer.param_groups for param in group["params"]}
    usual = {key: subject.build(subject.params()).param_groups[0].get(key) for key in options}
    for place, param in enumerate(params):
        assert param in groups, f"parameter {place} is in no group"
        found = {key: groups[param].get(key) for key in options}
        given = usual if place < 2 else options
        assert found == given, f"parameter {place} is in a group with {found}, given {given}"
    subject.assert_moves(optimizer, params, before)


def missing_gradients(subject: Subject) -> None:
    """A parameter whose gradient is None stays as it is, and is trained once it has one.

    Many optimizers failed where modules are left out of some steps (kozistr/pytorch_optimizer#462).
    """
    params = subject.params()
    optimizer, before = subject.build(params), values(params)
    subject.run(optimizer, [], range(1))
    assert_same(before, values(params), "without any gradient, a parameter")
    subject.run(optimizer, params[:2], range(3))
    assert_same(before[2:], values(params[2:]), "without a gradient, a parameter")
    subject.assert_moves(optimizer, params, before)


def all_shapes(subject: Subject) -> str | None:
    """Scalars, vectors, matrices and tensors of more dimensions are trained, or refused in words."""
    whole = Subject(subject.make, (*SHAPES, (4, 3, 2, 2)))
    params = whole.params()
    before = values(params)
    try:
        optimizer = whole.build(params)
        whole.run(optimizer, params, range(1))
    except Exception as error:
        return refusal(error)
    whole.assert_moves(optimizer, params, before)
    return None


def empty_and_zero(subject: Subject) -> None:
    """Tensors without elements, as shards may be, and gradients of zero leave parameters finite.

    The mean over nothing is NaN, which reached all parameters in 1-bit LAMB (deepspeedai/DeepSpeed#7736).
    """
    params = [*subject.params(), nn.Parameter(torch.empty(0, 3))]
    before, optimizer = values(params[:-1]), subject.build(params)
    subject.run(optimizer, params, range(2), lambda param, step, place: torch.zeros_like(param))
    subject.run(optimizer, params, range(2, 4))
    subject.assert_moves(optimizer, params[:-1], before)


def memory_layouts(subject: Subject) -> None:
    """Strides of parameters and gradients do not matter.

    A kernel updated other elements (bitsandbytes-foundation/bitsandbytes#1187), and ``view`` fails
    (ultralytics/ultralytics#26013).
    """
    plain = subject.params()
    turned = [
        nn.Parameter(param.detach().mT.contiguous().mT if param.dim() > 1 else param) for param in subject.params()
    ]
    for params in (plain, turned):
        optimizer = subject.build(params)
        subject.run(optimizer, params, range(2))
        # the gradient of a sum is one number, seen as a whole tensor
        subject.run(
            optimizer, params, [2], lambda param, step, place: torch.ones((), dtype=param.dtype).expand_as(param)
        )
    assert_near(turned, plain, subject.params())


def bfloat16(subject: Subject) -> None:
    """Parameters in bfloat16, also beside others in float32, keep their type, are trained, and resume bit for bit.

    Loading casts statistics to the type of the parameter if nothing is done about it (pytorch/pytorch#43706).
    """
    params = [*subject.params(torch.bfloat16), *subject.params()]
    for param in params:
        param.data.mul_(0.02)  # bfloat16 holds usual updates only beside small values
    optimizer, before = subject.build(params), values(params)
    large = [place for place, param in enumerate(params) if param.numel() > 1]
    subject.assert_moves(optimizer, [params[place] for place in large], [before[place] for place in large])
    subject.run(optimizer, params, range(2))
    assert [x.dtype for x in params] == [x.dtype for x in before], "a parameter changed its dtype"
    assert all(param.isfinite().all() for param in params), "parameters are not finite"
    subject.assert_resumes(optimizer, params, subject.build)


def closure(subject: Subject) -> None:
    """A closure is called with gradients enabled; its loss is returned, and the step is the one without a closure.

    Trainers compute the loss in it, which ``no_grad`` prevents (Lightning-AI/pytorch-lightning#18254).
    """
    params, twins, losses = subject.params(), subject.params(), list[float]()
    optimizer, model = subject.build(params), Model(params)

    def compute() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(0, 0)
        loss.backward()
        losses.append(loss.item())
        return loss

    returned: Any = optimizer.step(compute)  # type: ignore[arg-type]
    assert losses, "the closure was not called"
    assert float(returned) == losses[0], f"the loss was {losses[0]}, and step returned {returned}"
    if subject.needs_closure(optimizer):  # as LBFGS, which evaluates it several times
        return
    assert len(losses) == 1, f"the closure was called {len(losses)} times"
    subject.run(subject.build(twins), twins, range(1))
    assert_same(values(twins), values(params), "after a step with a closure, a parameter")


def changed_lr(subject: Subject) -> None:
    """A rate that is changed in ``param_groups``, as schedules do, takes effect at the next step.

    With a schedule, DeepSpeed's Muon no longer had a rate of its own (deepspeedai/DeepSpeed#7713).
    """
    if "lr" not in subject.options():
        raise SkipTest("it has no lr that is a number")
    pair = subject.params(), subject.params()
    for params, factor in zip(pair, (1.0, 0.1), strict=True):
        optimizer = subject.build(params)
        subject.run(optimizer, params, range(8))
        for group in optimizer.param_groups:
            group["lr"] *= factor
        subject.run(optimizer, params, [8])
    stuck = [place for place, (param, other) in enumerate(zip(*pair, strict=True)) if torch.equal(param, other)]
    assert not stuck, f"with a tenth of the rate, parameters {stuck} moved as before"


def resumes(subject: Subject) -> None:
    """A new optimizer continues bit for bit from what ``torch.load(weights_only=True)`` returns, in all groups.

    Checkpoints with objects of other classes cannot be opened by default (huggingface/accelerate#3539).
    """
    params = subject.params()
    optimizer = subject.in_groups(params, **subject.options())
    subject.run(optimizer, params[:-1], range(3))  # the last one has no state yet
    subject.assert_resumes(optimizer, params, subject.in_groups)


def resumes_from_dcp(subject: Subject) -> None:
    """A new optimizer continues bit for bit from a checkpoint of `torch.distributed.checkpoint`.

    Statistics that exist only after a first step were not loaded (KempnerInstitute/KempnerForge#115).
    """
    models = [Model(subject.params()) for _ in range(2)]
    optimizers = [subject.build(model.parameters()) for model in models]
    subject.run(optimizers[0], [], range(3), model=models[0])

    def state(place: int) -> dict[str, Any]:
        model, optimizer = models[place], optimizers[place]
        return {
            "model": dcp_state.get_model_state_dict(model),
            "optimizer": dcp_state.get_optimizer_state_dict(model, optimizer),
        }

    with tempfile.TemporaryDirectory() as folder:
        try:
            dcp_saver.save(state(0), checkpoint_id=folder, no_dist=True)
            loaded = state(1)
            dcp_loader.load(loaded, checkpoint_id=folder, no_dist=True)
        except CheckpointException as error:  # a BaseException, whose message is a traceback
            raise RuntimeError(str(error).strip().splitlines()[-1]) from error
    dcp_state.set_optimizer_state_dict(models[1], optimizers[1], loaded["optimizer"])
    dcp_state.set_model_state_dict(models[1], loaded["model"])
    for model, optimizer in zip(models, optimizers, strict=True):
        subject.run(optimizer, [], range(3, 6), model=model)
    assert_same(values(models[0].parameters()), values(models[1].parameters()), "a resumed parameter")


def counts_steps(subject: Subject) -> None:
    """A counter called ``step`` counts steps.

    PSGDPro's stayed at 0 (NVIDIA-NeMo/Emerging-Optimizers#260), and so did SkipStepAdamW's (allenai/OLMo-core#317).
    """

    def counters(where: str, state: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        entries = state if isinstance(state, dict) else dict(enumerate(state)) if isinstance(state, list) else {}
        for key, value in entries.items():
            found |= counters(f"{where}[{key!r}]", value)
            if key in ("step", "steps") and isinstance(value, int | float | Tensor):
                found[f"{where}[{key!r}]"] = float(value)
        return found

    params = subject.params()
    optimizer, counts = subject.build(params), list[dict[str, float]]()
    for steps in (range(2), range(2, 5)):
        subject.run(optimizer, params, steps)
        counts.append(counters("", optimizer.state_dict()))
    if not counts[0]:
        raise SkipTest("it has no counter called step")
    wrong = {key: [count, counts[1].get(key)] for key, count in counts[0].items() if counts[1].get(key) != count + 3}
    assert not wrong, f"before and after three steps: {wrong}"


def added_group(subject: Subject) -> str | None:
    """A group that is added later, as for layers that are unfrozen, is trained with its options, saved and loaded."""
    options, params = subject.options(), subject.params()
    optimizer, before = subject.build(params[:2]), values(params)
    subject.run(optimizer, params[:2], range(2))
    try:
        optimizer.add_param_group({"params": params[2:], **options})
    except Exception as error:
        return refusal(error)
    found = {key: optimizer.param_groups[-1].get(key) for key in options}
    assert found == options, f"the group has {found}, given {options}"
    subject.assert_moves(optimizer, params, before)
    subject.assert_resumes(optimizer, params, subject.in_groups)
    return None


def sequential_lr(subject: Subject) -> None:
    """Warm-up and decay in a `SequentialLR` set the rates that SGD gets, and a loaded state has the initial ones.

    A scheduler that resumes asks each group for ``initial_lr`` (vllm-project/speculators#1048).
    """
    params, options = subject.params(), subject.options()
    if "lr" not in options:
        raise SkipTest("it has no lr that is a number")
    optimizer = subject.in_groups(params, lr=options["lr"])
    rates = [group["lr"] for group in optimizer.param_groups]
    plain = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])
    schedules = [
        lr_scheduler.SequentialLR(
            each,
            [lr_scheduler.LinearLR(each, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(each, 4)],
            milestones=[3],
        )
        for each in (optimizer, plain)
    ]
    for number in range(6):
        subject.run(optimizer, params, [number])
        plain.step()
        for schedule in schedules:
            schedule.step()
        found, wanted = ([float(group["lr"]) for group in each.param_groups] for each in (optimizer, plain))
        torch.testing.assert_close(found, wanted, msg=f"the rates are {found}, and SGD's {wanted}")
    twin = subject.in_groups(subject.params())
    twin.load_state_dict(optimizer.state_dict())
    initial = [group.get("initial_lr") for group in twin.param_groups]
    assert initial == rates, f"with a loaded state, initial_lr is {initial} instead of {rates}"


def sparse(subject: Subject) -> str | None:
    """A sparse gradient, as of ``nn.Embedding(sparse=True)``, is refused in words before anything changes, or used."""
    params = Subject(subject.make, ((5, 4), (5, 4))).params()
    optimizer, before = subject.build(params), values(params)
    rows = torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0]])

    def rows_of(param: Tensor, step: int, place: int) -> Tensor:
        dense = gradient(param, step, place)
        return (dense * rows).to_sparse(1) if place else dense

    try:
        subject.run(optimizer, params, range(3), rows_of)
    except Exception as error:
        said = refusal(error)
        assert "sparse" in said.lower(), f"{said} (which does not say that a gradient is sparse)"
        assert_same(before, values(params), "when it refused, a parameter")
        return said
    assert not torch.equal(params[1], before[1]), "the parameter with a sparse gradient never moved"
    assert params[1].isfinite().all(), "parameters are not finite"
    return None


class HostReads(TorchDispatchMode):
    """Counts reads of values from the meta device, which stands for a GPU, and answers them with ones."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or answer a read."""
        kwargs = kwargs or {}
        copied = func is torch.ops.aten._to_copy.default and torch.device(kwargs.get("device") or "meta").type == "cpu"
        if (copied or func is torch.ops.aten._local_scalar_dense.default) and args[0].is_meta:
            self.count += 1
            ones = torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
            return ones if copied else ones.item()
        return func(*args, **kwargs)


def host_reads(subject: Subject) -> None:
    """A step does not read values from the device for each parameter, and wait for all of its work each time.

    Prodigy did so by ``item`` (konstmish/prodigy#38).
    """
    counts = []
    for copies in (1, 2):
        params = [param for _ in range(copies) for param in subject.params(device="meta")]
        optimizer = subject.build(params)
        with HostReads() as reads:
            try:
                subject.run(optimizer, params, range(2))
            except Exception as error:  # other checks make the same steps on a CPU
                raise SkipTest(f"a step does not run on the meta device: {error}") from error
        counts.append(reads.count)
    per_step = (counts[1] - counts[0]) / 2 / len(subject.shapes)
    assert not per_step, f"{per_step:.2g} reads per parameter and step"


def capturable(subject: Subject) -> str | None:
    """With ``capturable=True``, a CUDA graph can replay steps (on a CPU: they do the same), or the optimizer says no.

    Counts that are numbers in Python would be frozen in a graph (pytorch/pytorch#77862).
    """
    if "capturable" not in inspect.signature(subject.make).parameters:
        return "it has no option capturable"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    params, twins = subject.params(device=device), subject.params(device=device)
    try:
        twin = subject.build(twins, capturable=True)
        subject.run(twin, twins, range(3))
    except Exception as error:
        return refusal(error)
    replay: Callable[[], Any] = twin.step
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # records a step without making it
            twin.step()
        replay = graph.replay
    for number in range(3, 6):
        for place, param in enumerate(twins):
            param.grad.copy_(gradient(param, number, place))  # type: ignore[union-attr]
        replay()
    subject.run(subject.build(params), params, range(6))
    assert_near(twins, params, subject.params(device=device))
    return None


def leaves_inputs(subject: Subject) -> None:
    """Parameters stay where they are in memory, and gradients as they are: hooks, graphs and logging read them too."""
    params, given = [*subject.params(), *subject.params(torch.bfloat16)], dict[int, Tensor]()

    def remembered(param: Tensor, step: int, place: int) -> Tensor:
        return given.setdefault(len(params) * step + place, gradient(param, step, place))

    optimizer, places = subject.build(params), [param.data_ptr() for param in params]
    subject.run(optimizer, params, range(2), remembered)
    for place, param in enumerate(params):
        assert param.grad is given[len(params) + place], f"parameter {place} has another gradient after a step"
        assert torch.equal(param.grad, gradient(param, 1, place)), f"the gradient of parameter {place} was changed"
    assert [param.data_ptr() for param in params] == places, "a parameter has moved in memory"


def on_two_ranks(work: Callable[[Subject, int], list[Tensor]], subject: Subject) -> list[Any]:
    """Return what ``work`` returns on each of two ranks, or what the optimizer says when it refuses there."""
    # a forked process imports nothing, and takes any subject; but autograd's threads of a GPU cannot be forked
    method = "fork" if sys.platform == "linux" and not torch.cuda.is_initialized() else "spawn"
    if method == "spawn":
        try:
            pickle.dumps(subject)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise SkipTest(f"what makes the optimizer cannot be sent to another process: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        try:
            start_processes(_work, args=(work, subject, folder), nprocs=2, start_method=method)
        except ProcessRaisedException as error:  # whose message is a traceback
            raise RuntimeError(str(error).strip().splitlines()[-1]) from error
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(2)]


def _work(rank: int, work: Callable[[Subject, int], list[Tensor]], subject: Subject, folder: str) -> None:
    torch.set_num_threads(1)  # those of OpenMP are in the parent
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        found: list[Tensor] | str = work(subject, rank)
    except Exception as error:
        found = refusal(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def ddp(subject: Subject) -> str | None:
    """Ranks of `DistributedDataParallel` stay equal bit for bit, whatever their random states, or it refuses."""
    first, second = on_two_ranks(_averaged, subject)
    if isinstance(first, str):
        return first
    assert_same(first, second, "on rank 1, a parameter")
    return None


def _averaged(subject: Subject, rank: int) -> list[Tensor]:
    model = DistributedDataParallel(Model(subject.params()))
    optimizer = subject.build(model.parameters())
    random.seed(rank)
    torch.manual_seed(rank)
    subject.run(optimizer, [], range(6), model=model, rank=rank)
    return values(model.parameters())


def fsdp2(subject: Subject) -> str | None:
    """Sharded by ``fully_shard``, parameters move as whole ones do, or the optimizer refuses.

    A rule for whole matrices may see a few rows, which nothing reports (NVIDIA/Megatron-LM#5961).
    """
    subject = Subject(subject.make, [shape for shape in subject.shapes if shape])  # FSDP takes no scalars
    ranks = on_two_ranks(_sharded, subject)
    if isinstance(ranks[0], str):
        return ranks[0]
    for shards in ranks:
        assert_near(shards, _sharded(subject, None), subject.params())
    return None


def _sharded(subject: Subject, rank: int | None) -> list[Tensor]:
    model = Model(subject.params())
    if rank is not None:
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    subject.run(subject.build(model.parameters()), [], range(4), model=model)
    return [getattr(param, "full_tensor", lambda p=param: p)().detach() for param in model.parameters()]


CHECKS: dict[str, Callable[[Subject], str | None]] = {
    check.__name__: check
    for check in (
        *(keeps_groups, missing_gradients, all_shapes, empty_and_zero, memory_layouts, bfloat16, closure, changed_lr),
        *(resumes, resumes_from_dcp, counts_steps, added_group, sequential_lr, sparse, host_reads, capturable),
        *(leaves_inputs, ddp, fsdp2),
    )
}


def run_check(
    name: str,
    make: Callable[..., Optimizer],
    *,
    options: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
) -> str:
    """Run one check of `CHECKS`.

    Args:
        name: of the check.
        make: parameters, or a list of groups -> the optimizer. ``capturable=True`` is tried where the signature has it.
        options: of a second group, to be kept, saved and loaded, beside another lr and weight_decay.
        shapes: of the parameters; by default of all sorts, or of matrices alone if the optimizer cannot take others.

    Returns:
        How the optimizer refuses, if it does and the check allows it; else an empty string.

    Raises:
        AssertionError: the check fails.
        unittest.SkipTest: the check does not apply, which pytest reports as skipped.
        Exception: what the optimizer raises.
    """
    subject = Subject(make, shapes or SHAPES, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if shapes is None:
            params = subject.params()
            try:
                subject.run(subject.build(params), params, range(1))
            except Exception:
                subject = Subject(make, MATRICES, options)
        return CHECKS[name](subject) or ""


@dataclass(frozen=True)
class Report:
    """What came of each check: a status, ``passed``, ``refused``, ``failed`` or ``skipped``, and what happened."""

    results: dict[str, tuple[str, str]]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(status != "failed" for status, _ in self.results.values())

    def __str__(self) -> str:
        return "\n".join(f"{status:8} {name:18} {said}".rstrip() for name, (status, said) in self.results.items())


def check_optimizer(
    make: Callable[..., Optimizer], *, skip: Collection[str] = (), only: Collection[str] = (), **tried_with: Any
) -> Report:
    """Run all checks, or some.

    Args:
        make: see `run_check`.
        skip: names of checks to skip. ``ddp`` and ``fsdp2`` take longest: they start two processes.
        only: names of the checks to run; empty for all.
        tried_with: ``options`` and ``shapes`` of `run_check`.

    Raises:
        ValueError: there is no check of that name.
    """
    if unknown := {*skip, *only} - {*CHECKS}:
        raise ValueError(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    results = {}
    for name in only or CHECKS:
        try:
            said = "" if name in skip else run_check(name, make, **tried_with)
            results[name] = ("skipped" if name in skip else "refused" if said else "passed", said)
        except SkipTest as reason:
            results[name] = ("skipped", shorten(str(reason), 240))
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            results[name] = ("failed", kind + shorten(str(error), 240))
    return Report(results)
