import pytest
import torch

from asr.features.specaugment import SpecAugment


def apply(seed: int, features: torch.Tensor, lengths: torch.Tensor, **options) -> torch.Tensor:
    return SpecAugment(**options)(features, lengths, torch.Generator().manual_seed(seed))


def test_masks_stay_within_their_limits():
    features, lengths = torch.ones(8, 200, 40), torch.tensor([200, 150, 100, 80, 60, 40, 20, 7])
    for seed in range(20):
        masked = apply(
            seed, features, lengths, num_time_masks=1, max_time_frames=12, max_time_fraction=0.1, max_feature_bins=0
        )
        frames = (masked == 0).all(dim=2)
        for index, length in enumerate(lengths.tolist()):
            assert frames[index].sum() <= min(12, int(0.1 * length))
            assert not frames[index, length:].any()
        masked = apply(seed, features, lengths, num_time_masks=0, num_feature_masks=1, max_feature_bins=9)
        assert ((masked == 0).all(dim=1).sum(dim=1) <= 9).all()


def test_every_allowed_width_and_place_is_drawn():
    features, lengths = torch.ones(400, 20, 6), torch.full((400,), 20)
    options = {"num_time_masks": 1, "max_time_frames": 3, "max_time_fraction": 1.0, "num_feature_masks": 0}
    masked = (apply(0, features, lengths, **options) == 0).all(dim=2)
    assert set(masked.sum(dim=1).tolist()) == {0, 1, 2, 3}
    assert masked.any(dim=0).all()
    bands = apply(0, features, lengths, num_time_masks=0, num_feature_masks=1, max_feature_bins=100)
    masked = (bands == 0).all(dim=1)
    widths = masked.sum(dim=1)
    assert [30 < (widths == width).sum() < 90 for width in range(7)] == [True] * 7
    assert masked.any(dim=0).all()


def test_what_is_masked_is_zero_and_the_rest_untouched():
    features = torch.randn(3, 50, 40)
    masked = apply(0, features, torch.tensor([50, 40, 30]))
    assert ((masked == 0) | (masked == features)).all()
    assert (masked == 0).any()


def test_utterances_of_a_batch_are_masked_differently():
    features, lengths = torch.ones(4, 100, 40), torch.full((4,), 100)
    masked = apply(0, features, lengths)
    assert len({tuple(row.flatten().tolist()) for row in masked}) == 4


def test_nothing_is_masked_where_nothing_is_asked():
    features = torch.randn(2, 50, 40)
    assert torch.equal(apply(0, features, torch.tensor([50, 30]), num_time_masks=0, num_feature_masks=0), features)


@pytest.mark.parametrize("option", ["num_time_masks", "max_time_frames", "num_feature_masks", "max_feature_bins"])
def test_negative_options_are_refused(option):
    with pytest.raises(ValueError, match=option):
        SpecAugment(**{option: -1})
    with pytest.raises(ValueError, match="max_time_fraction"):
        SpecAugment(max_time_fraction=1.5)
