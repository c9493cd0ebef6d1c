"""Every probability, bound, limit and initial weight is the authors', at any time of training."""

from __future__ import annotations

import inspect

import pytest
import torch

from asr.models.encoders.zipformer import schedules
from asr.models.encoders.zipformer.encoder import ZipformerEncoder, ZipformerEncoderLayer
from asr.models.encoders.zipformer.modules import BypassModule
from asr.models.encoders.zipformer.scaling import GRADIENT_SCALE, OFTEN, SELDOM, Balancer, SharedDropout, Whiten
from asr.models.encoders.zipformer.subsampling import ConvNeXt
from asr.models.icefall_weights import convert_encoder
from tests.models.zipformer.reference import Reference
from tests.models.zipformer.sizes import SMALL

OURS = {
    Balancer: lambda m: (m.min_positive, m.max_positive, m.min_abs, m.max_abs, m.probability, GRADIENT_SCALE),
    Whiten: lambda m: (m.num_groups, m.limit, m.gradient_scale, SELDOM, OFTEN),
    BypassModule: lambda m: (m.scale_min,),
    ZipformerEncoderLayer: lambda m: (
        m.attention_skip_rate,
        m.conv_skip_rate,
        m.ff_skip_rate,
        m.const_attention_rate,
        m.pos_skip_rate,
        m.skip_rate,
        *[m.dropout] * 3,
    ),
    ConvNeXt: lambda m: (m.layerdrop_rate,),
    SharedDropout: lambda m: (m.probability,),
}
THEIRS = {
    "Balancer": lambda m: (m.min_positive, m.max_positive, m.min_abs, m.max_abs, m.prob, m.grad_scale),
    "Whiten": lambda m: (m.num_groups, m.whitening_limit, m.grad_scale, m.min_prob, m.max_prob),
    "BypassModule": lambda m: (m.scale_min,),
    "ZipformerEncoderLayer": lambda m: (
        m.attention_skip_rate,
        m.conv_skip_rate,
        m.ff2_skip_rate,
        m.const_attention_rate,
        m.self_attn_weights.pos_emb_skip_rate,
        m.bypass.skip_rate,
        *(module.out_proj.dropout_p for module in (m.feed_forward1, m.feed_forward2, m.feed_forward3)),
    ),
    "ConvNeXt": lambda m: (m.layerdrop_rate,),
    "Dropout3": lambda m: (m.p,),
}


def settings(encoder: torch.nn.Module, kinds, key) -> list[list[tuple[float, ...]]]:
    """Return the numbers that modules of each kind have now, sorted."""
    return [
        sorted(tuple(round(float(n), 9) for n in read(m)) for m in encoder.modules() if key(m) == kind)
        for kind, read in kinds.items()
    ]


@pytest.fixture
def theirs(authors) -> Reference:
    torch.manual_seed(0)
    return Reference(authors, SMALL, causal=True).train()


@pytest.fixture
def ours() -> ZipformerEncoder:
    torch.manual_seed(0)
    return ZipformerEncoder(80, **SMALL, causal=True)


@pytest.mark.parametrize("time", [0, 900, 2500, 6000, 12_000, 30_000, 10**6])
def test_all_that_is_scheduled_has_the_authors_values(authors, theirs, ours, time):
    assert (
        inspect.signature(authors.scaling.limit_param_value).parameters["prob"].default == schedules.LIMIT_PROBABILITY
    )
    theirs.set_time(time)
    ours.batch_count.set(time)
    expected = settings(theirs, THEIRS, lambda module: type(module).__name__)
    found = settings(ours, OURS, type)
    assert all(expected)
    assert found == expected


def test_initial_weights_are_as_large_as_the_authors(theirs, ours):
    expected = convert_encoder(theirs.state_dict(), ours.state_dict())[0]
    for name, parameter in ours.named_parameters():
        size, wanted = (x.square().mean().sqrt() for x in (parameter.detach(), expected[name]))
        if (expected[name] == expected[name].flatten()[0]).all():
            assert torch.equal(parameter, expected[name]), name
        else:
            # of two samples of a uniform distribution; half or twice the size differs by 0.7
            assert (size / wanted).log().abs() < 3 * parameter.numel() ** -0.5, name
