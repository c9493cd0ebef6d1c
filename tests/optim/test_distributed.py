"""Two processes: averaged gradients, common decisions and divided matrix work."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import optim
from optim.engine.distributed import assign, divided
from optim.testing import assert_same
from tests.optim.cases import CASES, FAMILY
from tests.optim.test_group_step import bad_step, make, without_skips
from tests.optim.training import make_parameters, run, same, values

WORLD = 2
# with parameters of all sorts: stacked, in two dtypes, and without matrices
DIVIDED = {
    "Muon_svd": partial(optim.Muon, orthogonalization="svd", stacked_matrices=True),
    "MuonLaProp": optim.MuonLaProp,
    "NorMuon": optim.NorMuon,
    "Scion": optim.Scion,
    "Rubik": optim.Rubik,
    "SOAP_split": partial(optim.SOAP, split=True, max_precond_dim=16, precondition_1d=True),
    "blocks": lambda groups, **options: optim.NorMuon([groups[0], {**groups[1], "blocks": 2, "dims": [-1]}], **options),
    "PSGDKron": optim.PSGDKron,
    "PSGDKron_cached": partial(optim.PSGDKron, cached=True, delayed=True, store_triu_as_line=False),
}


def averaged(rank: int) -> list[dict[str, torch.Tensor]]:
    """Train with averaged gradients, and another random state than the other process."""
    found = []
    for case in FAMILY:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)))
        optimizer = case.factory(model.named_parameters(), storage_dtype="bfloat16")
        random.seed(rank)
        torch.manual_seed(rank + 1)
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
        found.append(model.module.state_dict())
    return found


def skipping(rank: int) -> dict[str, Any]:
    """Step with gradients that nobody has averaged: in two steps those of one process are bad."""
    found = {}
    for case in CASES:
        params = make_parameters()
        optimizer = make(case, params)
        for step in range(4):
            bad_step(optimizer, params, 3, float("nan") if step in (1, 2) and rank == step - 1 else 0.5, step)
        found[case.name] = values(params), without_skips(optimizer), optimizer.skipped_steps
    return found


def trained(make_optimizer, **options):
    params = [param for seed in range(3) for param in make_parameters(seed=seed)] + make_parameters(torch.bfloat16)
    # the first group has no matrices
    optimizer = make_optimizer([{"params": params[:3]}, {"params": params[3:]}], **options)
    run(optimizer, params, range(5))
    return params, optimizer


def dividing(rank: int) -> dict[str, Any]:
    """Divide some work, and compare steps with divided work with those without."""
    calls: list[int] = []
    dtypes = (torch.float32, torch.float64)
    inputs = [torch.full((size,), float(size), dtype=dtype) for size in (1, 5, 2, 4) for dtype in dtypes]
    like = [[x, x] for x in inputs]
    results = divided(lambda x: (calls.append(x.numel()), [x * 2, x * 3])[1], inputs, [x.numel() for x in inputs], like)
    same_bits = {}
    for name, make_optimizer in DIVIDED.items():
        (params, optimizer), (others, other) = trained(make_optimizer, shard_matrix_work=True), trained(make_optimizer)
        states = [
            [value for param in some for value in o.state[param].values() if isinstance(value, torch.Tensor)]
            for some, o in ((params, optimizer), (others, other))
        ]
        same_bits[name] = same(params, others) and same(*states)
    return {"calls": calls, "results": results, "same_bits": same_bits}


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    torch.save([work(rank) for work in (averaged, skipping, dividing)], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture
def one_process(tmp_path):
    """Return a mesh of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[Any]]:
    """Return what each process found; starting them takes most of the time."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    mp.spawn(_work, args=(str(folder),), nprocs=WORLD)
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    return dict(zip(("averaged", "skipping", "dividing"), zip(*ranks, strict=True), strict=True))


def test_averaged_gradients_are_rounded_to_the_same_bits_whatever_the_random_states(found):
    torch.manual_seed(0)
    start = nn.Linear(6, 20).weight
    for case, first, second in zip(FAMILY, *found["averaged"], strict=True):
        assert not torch.equal(first["0.weight"], start)
        assert all(torch.equal(first[key], second[key]) for key in first), case.name


def test_all_ranks_skip_where_one_of_them_has_a_bad_gradient(params, case, found):
    optimizer = make(case, params)
    for step in (0, 3):
        bad_step(optimizer, params, 3, 0.5, step)
    for rank in found["skipping"]:
        weights, state, num_skipped = rank[case.name]
        assert num_skipped == 2
        assert same(weights, params)
        assert_same(without_skips(optimizer), state, "state")


def test_each_process_computes_a_part_and_all_get_everything(found):
    ranks = found["dividing"]
    assert sorted(ranks[0]["calls"] + ranks[1]["calls"]) == [1, 1, 2, 2, 4, 4, 5, 5]
    assert sum(ranks[0]["calls"]) == sum(ranks[1]["calls"])
    for rank in ranks:
        sizes = [1, 1, 5, 5, 2, 2, 4, 4]
        assert [x.tolist() for x, _ in rank["results"]] == [[2.0 * size] * size for size in sizes]
        assert [y.tolist() for _, y in rank["results"]] == [[3.0 * size] * size for size in sizes]
        assert [x.dtype for x, _ in rank["results"]] == [torch.float32, torch.float64] * 4


@pytest.mark.parametrize("name", DIVIDED)
def test_divided_steps_have_the_bits_of_undivided_ones(found, name):
    assert [rank["same_bits"][name] for rank in found["dividing"]] == [True] * WORLD


def test_one_process_does_all_the_work():
    assert same(trained(optim.Muon, shard_matrix_work=True)[0], trained(optim.Muon)[0])


def test_the_dearest_work_goes_first_and_to_the_rank_with_least():
    assert assign([1.0, 5.0, 3.0, 3.0], 2) == [0, 0, 1, 1]
    assert assign([1.0, 1.0, 1.0], 4) == [0, 1, 2]
    assert assign([], 2) == []


@pytest.mark.parametrize(
    ("options", "names"),
    [({"capturable": True}, "NormBall"), ({"mars": True, "gradient_clipping": "global_norm"}, "NormBall")],
)
def test_what_an_owner_cannot_do_is_refused_by_name(options, names, one_process):
    model = nn.Linear(4, 3)
    fully_shard(model, mesh=one_process)
    with pytest.raises(ValueError, match=f"Scion: {names} needs whole parameters, and weight is"):
        optim.Scion(model.named_parameters(), **options)
