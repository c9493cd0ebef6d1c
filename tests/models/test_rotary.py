import torch

from asr.models.encoders.transformer import RotaryPositions, rotate


def test_pairs_of_channels_turn_with_the_frame_index_at_rates_of_their_own():
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    found = torch.complex(*rotate(x, *RotaryPositions(8)(5)).chunk(2, dim=-1))
    for frame in range(5):
        for pair in range(4):
            turn = torch.exp(torch.tensor(1j * frame * 10_000 ** (-2 * pair / 8)))
            before = torch.complex(x[:, :, frame, pair], x[:, :, frame, pair + 4])
            torch.testing.assert_close(found[:, :, frame, pair], before * turn)


def test_what_a_frame_is_to_another_depends_on_their_distance_alone():
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 9, 8)
    positions = RotaryPositions(8)(9)
    scores = (rotate(query, *positions) @ rotate(key, *positions).mT)[0, 0]
    torch.testing.assert_close(scores[:-1, :-1], scores[1:, 1:])
    assert (scores[0, 1:] - scores[0, 0]).abs().min() > 1e-3
