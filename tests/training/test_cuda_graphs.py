"""trainer.capture=true where nothing can be captured: shapes. What graphs compute, scripts/gpu_report.py shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import optim
from asr.models.encoders.transformer import TransformerEncoder
from asr.training import cuda_graphs
from asr.training.cuda_graphs import STEPS, CapturedForward, CapturedUpdate, CudaGraphs, rounded
from tests.gpu.recorded_graphs import recorded_graphs
from tests.training import runs
from tests.training.tiny import tiny_module


def test_sizes_are_rounded_up_by_at_most_a_sixteenth_to_sixteen_of_each_doubling():
    sizes = range(1, 3000)
    assert all(size <= rounded(size) <= size * (1 + 1 / STEPS) for size in sizes)
    assert len({rounded(size) for size in sizes if 512 < size <= 1024}) == STEPS


@pytest.mark.parametrize("frames", [203, 208])
def test_padding_to_one_of_a_few_shapes_changes_neither_encodings_nor_gradients(monkeypatch, frames):
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 0)
    torch.manual_seed(0)
    encoder = TransformerEncoder(8, 16, 1, 2, 16, dropout=0.0, subsampling_channels=2).double().train()
    features, num_frames = torch.randn(17, frames, 8).double(), torch.randint(frames // 2, frames + 1, (17,))
    found = []
    for encode in (encoder, CapturedForward(encoder)):
        encodings, lengths = encode(features, num_frames)
        valid = torch.arange(encodings.shape[1]) < lengths.unsqueeze(1)
        rows = encodings[valid]
        gradients = torch.autograd.grad(rows.square().sum(), list(encoder.parameters()))
        found.append((rows, lengths, torch.cat([gradient.flatten() for gradient in gradients])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-12)


class SeesAutocast(torch.autograd.Function):
    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        SeesAutocast.seen.append(torch.is_autocast_enabled("cuda"))
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        SeesAutocast.seen.append(torch.is_autocast_enabled("cuda"))
        return gradient


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))

    def forward(self, features: torch.Tensor, num_frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return SeesAutocast.apply(features * self.scale), num_frames


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(SeesAutocast, "seen", [])
    with recorded_graphs():
        yield


@pytest.mark.filterwarnings("ignore:User provided device_type")
def test_a_pass_is_captured_as_it_is_computed_backward_without_autocast(recorded):
    encoder = Scale()
    encode, batch = CapturedForward(encoder), (torch.randn(2, 4, 3), torch.tensor([4, 3]))
    for _ in range(2):
        torch.set_autocast_enabled("cuda", True)
        try:
            encodings, _ = encode(*batch)
        finally:
            torch.set_autocast_enabled("cuda", False)
        encodings.sum().backward()
    assert SeesAutocast.seen == [True, False] * 2


def test_what_is_frozen_or_trained_from_now_on_is_captured_anew(recorded):
    encoder = Scale()
    encode, batch = CapturedForward(encoder), (torch.randn(2, 4, 3), torch.tensor([4, 3]))
    for parameter in (encoder.unused, encoder.scale):
        for _ in range(2):
            encode(*batch)[0].sum().backward()
        assert len(encode.passes) == 1
        assert encoder.unused.grad is None
        parameter.requires_grad_(requires_grad=False)
    assert not encode(*batch)[0].requires_grad


def test_an_update_is_captured_for_its_options_and_for_gradients_that_stay(recorded):
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = optim.AdamW([parameter], lr=0.1, capturable=True)
    captured = vars(optimizer)["update"] = CapturedUpdate(optimizer, None)

    def graph_of_four_steps() -> object:
        before = float(optimizer.state[parameter].get("step", 0))
        for _ in range(4):
            optimizer.step()
        assert optimizer.state[parameter]["step"] == before + 4
        return captured.graph

    first = graph_of_four_steps()
    optimizer.param_groups[0]["weight_decay"] = 0.5
    second = graph_of_four_steps()
    parameter.grad = torch.ones(3)
    third = graph_of_four_steps()
    assert len({first, second, third, None}) == 4
    optimizer.param_groups[0]["lr"].fill_(0.2)
    torch._foreach_zero_([parameter.grad])
    assert graph_of_four_steps() is third


def test_on_several_ranks_a_parameter_without_a_gradient_is_named():
    graphs, module = CudaGraphs(any_encoder=True), tiny_module()
    graphs.is_on, module.all_parameters = True, list(module.parameters())
    trainer = SimpleNamespace(world_size=2, fit_loop=SimpleNamespace(_should_accumulate=lambda: False))
    with pytest.raises(RuntimeError, match=r"recognizer\.encoder"):
        graphs.on_after_backward(trainer, module)


@pytest.mark.slow
def test_ranks_with_captured_passes_make_the_updates_of_distributed_data_parallel(ranks):
    """Weights, and the state of whitening, which all ranks have from the first."""
    first, second = (rank.left["with_captured_passes"] for rank in ranks)
    torch.testing.assert_close(first["captured"], first["wrapped"], rtol=1e-4, atol=1e-6)
    assert runs.same(first["captured"], second["captured"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_with_capturable_updates_is_resumed_bit_for_bit_and_puts_everything_back(
    tmp_path, monkeypatch, accumulate
):
    monkeypatch.setattr(runs, "tiny_module", lambda: tiny_module(lambda named: optim.Eve(list(named), lr=0.01)))

    def trained(folder: str, max_steps: int) -> dict[str, torch.Tensor]:
        options = {"callbacks": [CudaGraphs(any_encoder=True)], "accumulate_grad_batches": accumulate}
        module = runs.run(tmp_path / folder, max_steps, **options)
        assert "forward" not in vars(module.recognizer.encoder)
        optimizer = module.trainer.optimizers[0]
        assert "update" not in vars(optimizer)
        assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
        return module.recognizer.state_dict()

    with recorded_graphs() as graphs:
        trained("resumed", 4)
        resumed = trained("resumed", 8)
        assert graphs.num_replays > 0
        assert runs.same(resumed, trained("whole", 8))
