"""Which parameters of every encoder and head Muon moves, and which AdamW."""

from __future__ import annotations

import re

import pytest
from torch import nn

from asr.run.parts import build_update_parts, outline_recognizer
from asr.training.optimizer_protocols import NamedParameters
from optim.engine.blocks import parts_of
from tests.configs import composed

# every parameter of more than one axis that AdamW takes, by its name without numbers, with its shape
LEFT_TO_ADAMW = {
    "transformer_xxs": {
        "encoder.subsampling.convolutions.#.weight": (16, 1, 3, 3),  # the first convolution: one input channel
        "head.project.weight": (500, 144),
    },
    "conformer_xs": {
        "encoder.subsampling.convolutions.#.weight": (32, 1, 3, 3),
        "encoder.layers.#.convolution.convolution.weight": (144, 1, 31),  # depthwise
        "head.project.weight": (500, 144),
    },
    "zipformer_xs": {
        "encoder.encoder_embed.conv#.weight": (4, 1, 3, 3),
        "encoder.encoder_embed.convnext.depthwise_conv.weight": (32, 1, 7, 7),
        "encoder.encoders.#.layers.#.conv_module#.depthwise_conv.weight": (96, 1, 31),
        "head.project.weight": (500, 128),
    },
    "zipformer_xs causal": {
        "encoder.encoder_embed.conv#.weight": (4, 1, 3, 3),
        "encoder.encoder_embed.convnext.depthwise_conv.weight": (32, 1, 7, 7),
        "encoder.encoders.#.layers.#.conv_module#.depthwise_conv.causal_conv.weight": (96, 1, 16),
        "encoder.encoders.#.layers.#.conv_module#.depthwise_conv.chunkwise_conv.weight": (96, 1, 31),
        "encoder.encoders.#.layers.#.conv_module#.depthwise_conv.chunkwise_conv_scale": (2, 96, 31),
        "head.project.weight": (500, 128),
    },
    "zapformer_xs": {
        "encoder.encoder_embed.conv#.weight": (4, 1, 3, 3),
        "encoder.encoder_embed.convnext.depthwise_conv.weight": (32, 1, 7, 7),
        "encoder.encoders.#.layers.#.conv_module.depthwise_conv.weight": (96, 1, 31),
        "head.project.weight": (500, 128),
    },
}
HEADS = [(encoder, head) for encoder in LEFT_TO_ADAMW for head in ("ctc", "cr_ctc")] + [
    ("transformer_xxs", "inter_ctc")
]


def built(*words, vocab_size=500):
    options = composed(*words).options
    named = dict(outline_recognizer(options, vocab_size, 80).named_parameters())
    return named, build_update_parts(options).optimizer_factory(named.items())


def without_numbers(name):
    # a module's wrapper adds one of its own to the names of linear layers and scales
    return re.sub(r"\d+", "#", name)


@pytest.mark.parametrize(("encoder", "head"), HEADS)
def test_every_parameter_is_moved_by_the_optimizer_that_suits_it(encoder, head):
    name, *causal = encoder.split()
    named, optimizer = built(
        f"encoder={name}", f"head={head}", "optimizer=muon", *["encoder.causal=true"] * len(causal)
    )
    members = [type(member).__name__ for member in optimizer.optimizers]
    assert members == ["AdamW", "Muon"]
    adamw, muon = (group["param_names"] for group in optimizer.param_groups)
    assert sorted(adamw + muon) == sorted(named)
    assert all(named[n].dim() >= 2 and 1 not in named[n].shape[:2] for n in muon)
    # of those that repeat with other shapes, the first
    large = {without_numbers(n): tuple(named[n].shape) for n in reversed(adamw) if named[n].dim() > 1}
    assert large == LEFT_TO_ADAMW[encoder]


# number and shape of the blocks of every parameter that is not one matrix as it is stored, for Muon
BLOCKS = {
    "transformer_xxs": {
        "encoder.subsampling.convolutions.#.weight": [(0, 16, 144)],
        "encoder.layers.#.attention.query_key_value.weight": [(12, 36, 144)],
    },
    "conformer_xs": {
        "encoder.subsampling.convolutions.#.weight": [(0, 32, 288)],
        "encoder.layers.#.attention.query_key_value.weight": [(12, 36, 144)],
        "encoder.layers.#.convolution.gate.weight": [(2, 144, 144)],
    },
    "zipformer_xs": {
        "encoder.encoder_embed.conv#.weight": [(0, 16, 36)],
        "encoder.encoders.#.layers.#.self_attn_weights.in_proj.weight": [(8, 32, 96), (4, 4, 96)],
        "encoder.encoders.#.layers.#.self_attn_weights.linear_pos.weight": [(4, 4, 48)],
        "encoder.encoders.#.layers.#.self_attn#.in_proj.weight": [(4, 12, 96)],
        "encoder.encoders.#.layers.#.nonlin_attention.in_proj.weight": [(3, 72, 96)],
        "encoder.encoders.#.layers.#.conv_module#.in_proj.weight": [(2, 96, 96)],
    },
    "zapformer_xs": {
        "encoder.encoder_embed.conv#.weight": [(0, 16, 36)],
        "encoder.encoders.#.layers.#.self_attn.qkp_in_proj.weight": [(8, 16, 96), (4, 4, 96)],
        "encoder.encoders.#.layers.#.self_attn.rel_pos.weight": [(4, 4, 64)],
        "encoder.encoders.#.layers.#.self_attn.vg_in_proj.weight": [(4, 24, 96), (2, 96, 96)],
        "encoder.encoders.#.layers.#.conv_module.in_proj.weight": [(2, 96, 96)],
    },
}


@pytest.mark.parametrize("encoder", BLOCKS)
def test_every_fused_parameter_of_an_encoder_is_the_matrices_that_its_module_says(encoder):
    options = composed(f"encoder={encoder}", "optimizer=muon", "parameter_rules.blocks=auto").options
    model = outline_recognizer(options, 500, 80)
    # as a run builds it: of small parameters first
    optimizer = build_update_parts(options).optimizer_factory(NamedParameters(model, small=True))
    optimizer.replace_params(dict(model.named_parameters()))
    muon = optimizer.param_groups[1]
    found = {
        without_numbers(name): [(part.num_blocks, *part.shape) for part in parts]
        for name, param in reversed([*zip(muon["param_names"], muon["params"], strict=True)])
        if (parts := parts_of(name, param.shape, muon))
    }
    assert found == BLOCKS[encoder]


ATTENTION = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "multihead_attn.in_proj_weight")
OF_HEADS = {
    "ctc_attention": {
        f"head.attention.layers.#.{name}" for name in (*ATTENTION, "multihead_attn.out_proj.weight", "linear#.weight")
    },
    "transducer": {"head.joiner.encoder_proj.weight", "head.joiner.decoder_proj.weight"},
}


@pytest.mark.parametrize("head", OF_HEADS)
def test_hidden_matrices_of_a_head_are_moved_as_those_of_an_encoder(head):
    _, optimizer = built("encoder=transformer_xxs", f"head={head}", "optimizer=muon")
    _, muon = (group["param_names"] for group in optimizer.param_groups)
    assert {without_numbers(n) for n in muon if n.startswith("head.")} == OF_HEADS[head]


@pytest.mark.parametrize("name", ["muon_laprop", "nor_muon", "scion"])
def test_optimizers_of_matrices_choose_these_rules_by_themselves(name):
    _, optimizer = built(f"optimizer={name}")
    assert [group["weight_decay"] > 0 for group in optimizer.param_groups] == [False, True]


def test_biases_of_recurrent_layers_are_no_matrices():
    optimizer = build_update_parts(composed("optimizer=muon").options).optimizer_factory(
        nn.GRU(4, 4, 2).named_parameters()
    )
    adamw, muon = (group["param_names"] for group in optimizer.param_groups)
    assert {name[:4] for name in adamw} == {"bias"}
    assert {name[:6] for name in muon} == {"weight"}


def test_another_choice_of_rules_wins():
    named, optimizer = built("optimizer=muon", "parameter_rules=none")
    assert (type(optimizer).__name__, len(optimizer.param_groups[0]["params"])) == ("Muon", len(named))
    _, optimizer = built("optimizer=adamw", "parameter_rules=matrices")
    assert [type(member).__name__ for member in optimizer.optimizers] == ["AdamW", "AdamW"]
    assert len(built("optimizer=adamw")[1].param_groups) == 2


def test_one_rate_tunes_both_optimizers_in_a_fixed_ratio():
    def rates(*words):
        return [group["lr"] for group in built("optimizer=muon", *words)[1].param_groups]

    assert rates() == [1.5e-3, 1.5e-3]
    assert rates("optimizer.lr=0.01", "parameter_rules.rules.0.lr_scale=0.3") == [0.003, 0.01]
    assert rates("+best_lr.muon=0.02") == [0.02, 0.02]
