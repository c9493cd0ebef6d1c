import torch

from asr.models.encoders.transformer import RotaryPositions, SelfAttention, TransformerLayer, rotate


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_attention_is_a_softmax_over_valid_frames_in_each_head():
    torch.manual_seed(0)
    module, x, positions = SelfAttention(12, num_heads=3, dropout=0.5).eval(), noise(2, 6, 12), RotaryPositions(4)(6)
    valid = torch.arange(6) < torch.tensor([6, 4])[:, None]
    found = module(x, valid[:, None, None], positions)
    for row, length in enumerate([6, 4]):
        angles = [angle[:length] for angle in positions]
        query, key, value = (
            part.view(length, 3, 4).transpose(0, 1) for part in module.query_key_value(x[row, :length]).chunk(3, dim=1)
        )
        scores = rotate(query, *angles) @ rotate(key, *angles).mT / 4**0.5
        attended = (scores.softmax(dim=2) @ value).transpose(0, 1).flatten(1)
        torch.testing.assert_close(found[row, :length], module.output(attended))


def test_a_layer_adds_what_its_modules_make_of_normed_input():
    torch.manual_seed(0)
    layer = TransformerLayer(8, num_heads=2, d_feedforward=12, dropout=0.1).eval()
    x, positions, mask = noise(1, 7, 8), RotaryPositions(4)(7), torch.ones(1, 1, 1, 7, dtype=torch.bool)
    attended = x + layer.attention(layer.attention_norm(x), mask, positions)
    expected = attended + layer.feedforward(layer.feedforward_norm(attended))
    torch.testing.assert_close(layer(x, mask, positions), expected)
    # all that is added is dropped out
    layer.train().dropout.p = 1.0
    assert torch.equal(layer(x, mask, positions), x)
