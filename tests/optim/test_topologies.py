"""Every optimizer on any number of processes does what it does on one: averaged gradients, shards, and both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import optim
from optim import Sequential
from optim.transforms.adam import Adam
from optim.transforms.learning_rate import LearningRate
from optim.transforms.momentum import Momentum
from tests.optim.cases import CASES

WORLD, HALF_WAY, BATCH = 4, 10, 12
SHAPES = ((8, 8), (10, 4, 3), (10,), (8, 8), (1, 8), (1,), (8, 8))
TWO = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
HADAMARD = torch.linspace(1, 2, 8)[:, None] * torch.kron(torch.kron(TWO, TWO), TWO) * torch.linspace(1, 2, 8)
# each goes on from the one above
TOPOLOGIES: dict[str, Any] = {
    "ddp 2": 2,
    "fsdp 2": [0, 1],
    "ddp 3": 3,
    "fsdp 4": [0, 1, 2, 3],
    "hsdp": [[0, 1], [2, 3]],
}
RULES = [{"pattern": "0|1|3", "optimizer": partial(optim.NorMuon, lr=0.01)}, {"pattern": "2"}, {"pattern": "", "lr": 0}]
BLOCKS = [
    {"pattern": "0", "blocks": [2, 2, 4]},
    {"pattern": "1", "dims": [1]},
    {"pattern": "3", "heads": 4},
    {"pattern": ""},
]
CLIPPED = {"gradient_clipping": "global_norm"}


@optim.transform(shardable=True)
def reductions(update, batch):
    """Uses every number per parameter that a batch can reduce."""
    sizes = [batch.rms(update), batch.mean(update.abs()), batch.maximum(update), batch.minimum(update)]
    return update * (1 + batch.dot(update, batch.param)) + sum(sizes)


# the row of each optimizer, and what several rules, norms of all gradients, and other dtypes add
ROWS: dict[str, tuple[Callable[..., Any], float]] = {
    **{
        case.name: (case.factory, 2e-5 if case.not_shardable else 2e-6)
        for case in CASES
        if case.not_shardable not in ("EstimatedDistance", "PolyakStep")  # which join all parameters
    },
    "grouped": (optim.grouped(partial(optim.AdamW, lr=0.01), RULES), 2e-5),
    "blocks": (optim.grouped(partial(optim.MuonLaProp, lr=0.01), BLOCKS), 2e-5),
    "blocks, elementwise": (optim.grouped(partial(optim.AdamW, lr=0.01, gradient_clipping="l2"), BLOCKS), 2e-5),
    "capturable": (partial(optim.AdamW, lr=0.01, weight_decay=0.1, warmup_steps=3, capturable=True), 2e-6),
    "reductions": (
        optim.chain(Momentum(0.9), reductions(), Sequential(Adam(), name="b"), LearningRate(), lr=0.01),
        2e-5,
    ),
    "clipped": (partial(optim.AdamW, lr=0.01, mars=True, **CLIPPED), 2e-6),
    "clipped, owned": (partial(optim.Muon, **CLIPPED), 2e-5),
    "clipped by the median": (partial(optim.ScaledAdam, clipping_scale=1.0, clipping_update_period=5), 2e-6),
}


@cache
def micro_batch(step: int, rank: int, world: int) -> list[Tensor]:
    """Return what a share of a batch adds to the gradients, so that averages over processes round like those of one.

    No element cancels, singular values are apart, and no optimizer magnifies the last bits.
    """
    generator, gradients = torch.Generator().manual_seed(step + 1), []
    for number, shape in enumerate(SHAPES):
        signs = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(number)) * 2.0 - 1
        common = 0.75 + torch.rand(shape, generator=generator)
        samples = 0.5 * torch.rand(BATCH, *shape, generator=generator)[rank::world]
        gradients.append((HADAMARD if shape == (8, 8) else signs) * (common + samples).mean(0))
    return gradients


class Model(nn.Module):
    """Parameters of all sorts, some of equal shape; rows do not divide by the number of processes, or are too few."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.params = nn.ParameterList(torch.randn(shape, generator=generator) for shape in SHAPES)


class Models(nn.ModuleList):
    """A model for each row, so that all rows together cost one backward pass of many processes."""

    def __init__(self, rows: Sequence[str]) -> None:
        super().__init__(Model() for _ in rows)
        self.rows = rows

    def forward(self, step: int, rank: int, world: int) -> Tensor:
        """Return the loss of a share of a batch."""
        total = torch.zeros(())
        for model in self:
            for param, gradient in zip(model.params, micro_batch(step, rank, world), strict=True):
                total = total + (param * (gradient + 0.02 * param)).sum()
        return total


Results = dict[str, dict[str, Any]]


def train(models: nn.Module, optimizers: Mapping[str, Any], steps: range, rank: int = 0, world: int = 1) -> Results:
    """Return whole parameters and statistics of each row after these steps."""
    for step in steps:
        models(step, rank, world).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    results = {}
    for model, (row, optimizer) in zip(getattr(models, "module", models), optimizers.items(), strict=True):
        params = dict(model.named_parameters())
        whole = {key: getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for key, p in params.items()}
        saved = copy.deepcopy(optimizer.whole_state_dict())
        results[row] = {"params": whole, "state": saved["state"], "groups": saved["param_groups"]}
    return results


def optimizers_of(models: nn.Module, start: Results | None = None) -> dict[str, Any]:
    """Return an optimizer for each model, which both continue if there is something to continue."""
    own, optimizers = getattr(models, "module", models), {}
    if start is not None:
        values = (start[row]["params"] for row in own.rows)
        whole = {f"{place}.{key}": value for place, each in enumerate(values) for key, value in each.items()}
        set_model_state_dict(own, whole, options=StateDictOptions(full_state_dict=True))
    for model, row in zip(own, own.rows, strict=True):
        optimizers[row] = ROWS[row][0](model.named_parameters())
        if start is not None:
            optimizers[row].load_state_dict({"state": start[row]["state"], "param_groups": start[row]["groups"]})
    return optimizers


def on_one(rows: Sequence[str]) -> list[Results]:
    """Return what one process has half-way and at the end."""
    models = Models(rows)
    optimizers = optimizers_of(models)
    return [train(models, optimizers, range(HALF_WAY * half, HALF_WAY * (half + 1))) for half in (0, 1)]


def differences(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float:
    """Return the largest difference of two nested mappings of tensors and numbers, relative where they are large."""
    assert found.keys() == expected.keys()
    largest = 0.0
    for key, x in expected.items():
        y = found[key]
        if isinstance(x, Mapping):
            largest = max(largest, differences(y, x))
        elif isinstance(x, Tensor):
            assert (x.shape, x.dtype) == (y.shape, y.dtype), key
            largest = max(largest, ((x - y).abs().max() / x.abs().max().clamp(min=1)).item() if x.numel() else 0)
        else:
            assert x == y, key
    return largest


def on_all(rank: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the differences of every optimizer in every topology, half-way and at the end."""
    wrap: dict[str, Any] = {}
    for name, ranks in TOPOLOGIES.items():
        if name.startswith("ddp"):
            group, size = dist.new_group(list(range(ranks))), ranks
            wrap[name] = size, lambda model, group=group: DistributedDataParallel(model, process_group=group)
        else:
            mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("replicate", "shard")[-torch.tensor(ranks).dim() :])
            wrap[name] = mesh.size(), lambda model, mesh=mesh: fully_shard(model, mesh=mesh)
    found = {}
    # each process makes a part of what all compare with
    shares: list[Any] = [None] * WORLD
    dist.all_gather_object(shares, on_one([*ROWS][rank::WORLD]))
    middle, end = ({row: result for share in shares for row, result in share[half].items()} for half in (0, 1))
    start = middle
    for name, (size, shard) in wrap.items():
        own = None
        if rank < size:
            models = shard(Models([*ROWS]))
            own = train(models, optimizers_of(models), range(HALF_WAY), rank, size)
            models = shard(Models([*ROWS]))
            last = train(models, optimizers_of(models, start), range(HALF_WAY, 2 * HALF_WAY), rank, size)
            for row in ROWS:
                pairs = ((own[row], middle[row]), (last[row], end[row]))
                found[row, name] = tuple(
                    max(differences(x[key], y[key]) for key in ("params", "state")) for x, y in pairs
                )
        # those who have not trained continue with the others
        message = [own]
        dist.broadcast_object_list(message, src=0)
        start = message[0]
    return found


def share_of_memory(name: str) -> float:
    """Return the share of parameters, gradients and statistics that this process of four holds."""
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(24, 24), nn.Tanh())])
    whole, counts = sum(p.numel() for p in model.parameters()), []
    for each in (model, fully_shard(copy.deepcopy(model))):
        optimizer = getattr(optim, name)(each.named_parameters(), lr=0.01, skip_nonfinite=True)
        each(torch.ones(2, 24)).sum().backward()
        optimizer.step()
        assert optimizer.skipped_steps == 0
        parts = [getattr(p, "to_local", lambda p=p: p)() for p in each.parameters()]
        kept = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
        counts.append(
            2 * sum(p.numel() for p in parts) + sum(getattr(x, "to_local", lambda x=x: x)().numel() for x in kept)
        )
    assert counts[0] >= 2 * whole
    return counts[1] / counts[0]


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    shares = {name: share_of_memory(name) for name in ("AdamW", "Muon", "SOAP")}
    torch.save({**on_all(rank), "shares": shares}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[Any]:
    """Return what each process found; starting them takes seconds."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(_work, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("row", ROWS)
def test_any_number_of_processes_does_what_one_does_also_after_loading(row, topology, found):
    for rank in found:
        assert max(rank.get((row, topology), (0.0,))) <= ROWS[row][1]


def test_memory_falls_with_the_number_of_processes(found):
    for rank in found:
        assert max(rank["shares"].values()) <= 0.35
