"""When passes and updates are captured again, and what graphs share. What they compute is in tests/gpu."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import optim
from asr.models.encoders.transformer import TransformerEncoder
from asr.training import cuda_graphs
from asr.training.cuda_graphs import STEPS, CudaGraphs, GraphedDDPStrategy, GraphedEncoder, GraphedUpdate, rounded
from asr.training.module import TrainingModule
from tests.gpu.recorded_graphs import recorded_graphs
from tests.training import runs
from tests.training.tiny import tiny_module


def test_sizes_are_rounded_up_by_at_most_a_twelfth_to_twelve_of_each_doubling():
    sizes = range(1, 3000)
    assert all(size <= rounded(size) <= size * (1 + 1 / STEPS) for size in sizes)
    assert all(rounded(rounded(size)) == rounded(size) for size in sizes)
    assert len({rounded(size) for size in sizes if 512 < size <= 1024}) == STEPS


@pytest.mark.parametrize("frames", [203, 208])
def test_padding_to_one_of_a_few_shapes_changes_neither_encodings_nor_gradients(monkeypatch, frames):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)
    torch.manual_seed(0)
    encoder = TransformerEncoder(8, 16, 1, 2, 16, dropout=0.0, subsampling_channels=2).double().train()
    features, num_frames = torch.randn(17, frames, 8).double(), torch.randint(frames // 2, frames + 1, (17,))
    found = []
    for encode in (encoder, GraphedEncoder(encoder)):
        encodings, lengths = encode(features, num_frames)
        valid = torch.arange(encodings.shape[1]) < lengths.unsqueeze(1)
        rows = encodings[valid]
        gradients = torch.autograd.grad(rows.square().sum(), list(encoder.parameters()))
        found.append((rows, lengths, torch.cat([gradient.flatten() for gradient in gradients])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def forward(self, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return features * self.scale, num_frames


@pytest.fixture
def recorded():
    with recorded_graphs():
        yield


def test_what_is_frozen_or_trained_from_now_on_is_captured_anew(recorded):
    encoder = Scale()
    encode, batch = GraphedEncoder(encoder), (torch.randn(2, 4, 3), torch.tensor([4, 3]))
    for parameter in (encoder.unused, encoder.scale):
        for _ in range(2):
            encode(*batch)[0].sum().backward()
        assert len(encode.passes) == 1
        assert encoder.unused.grad is None
        parameter.requires_grad_(requires_grad=False)
    assert not encode(*batch)[0].requires_grad


def test_freezing_takes_a_new_pool_because_the_former_one_ends_with_its_graphs(recorded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    encoder = Scale()
    encode, batch = GraphedEncoder(encoder), (torch.randn(2, 4, 3), torch.tensor([4, 3]))
    pool = encode.pool
    encode(*batch)
    assert encode.pool is pool
    encoder.unused.requires_grad_(requires_grad=False)
    encode(*batch)
    assert encode.pool is not pool


def test_passes_of_all_shapes_share_what_they_read_and_write_and_those_used_last_are_kept(recorded, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 2)
    encode = GraphedEncoder(Scale())

    def run(size: int) -> None:
        encode(torch.randn(size, 8, 3), torch.full((size,), 8))[0].sum().backward()

    for size in (8, 7, 8, 7):
        run(size)
    eight, seven = encode.passes.values()
    for name in ("features", "num_frames", "lengths"):
        assert getattr(eight, name).untyped_storage().data_ptr() == getattr(seven, name).untyped_storage().data_ptr()
    run(8)
    run(6)
    kept, _ = encode.passes.values()
    assert kept is eight


def test_an_update_is_captured_for_the_options_statistics_and_rates_that_are_there(recorded):
    parameters, others = ([nn.Parameter(torch.ones(3))] for _ in range(2))
    optimizers = [optim.AdamW(each, lr=0.1, capturable=True) for each in (parameters, others)]
    optimizer = optimizers[0]
    captured = GraphedUpdate(optimizer)
    optimizer.run_updates_by(captured)
    start = copy.deepcopy(optimizer.state_dict())

    def forget_state(one: torch.optim.Optimizer) -> None:
        one.state.clear()

    def replace_rate(one: torch.optim.Optimizer) -> None:
        one.param_groups[0]["lr"] = torch.tensor(0.0)

    changes = {
        "nothing": lambda one: None,
        "option": lambda one: one.param_groups[0].update(weight_decay=0.5),
        "rate filled": lambda one: one.param_groups[0]["lr"].fill_(0.2),
        "state loaded": lambda one: one.load_state_dict(start),
        "state cleared": forget_state,
        "rate replaced": replace_rate,
    }
    graphs = set()
    for change in changes.values():
        for one, of_one in zip(optimizers, (parameters, others), strict=True):
            change(one)
            of_one[0].grad = torch.full((3,), 0.5)
            for _ in range(4):
                one.step()
        assert torch.equal(parameters[0], others[0])
        graphs.add(captured.graph)
    assert None not in graphs
    assert len(graphs) == len(changes) - 1  # a rate that is filled needs no other graph


def test_on_several_ranks_a_parameter_without_a_gradient_is_named(monkeypatch):
    strategy, module = GraphedDDPStrategy(wraps=False), tiny_module()
    strategy._lightning_module, module.all_parameters = module, list(module.parameters())
    monkeypatch.setattr(GraphedDDPStrategy, "world_size", 2)
    monkeypatch.setattr(TrainingModule, "trainer", None)
    monkeypatch.setattr(cuda_graphs, "ends_update", lambda trainer: True)
    with pytest.raises(RuntimeError, match=r"recognizer\.encoder"):
        strategy.post_backward(torch.zeros(()))


@pytest.mark.parametrize(("idle", "has_room"), [(0, True), (40, True), (41, False)])
def test_a_pass_is_captured_if_twice_the_largest_fits_beside_what_graphs_keep(monkeypatch, idle, has_room):
    parts = [
        {"segment_pool_id": (0, 0), "total_size": 30, "allocated_size": 10, "device": 0},
        {"segment_pool_id": (0, 7), "total_size": idle + 5, "allocated_size": 5, "device": 0},
        {"segment_pool_id": (0, 7), "total_size": 99, "allocated_size": 0, "device": 1},
    ]
    memory = {"memory_allocated": 15, "max_memory_allocated": 45, "memory_reserved": 35 + idle, "current_device": 0}
    for name, value in {**memory, "mem_get_info": (80 - idle, 200), "memory_snapshot": parts}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    # a pass of 30; 100 are free or cached, less what is idle in the pool of graphs
    assert cuda_graphs._has_room() == has_room


@pytest.mark.slow
def test_ranks_with_captured_passes_make_the_updates_of_distributed_data_parallel(ranks):
    """Weights, and the state of whitening, which all ranks have from the first."""
    first, second = (rank.left["with_captured_passes"] for rank in ranks)
    torch.testing.assert_close(first["captured"], first["wrapped"], rtol=1e-4, atol=1e-6)
    assert runs.same(first["captured"], second["captured"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_with_capturable_updates_is_resumed_bit_for_bit(tmp_path, monkeypatch, accumulate):
    monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(lambda named: optim.Eve(list(named), lr=0.01)))

    def trained(folder: str, max_steps: int) -> dict[str, torch.Tensor]:
        options = {"callbacks": [CudaGraphs(any_encoder=True, updates=True)], "accumulate_grad_batches": accumulate}
        module = runs.run(tmp_path / folder, max_steps, **options)
        assert isinstance(module.trainer.optimizers[0].param_groups[0]["lr"], torch.Tensor)
        return module.recognizer.state_dict()

    with recorded_graphs() as graphs:
        trained("resumed", 4)
        resumed = trained("resumed", 8)
        assert graphs.num_replays > 0
        assert runs.same(resumed, trained("whole", 8))
