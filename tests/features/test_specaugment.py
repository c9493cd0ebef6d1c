import json

import numpy as np
import pytest
import torch
from lhotse.dataset.signal_transforms import SpecAugment as LhotseSpecAugment

from asr.features.specaugment import AlternatingSpecAugment, SpecAugment, alternating_masks, warped
from asr.run.instantiate import instantiate
from werdict.errors import ConfigError


def apply(seed: int, features: torch.Tensor, lengths: torch.Tensor, **options) -> torch.Tensor:
    return SpecAugment(**options)(features, lengths, torch.Generator().manual_seed(seed))


def masks(seed: int, lengths: torch.Tensor, frames: int, bins: int, **options) -> torch.Tensor:
    """Return (B, T, F), true where features are masked."""
    features = torch.rand(len(lengths), frames, bins, generator=torch.Generator().manual_seed(1))
    return apply(seed, features, lengths, **options) != features


def test_masks_stay_within_their_limits():
    lengths = torch.tensor([200, 150, 100, 80, 60, 40, 20, 7])
    for seed in range(20):
        options = {"num_time_masks": 1, "max_time_frames": 12, "max_time_fraction": 0.1, "max_feature_bins": 0}
        frames = masks(seed, lengths, 200, 40, **options).all(dim=2)
        for index, length in enumerate(lengths.tolist()):
            assert frames[index].sum() <= min(12, int(0.1 * length))
            assert not frames[index, length:].any()
        masked = masks(seed, lengths, 200, 40, num_time_masks=0, num_feature_masks=1, max_feature_bins=9)
        assert (masked.all(dim=1).sum(dim=1) <= 9).all()


def test_every_allowed_width_and_place_is_drawn():
    lengths = torch.full((400,), 20)
    options = {"num_time_masks": 1, "max_time_frames": 3, "max_time_fraction": 1.0, "num_feature_masks": 0}
    masked = masks(0, lengths, 20, 6, **options).all(dim=2)
    assert set(masked.sum(dim=1).tolist()) == {0, 1, 2, 3}
    assert masked.any(dim=0).all()
    masked = masks(0, lengths, 20, 6, num_time_masks=0, num_feature_masks=1, max_feature_bins=100).all(dim=1)
    widths = masked.sum(dim=1)
    assert [30 < (widths == width).sum() < 90 for width in range(7)] == [True] * 7
    assert masked.any(dim=0).all()


def test_what_is_masked_is_the_mean_of_its_utterance_and_the_rest_untouched():
    features, lengths = 3 * torch.randn(3, 50, 40) - 8, torch.tensor([50, 40, 30])
    masked = apply(0, features, lengths)
    for before, after, length in zip(features, masked, lengths, strict=True):
        changed = after != before
        assert changed.any()
        torch.testing.assert_close(after[changed], before[:length].mean().expand(int(changed.sum())))


def test_a_mask_holds_what_lhotses_hold_whatever_the_padding_and_the_other_utterances():
    features = torch.randn(1, 50, 40) - 8
    reference = LhotseSpecAugment(time_warp_factor=None, p=1.0)(features)
    padded = torch.cat((features, torch.full((1, 30, 40), torch.nan)), dim=1)
    alone = apply(0, features, torch.tensor([50]))
    batch = apply(0, torch.cat((padded, torch.randn(1, 80, 40))), torch.tensor([50, 80]))[:1, :50]
    held = [torch.unique(masked[masked != features]) for masked in (reference, alone, batch)]
    torch.testing.assert_close(held[0], held[1])
    assert torch.equal(held[1], held[2])


def test_utterances_of_a_batch_are_masked_differently():
    masked = masks(0, torch.full((4,), 100), 100, 40)
    assert len({tuple(row.flatten().tolist()) for row in masked}) == 4


def test_nothing_is_masked_where_nothing_is_asked():
    features = torch.randn(2, 50, 40)
    assert torch.equal(apply(0, features, torch.tensor([50, 30]), num_time_masks=0, num_feature_masks=0), features)


@pytest.mark.parametrize("augment", [SpecAugment, AlternatingSpecAugment])
def test_negative_options_and_shares_above_1_are_refused(augment):
    for option in augment.__dataclass_fields__:
        for wrong in (-1, 1.5):  # 1.5 is no whole number either
            with pytest.raises(ConfigError, match=rf"masks\.{option}\b.*{wrong}"):
                instantiate({"_target_": f"{augment.__module__}.{augment.__name__}", option: wrong}, "masks")


@pytest.mark.parametrize("case", ["defaults", "plain", "warp", "many", "ties"])
def test_alternating_masks_are_the_union_of_the_spans_that_their_authors_draw(golden, case):
    with np.load(golden / "zapformer" / "spec_augment.npz") as file:
        meta = json.loads(str(file["meta"]))
        names = sorted({*file.files, *meta["same"]})
        arrays = {
            name.removeprefix(f"{case}/"): torch.from_numpy(file[meta["same"].get(name, name)])
            for name in names
            if name.startswith(f"{case}/")
        }
    drawn = [array for name, array in arrays.items() if name.startswith("draw/")]
    features, lengths = arrays["in/x"], arrays["in/lens"]
    center = torch.ones_like(lengths)
    moved, places = center.clone(), iter(zip(meta[case]["draws"], drawn, strict=True))
    if case in ("defaults", "warp"):
        for i, length in enumerate(lengths):
            _, number = next(places)
            if number <= 0.9 and length > 2 * meta[case].get("time_warp_factor", 80) + 1:
                center[i], moved[i] = next(places)[1], next(places)[1]
    features = warped(features, lengths, center, moved)
    rest = [array for _, array in places]
    masked = {}
    shares = {"feature": (0.675, features.shape[2]), "frame": (0.725, features.shape[1])}
    for i, (side, (share, size)) in enumerate(shares.items()):
        num = torch.full((len(lengths),), rest[3 * i].shape[1] // 2)
        whole = torch.full_like(num, size)
        masked[side] = alternating_masks(whole, num, share, size, tuple(rest[3 * i : 3 * i + 3]))
        if meta[case][f"{side}_is_union_of_rounded_spans"]:
            assert torch.equal(masked[side], arrays[f"{side}/masked"])
    kept = ~(masked["feature"].unsqueeze(1) | masked["frame"].unsqueeze(2)) | (rest[-1] >= meta[case].get("p", 0.9))
    if case != "ties":
        torch.testing.assert_close(features[kept], arrays["out/y"][kept], rtol=0, atol=1e-5)


def test_alternating_masks_cover_a_third_of_the_time_and_depend_on_nothing_else_in_a_batch():
    features, lengths = torch.randn(3, 400, 40), torch.tensor([400, 250, 90])
    augment = AlternatingSpecAugment(probability=1.0)
    covered = []
    for seed in range(40):
        changed = augment(features, lengths, torch.Generator().manual_seed(seed))
        other = features.clone()
        other[1, 250:], other[0] = torch.nan, 1.0
        again = augment(other, lengths, torch.Generator().manual_seed(seed))
        assert torch.equal(changed[1, :250], again[1, :250])
        full = (changed[0] == changed[0].flatten().mode()[0]).all(dim=1)
        covered.append(float(full.float().mean()))
    assert 0.28 < sum(covered) / len(covered) < 0.44
    assert max(covered) < 0.725
