"""Every optimizer on any number of processes does what it does on one: averaged gradients, shards, and both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
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


class Model(nn.Module):
    """Parameters of all sorts, some of equal shape; rows do not divide by the number of processes, or are too few.

    Micro-batches choose the gradients, so that averages over processes round like those of one: no element cancels,
    singular values are apart, and no optimizer magnifies the last bits.
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.params = nn.ParameterList(torch.randn(shape, generator=generator) for shape in SHAPES)
        signs = [torch.randint(0, 2, shape, generator=generator) * 2.0 - 1 for shape in SHAPES]
        self.signs = [HADAMARD if shape == (8, 8) else x for shape, x in zip(SHAPES, signs, strict=True)]

    def forward(self, step: int, rank: int, world: int) -> Tensor:
        """Return the loss of a share of a batch."""
        generator = torch.Generator().manual_seed(step + 1)
        total = torch.zeros(())
        for param, signs in zip(self.params, self.signs, strict=True):
            common = 0.75 + torch.rand(signs.shape, generator=generator)
            samples = 0.5 * torch.rand(BATCH, *signs.shape, generator=generator)[rank::world]
            total = total + (param * (signs * (common + samples).mean(0) + 0.02 * param)).sum()
        return total


def train(model: nn.Module, optimizer: Any, steps: range, rank: int = 0, world: int = 1) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(step, rank, world).backward()
        optimizer.step()


def result(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Return whole parameters and statistics."""
    params = {key.removeprefix("module."): param for key, param in model.named_parameters()}
    whole = {key: getattr(param, "full_tensor", lambda p=param: p)().detach().clone() for key, param in params.items()}
    saved = copy.deepcopy(optimizer.whole_state_dict())
    return {"params": whole, "state": saved["state"], "groups": saved["param_groups"]}


def prepared(make_optimizer: Callable[..., Any], model: nn.Module, start: dict[str, Any] | None) -> Any:
    """Return an optimizer, which continues with its model if there is something to continue."""
    if start is not None:
        own = getattr(model, "module", model)
        set_model_state_dict(own, {**start["params"]}, options=StateDictOptions(full_state_dict=True))
    optimizer = make_optimizer((key.removeprefix("module."), param) for key, param in model.named_parameters())
    if start is not None:
        optimizer.load_state_dict({"state": start["state"], "param_groups": start["groups"]})
    return optimizer


def on_one(make_optimizer: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return what one process has half-way and at the end."""
    model = Model()
    optimizer = prepared(make_optimizer, model, None)
    train(model, optimizer, range(HALF_WAY))
    middle = result(model, optimizer)
    train(model, optimizer, range(HALF_WAY, 2 * HALF_WAY))
    return [middle, result(model, optimizer)]


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
    dist.all_gather_object(shares, {row: on_one(ROWS[row][0]) for row in [*ROWS][rank::WORLD]})
    all_expected = {row: expected for share in shares for row, expected in share.items()}
    for row, (make_optimizer, _) in ROWS.items():
        expected = all_expected[row]
        start = expected[0]
        for name, (size, shard) in wrap.items():
            middle = None
            if rank < size:
                model = shard(Model())
                optimizer = prepared(make_optimizer, model, None)
                train(model, optimizer, range(HALF_WAY), rank, size)
                middle = result(model, optimizer)
                model = shard(Model())
                optimizer = prepared(make_optimizer, model, start)
                train(model, optimizer, range(HALF_WAY, 2 * HALF_WAY), rank, size)
                end = result(model, optimizer)
                found[row, name] = tuple(
                    max(differences(x[key], y[key]) for key in ("params", "state"))
                    for x, y in zip((middle, end), expected, strict=True)
                )
            # those who have not trained continue with the others
            message = [middle]
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
