"""Weights of icefall's Zapformer become ours: every tensor is accounted for."""

from __future__ import annotations

import pytest
import torch

from asr.models.icefall_weights import convert_encoder, convert_weights
from asr.run.parts import build_recognizer
from tests.configs import composed
from tests.models.zapformer.golden import OUTPUTS, Golden, encoder_of

VOCAB = 7
HEAD = {"ctc_output.1.weight": torch.randn(VOCAB, 64), "ctc_output.1.bias": torch.randn(VOCAB)}
# of encoder_full
OPTIONS = [
    *("encoder=zapformer_l", "encoder.input_dim=32", "encoder.encoder_dim=[32,40,48]"),
    *("encoder.feedforward_multiple=[2,2,1]", "encoder.num_encoder_layers=[1,2,1]"),
    *("encoder.cnn_module_kernel=[7,5,5]", "encoder.downsampling_factor=[1,2,4]", "+encoder.num_heads=2"),
    *("+encoder.query_head_dim=8", "+encoder.value_head_dim=6", "+encoder.pos_head_dim=3"),
    *("+encoder.num_freqs=12", "+encoder.subsampling_channels=[4,8,12]"),
]


@pytest.mark.parametrize("name", ["full", "causal"])
def test_every_tensor_is_taken_over_and_what_does_not_fit_is_refused(golden, name):
    params = Golden(golden / "zapformer" / f"encoder_{name}.params.npz")
    theirs, ours = params.under("param/"), encoder_of(params).state_dict()
    weights, unused = convert_encoder({**theirs, **HEAD}, ours)
    assert weights.keys() == ours.keys()
    assert len(ours) == len(theirs)
    assert not unused
    first = "encoder.encoders.0.proj.weight"
    for changed in ({**theirs, first: theirs[first][1:]}, {k: x for k, x in theirs.items() if k != first}):
        with pytest.raises(ValueError, match=r"encoders\.0\.proj\.weight"):
            convert_encoder(changed, ours)


def test_a_checkpoint_of_theirs_encodes_as_before(golden, tmp_path):
    file = Golden(golden / "zapformer" / "encoder_full.eval.npz")
    theirs = Golden(golden / "zapformer" / file.meta["params"]).under("param/")
    torch.save({"model": {**theirs, **HEAD}}, tmp_path / "pretrained.pt")
    options = composed(*OPTIONS, "head=ctc").options
    recognizer = build_recognizer(options, VOCAB, [0.0] * 80, [1.0] * 80).eval()
    weights, unused = convert_weights(tmp_path / "pretrained.pt", recognizer.state_dict(), [*range(VOCAB)])
    assert not unused
    recognizer.load_state_dict(weights)
    encodings, lengths = recognizer(file["in/x"], file["in/lens"])
    assert (encodings[1, : lengths[1]] - file["out/y_alone_1"][0]).abs().max() <= OUTPUTS
