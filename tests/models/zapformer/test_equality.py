"""The same weights and the same input give what the authors' code gives, outputs and gradients."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from asr.models.encoders.streaming import StreamingEncoder
from asr.models.encoders.zapformer.subsampling import ZapformerSubsampling
from asr.models.icefall_weights import convert_encoder
from tests.models.zapformer.golden import GRADIENTS, OUTPUTS, Golden, encoded_as_theirs, encoder_of, worst


@pytest.fixture
def folder(golden):
    return golden / "zapformer"


def cases(folder, kind: str) -> list[Golden]:
    """Return the files of a kind, of which there may be any number."""
    found = [Golden(path) for path in sorted(folder.glob("*.npz")) if path.name != "index.json"]
    return [file for file in found if file.meta["kind"] == kind]


def test_a_batch_has_their_encodings_and_gradients_with_all_that_limiters_add(folder):
    files = cases(folder, "encoder")
    assert files
    for file in files:
        params, scale = Golden(folder / file.meta["params"]), file.meta["aux_loss_scale"]
        encoder = encoder_of(params, file.meta["chunk_size"], file.meta["left_context_frames"], limiter_scale=scale)
        encoder.train(file.meta["train"])
        features, num_frames = file["in/x"].requires_grad_(), file["in/lens"]
        encodings = encoded_as_theirs(encoder, features, num_frames)
        valid = torch.arange(encodings.shape[1]) < file["out/lens"].unsqueeze(1)
        assert torch.equal(encoder.output_frames(num_frames), file["out/lens"])
        assert (encodings - file["out/y"])[valid].abs().max() <= OUTPUTS, file.meta["what"]
        (encodings * file["cot/y"]).sum().backward()
        assert worst(features.grad, file["grad/in/x"]) <= GRADIENTS, file.meta["what"]
        theirs = {**params.under("param/"), **file.under("grad/param/")}
        expected = convert_encoder(theirs, encoder.state_dict())[0]
        named = dict(encoder.named_parameters())
        whole = {name for name, x in expected.items() if any(x.equal(y) for y in file.under("grad/param/").values())}
        assert len(whole) >= len(file.under("grad/param/"))
        for name in whole:
            assert worst(named[name].grad, expected[name]) <= GRADIENTS, (file.meta["what"], name)
        norms = dict(zip(file.meta["gradnorm_names"][""], file["gradnorm"], strict=True))
        like = {name: torch.full_like(params[f"param/{name}"], float(norm)) for name, norm in norms.items()}
        for name, norm in convert_encoder(like, encoder.state_dict())[0].items():
            ours = named[name].grad.norm()
            assert abs(ours - norm.flatten()[0]) <= GRADIENTS * file["gradnorm"].max(), (file.meta["what"], name)


def test_an_utterance_in_a_padded_batch_is_encoded_as_theirs_is_alone(folder):
    files = [file for file in cases(folder, "encoder") if "out/y_alone_0" in file]
    assert files
    for file in files:
        encoder = encoder_of(Golden(folder / file.meta["params"])).eval()
        padding = torch.arange(file["in/x"].shape[1]) >= file["in/lens"].unsqueeze(1)
        for value in (0.0, 3.0):
            features = file["in/x"].masked_fill(padding.unsqueeze(2), value)
            encodings, lengths = encoder(features, file["in/lens"])
            for i, length in enumerate(lengths):
                assert (encodings[i, :length] - file[f"out/y_alone_{i}"][0]).abs().max() <= OUTPUTS


def test_a_stream_has_their_states_and_the_encodings_of_whole_utterances(folder):
    files = cases(folder, "streaming")
    assert files
    for file in files:
        params, plan = Golden(folder / file.meta["params"]), file.meta["plan"]
        encoder = encoder_of(params, file.meta["chunk_size"], file.meta["left_context_frames"])
        stream = StreamingEncoder(encoder)
        state, features = stream.initial_state(len(file["in/x"])), file["in/x"]
        parts = []
        for chunk in plan:
            first, num_frames = chunk["first_feature"], 2 * torch.tensor(chunk["frames"]) + 7
            y, lengths, state = stream(features[:, first : first + chunk["features"]], num_frames, state)
            assert lengths.tolist() == chunk["outputs"]
            parts.append(y[:, : max(chunk["outputs"])])
        encodings = torch.cat(parts, dim=1)
        whole, lengths = encoder(features, file["in/lens"])
        longest = int(lengths.argmax())
        assert (encodings[longest] - file["forward/y"][longest]).abs().max() <= OUTPUTS
        for i, length in enumerate(lengths):
            torch.testing.assert_close(encodings[i, :length], whole[i, :length], rtol=0.0, atol=OUTPUTS)
        states = iter(state.layers)
        for number, stack in enumerate(encoder.stacks):
            for i, layer in enumerate(stack.layers):
                theirs = file.under(f"scaled_keys/state_final/{number}.{i}.")
                ballast = 100 * layer.norm.ballast_frames.abs() * layer.norm.ballast_rms.square()
                expected = [
                    *(theirs[name].transpose(0, 1) for name in ("key", "attn_mean_sum", "value", "conv_mean_sum")),
                    *(theirs["conv"].transpose(1, 2), theirs["norm_sum"].view(-1, 1, 1) - ballast),
                ]
                for ours, state_of in zip(islice(states, len(expected)), expected, strict=True):
                    assert worst(ours[longest], state_of[longest]) <= OUTPUTS  # sums of frames are large


@pytest.mark.parametrize("mode", ["eval", "train_noise"])
@pytest.mark.parametrize("kind", ["full", "causal"])
def test_the_front_end_is_theirs_also_with_the_noise_that_theirs_drew(folder, monkeypatch, kind, mode):
    file = Golden(folder / "frontend.npz")
    theirs = file.under(f"{kind}/param/")
    channels = tuple(len(theirs[f"conv.{number}.bias"]) for number in (0, 3, 5))
    ours = ZapformerSubsampling(20, 8, channels, noise=0.005, causal=kind == "causal").train(mode != "eval")
    named = {"encoder_embed." + name: value for name, value in theirs.items()}
    expected = {"encoder_embed." + name: value for name, value in ours.state_dict().items()}
    weights = convert_encoder(named, expected)[0]
    ours.load_state_dict({name.removeprefix("encoder_embed."): value for name, value in weights.items()})
    if mode == "train_noise":
        monkeypatch.setattr(torch, "randn", lambda *_, **__: file[f"{kind}/train_noise/drawn"].permute(0, 2, 3, 1))
    x = file[f"{kind}/{mode}/in/x"].requires_grad_()
    # theirs sees what is in padding
    y, _ = ours(x, torch.full((len(x),), x.shape[1]))
    assert (y - file[f"{kind}/{mode}/out/y"]).abs().max() <= OUTPUTS
    (y * file[f"{kind}/{mode}/cot/y"]).sum().backward()
    assert worst(x.grad, file[f"{kind}/{mode}/grad/in/x"]) <= GRADIENTS
    gradient = file[f"{kind}/{mode}/grad/param/conv.0.weight"]
    assert worst(ours.conv1.weight.grad, gradient) <= GRADIENTS
