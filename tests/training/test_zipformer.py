"""A Zipformer, in which much is random and changes with time, trains as exactly as anything else."""

from __future__ import annotations

import pytest
import torch

from asr.models.encoders.zipformer.encoder import ZipformerEncoder
from asr.training.module import TrainingModule
from tests.training.runs import same
from tests.training.tiny import NUM_FEATURES, batch_of, tiny_module


def module_with_zipformer() -> TrainingModule:
    module = tiny_module()
    torch.manual_seed(0)
    module.recognizer.encoder = ZipformerEncoder(
        NUM_FEATURES,
        encoder_dim=[8, 12],
        encoder_unmasked_dim=[8, 8],
        feedforward_dim=[8, 8],
        num_encoder_layers=[1, 1],
        num_heads=[1, 1],
        cnn_module_kernel=[3, 3],
        downsampling_factor=[1, 2],
        # oneDNN 3.12 (torch 2.13) computes bfloat16 convolutions of two channels wrongly with AMX
        subsampling_channels=[8, 8, 8],
        ref_duration_s=0.01,
    )
    return module


@pytest.mark.slow
def test_two_processes_that_go_on_give_the_same_weights_and_the_same_state_of_whitening(ranks):
    left = [rank.left["with_a_zipformer"] for rank in ranks]
    assert all(same(of_rank["whole"], of_rank["resumed"]) for of_rank in left)
    weights = [{k: v for k, v in of_rank["whole"].items() if not k.endswith(".probability")} for of_rank in left]
    assert same(*weights)
    assert len({float(value) for name, value in left[0]["whole"].items() if name.endswith(".probability")}) == 2


def test_every_parameter_has_a_gradient_whatever_is_left_out():
    encoder = module_with_zipformer().recognizer.encoder.train()
    batch, positions_left_out = batch_of(90, 61), 0
    for seed in range(8):
        torch.manual_seed(seed)
        encoder.set_trained_seconds(0.0)
        encoder.zero_grad()
        encodings, _ = encoder(batch.features, batch.num_frames)
        encodings.sum().backward()
        assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []
        gradients = (p.grad for name, p in encoder.named_parameters() if "linear_pos" in name)
        positions_left_out += sum(not gradient.any() for gradient in gradients)
    assert positions_left_out > 0
