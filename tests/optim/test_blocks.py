"""Blocks of a parameter do what parameters of their shape do, in one entry of the state."""

from __future__ import annotations

import copy
import io
import re
from functools import partial

import pytest
import torch
from torch import nn

import optim
from optim.engine import group_step
from optim.engine.param_batch import DRAW_KEY
from optim.engine.random import key_of
from tests.optim.test_group_step import dispatched, muon_with_adamw
from tests.optim.training import same, values


def rows(*sizes):
    return lambda x: x.split(sizes)


# shape, what it is, its blocks as parameters, and the rows at which they begin
PARAMS = [
    ((12, 10), {"blocks": 3}, rows(4, 4, 4), (0, 4, 8)),
    ((12, 10), {"blocks": 3}, rows(4, 4, 4), (0, 4, 8)),
    ((12, 10), {"blocks": [6, 4, 2], "heads": 2}, rows(3, 3, 2, 2, 1, 1), (0, 3, 6, 8, 10, 11)),
    ((14, 10), {"blocks": [4, 6, 4]}, rows(4, 6, 4), (0, 4, 10)),
    ((150, 90), {"blocks": 2}, rows(75, 75), (0, 75)),
    ((10, 12), {"blocks": 3, "dims": [1]}, lambda x: x.T.split(4), (0, 4, 8)),
    ((8, 5, 3), {"blocks": 2}, lambda x: x.flatten(1).split(4), (0, 4)),
    ((5, 8, 3), {"dims": [-2]}, lambda x: [x.transpose(0, 1).flatten(1)], (0,)),
    ((4, 3, 10), {"heads": 4, "dims": [0, 1]}, lambda x: x.unbind(), (0, 1, 2, 3)),
    ((6, 1, 5), {"blocks": 0}, lambda x: [x.flatten()], (0,)),
    ((4, 10), None, lambda x: [x], (0,)),
    ((5,), None, lambda x: [x], (0,)),
]
CASES = {
    **{name: getattr(optim, name) for name in ("Muon", "NorMuon", "MuonLaProp", "Scion", "SOAP", "Shampoo", "Rubik")},
    **{name: getattr(optim, name) for name in ("PSGDKron", "LearnedGradient", "Adafactor", "ScaledAdam", "AdamW")},
    "KL-SOAP": partial(optim.SOAP, kl_factors=True, orthogonalization="newton_schulz"),
    "divided": partial(optim.Muon, shard_matrix_work=True, gradient_clipping="global_norm", mars=True),
    "narrow": partial(optim.MuonLaProp, storage_dtype="bfloat16"),
    "ScheduleFree": optim.ScheduleFreeAdamW,
    "captured": partial(optim.Muon, capturable=True, update_norm="hyperball"),
}


class Twins:
    """An optimizer of parameters with blocks, and one of as many parameters as there are blocks."""

    def __init__(self, make, dtype=torch.float32):
        self.make, self.generator = make, torch.Generator().manual_seed(0)
        self.cuts = [cut for _, _, cut, _ in PARAMS]
        weights = self.draw(dtype)
        self.whole = [nn.Parameter(x) for x in weights]
        self.parts = [
            [nn.Parameter(y.clone().contiguous()) for y in cut(x)] for x, cut in zip(weights, self.cuts, strict=True)
        ]
        self.optimizer = self.build()
        # random numbers follow from names
        keys = [
            [f"{key_of(f'p{i}')}/{start}" for start in starts] if spec else [f"p{i}"]
            for i, (_, spec, _, starts) in enumerate(PARAMS)
        ]
        self.separate = make(
            [(k, p) for ks, ps in zip(keys, self.parts, strict=True) for k, p in zip(ks, ps, strict=True)]
        )

    def draw(self, dtype):
        return [torch.randn(shape, generator=self.generator).to(dtype) for shape, *_ in PARAMS]

    def build(self):
        specs = {f"p{i}": spec for i, (_, spec, _, _) in enumerate(PARAMS) if spec}
        return self.make([{"params": [(f"p{i}", p) for i, p in enumerate(self.whole)], "blocks": specs}])

    def step(self):
        grads = self.draw(self.whole[0].dtype)
        for param, parts, cut, grad in zip(self.whole, self.parts, self.cuts, grads, strict=True):
            param.grad = grad
            for part, x in zip(parts, cut(grad), strict=True):
                part.grad = x.clone().contiguous()
        self.optimizer.step()
        self.separate.step()

    def difference(self):
        triples = zip(self.whole, self.parts, self.cuts, strict=True)
        pairs = [(x, y) for p, ys, cut in triples for x, y in zip(cut(p.detach()), ys, strict=True)]
        return max((x - y).abs().max().item() for x, y in pairs)


@pytest.mark.parametrize("stacked", [False, True], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.parametrize("name", CASES)
def test_blocks_move_as_separate_parameters_also_after_loading(name, stacked, monkeypatch):
    if stacked:
        monkeypatch.setattr(group_step, "launches_cost", lambda device: True)
    twins = Twins(partial(CASES[name], lr=0.01, **({"relative_step": False} if name == "Adafactor" else {})))
    before = values(twins.whole)
    for step in range(5):
        if step == 3:
            twins.optimizer.eval()
            file = io.BytesIO()
            torch.save(twins.optimizer.state_dict(), file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            assert [*saved["state"]] == [*range(len(PARAMS))]
            twins.optimizer = twins.build()
            twins.optimizer.load_state_dict(saved)
            twins.optimizer.train()
        twins.step()
    assert not any(torch.equal(x, y) for x, y in zip(before, twins.whole, strict=True))
    for optimizer in (twins.optimizer, twins.separate):
        optimizer.eval()
    # sums of stacks of other sizes round differently
    assert twins.difference() <= 1e-6


def test_half_precision_keeps_what_rounding_takes_off_also_after_a_cast():
    twins = Twins(partial(optim.Muon, lr=1e-4), torch.bfloat16)
    twins.step()
    for optimizer in (twins.optimizer, twins.separate):
        for state in optimizer.state.values():
            for key in [key for key in state if "rounding_error" in key]:
                del state[key]
    for _ in range(3):
        twins.step()
    assert twins.difference() == 0


def test_statistics_of_equal_blocks_are_one_tensor_and_steps_count_once():
    twins = Twins(partial(optim.PSGDKron, lr=0.01))
    twins.step()
    twins.step()
    state = twins.optimizer.state[twins.whole[0]]
    assert (state["step"], state["exp_avg"].shape, state["factor_0_1"].shape) == (2, (3, 4, 10), (3, 55))
    state = twins.optimizer.state[twins.whole[3]]
    assert {key: tuple(x.shape) for key, x in state.items() if "exp_avg" in key} == {
        "exp_avg@0": (4, 10),
        "exp_avg@1": (6, 10),
        "exp_avg@2": (4, 10),
    }
    assert state[DRAW_KEY] == key_of("p3")
    twin = copy.deepcopy(twins)
    twin.step()
    twins.step()
    assert same(twin.whole, twins.whole)


# of a Zipformer's matrices, by the number of rows: 32 + 32 + 4, 4, or 12 of each head
ZIPFORMER = {
    r"attn_weights.in_proj": lambda n: {"blocks": [n // 68 * 32, n // 68 * 32, n // 68 * 4], "heads": n // 68},
    r"linear_pos": lambda n: {"heads": n // 4},
    r"self_attn\d.in_proj": lambda n: {"heads": n // 12},
    r"nonlin_attention.in_proj": lambda n: {"blocks": 3},
    r"conv_module\d.in_proj": lambda n: {"blocks": 2},
}


def test_a_step_with_blocks_launches_no_more_than_one_without():
    def build(params):
        specs = {n: spec(len(p)) for n, p in params for key, spec in ZIPFORMER.items() if re.search(key + ".weight", n)}
        assert len(specs) == 12 * 7
        matrices = [(n, p) for n, p in params if p.dim() >= 2 and p.shape[1] > 1]
        others = [(n, p) for n, p in params if p.dim() < 2 or p.shape[1] == 1]
        return optim.Combined([optim.Muon([{"params": matrices, "blocks": specs}]), optim.AdamW(others)])

    assert dispatched(build, 1) <= dispatched(muon_with_adamw, 1)


@pytest.mark.parametrize(
    "options",
    [
        *({"blocks": x} for x in (5, 0.5, -1, True, "three", [4, 7], [4, 0, 8], [], {"weight": {"head": 3}})),
        *({"heads": x} for x in (0, 5, [2])),
        *({"dims": x} for x in ([2], [0, 0], [0, 1], "rows")),
    ],
    ids=str,
)
def test_options_that_no_matrix_has_are_refused(options):
    with pytest.raises(ValueError, match="|".join([*options, "weight"])):
        optim.Muon([{"params": [("weight", nn.Parameter(torch.ones(12, 10)))], **options}])


def test_a_saved_state_continues_with_its_own_blocks_or_without_any():
    def build(**options):
        param = nn.Parameter(torch.ones(4, 2))
        param.grad = torch.arange(8.0).view(4, 2)
        optimizer = optim.Muon([{"params": [("weight", param)], **options}])
        optimizer.step()
        return param, optimizer

    plain, (param, optimizer) = build()[1], build(blocks=2)
    another = build(blocks=2)[1]
    another.load_state_dict(plain.state_dict())
    another.step()
    assert another.state_dict()["state"][0]["momentum_buffer"].shape == (4, 2)
    plain.load_state_dict(optimizer.state_dict())
    optimizer.step()
    plain.param_groups[0]["params"][0].data.copy_(build(blocks=2)[0])
    plain.step()
    assert torch.equal(plain.param_groups[0]["params"][0], param)
