"""Matrix work divided over processes: each computes a part, and all get the bits of the undivided work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import optim
from optim.engine.sharding import assign, divided
from optim.muon.orthogonalize import Orthogonalize
from optim.transforms.clipping.by_global_norm import ClipByGlobalNorm
from optim.transforms.learning_rate import LearningRate
from tests.optim.training import make_parameters, run, same

WORLD = 2
# with parameters of all sorts: stacked, in two dtypes, and without matrices
OPTIMIZERS = {
    "Muon": partial(optim.Muon, weight_decay=0.1),
    "Muon_svd": partial(optim.Muon, orthogonalization="svd", stacked_matrices=True),
    "MuonLaProp": optim.MuonLaProp,
    "NorMuon": optim.NorMuon,
    "Scion": optim.Scion,
    "SOAP": optim.SOAP,
    "SOAP_split": partial(optim.SOAP, split=True, max_precond_dim=16, precondition_1d=True),
    "PSGDKron": optim.PSGDKron,
    "PSGDKron_cached": partial(optim.PSGDKron, cached=True, delayed=True, store_triu_as_line=False),
}


def parameters():
    return [*make_parameters(), *make_parameters(seed=1), *make_parameters(torch.bfloat16), *make_parameters(seed=2)]


def trained(make, **options):
    params = parameters()
    # the first group has no matrices
    optimizer = make([{"params": params[:3]}, {"params": params[3:]}], **options)
    run(optimizer, params, range(5))
    return params, optimizer


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    calls: list[int] = []
    inputs = [
        torch.full((size,), float(size), dtype=dtype)
        for size in (1, 5, 2, 4)
        for dtype in (torch.float32, torch.float64)
    ]
    like = [[x, x] for x in inputs]
    results = divided(lambda x: (calls.append(x.numel()), [x * 2, x * 3])[1], inputs, [x.numel() for x in inputs], like)
    same_bits = {}
    for name, make in OPTIMIZERS.items():
        (params, optimizer), (others, other) = trained(make, shard_matrix_work=True), trained(make)
        states = [
            [value for param in some for value in o.state[param].values() if isinstance(value, torch.Tensor)]
            for some, o in ((params, optimizer), (others, other))
        ]
        same_bits[name] = same(params, others) and same(*states)
    torch.save({"calls": calls, "results": results, "same_bits": same_bits}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_work, args=(str(folder),), nprocs=WORLD)
    return [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(WORLD)]


def test_each_process_computes_a_part_and_all_get_everything(ranks):
    assert sorted(ranks[0]["calls"] + ranks[1]["calls"]) == [1, 1, 2, 2, 4, 4, 5, 5]
    assert sum(ranks[0]["calls"]) == sum(ranks[1]["calls"])
    for rank in ranks:
        sizes = [1, 1, 5, 5, 2, 2, 4, 4]
        assert [x.tolist() for x, _ in rank["results"]] == [[2.0 * size] * size for size in sizes]
        assert [y.tolist() for _, y in rank["results"]] == [[3.0 * size] * size for size in sizes]
        assert [x.dtype for x, _ in rank["results"]] == [torch.float32, torch.float64] * 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_divided_steps_have_the_bits_of_undivided_ones(ranks, name):
    assert [rank["same_bits"][name] for rank in ranks] == [True] * WORLD


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process_does_all_the_work(name):
    divided_params, _ = trained(OPTIMIZERS[name], shard_matrix_work=True)
    params, _ = trained(OPTIMIZERS[name])
    assert same(divided_params, params)


def test_the_dearest_work_goes_first_and_to_the_rank_with_least():
    assert assign([1.0, 5.0, 3.0, 3.0], 2) == [0, 0, 1, 1]
    assert assign([1.0, 1.0, 1.0], 4) == [0, 1, 2]
    assert assign([], 2) == []


def test_no_rank_has_a_third_more_than_its_share():
    costs = [float(256 * 256 * cols) for cols in (960, 768, 576, 512, 256) for _ in range(10)] + [500.0 * 500 * 512]
    owners = assign(costs, 8)
    loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(8)]
    assert max(loads) <= 4 / 3 * max(sum(costs) / 8, max(costs))


def test_clipping_is_still_noted_for_health():
    params = make_parameters()
    transforms = (ClipByGlobalNorm(1e-3), Orthogonalize(shard_matrix_work=True), LearningRate())
    optimizer = optim.chain(*transforms, lr=0.1)(params)
    health = optim.Health(optimizer, every=1)
    run(optimizer, params, range(1))
    assert health.take()["health/0/clipped_share"] == 1.0
