"""Merging and splitting of axes: every element stays where it was, and nothing is copied."""

import pytest
import torch

from optim.transforms.matrices import merged_dims


@pytest.mark.parametrize(
    ("shape", "max_dim", "merged"),
    [
        ((), 100, ()),
        ((1, 1), 100, ()),
        ((7,), 100, (7,)),
        ((1, 7, 1), 100, (7,)),
        ((64, 32), 4096, (64, 32)),
        ((128, 64, 3, 3), 576, (128, 576)),
        ((128, 64, 3, 3), 575, (128, 64, 9)),
        ((128, 64, 3, 3), 8, (128, 64, 3, 3)),
        ((256, 1, 31), 100, (256, 31)),
        ((5, 4, 3, 2), 12, (5, 4, 6)),
    ],
)
def test_the_first_axis_stays_and_later_ones_join_from_the_last_on(shape, max_dim, merged):
    assert merged_dims(shape, max_dim).shape == merged


def test_without_merging_only_axes_of_size_1_disappear():
    assert merged_dims((4, 1, 3, 2), 1000, merge=False).shape == (4, 3, 2)


@pytest.mark.parametrize(
    ("shape", "max_dim", "blocks"),
    [
        ((5, 4), 5, [(5, 4)]),
        ((5, 4), 4, [(2, 4), (3, 4)]),
        ((7, 5), 3, [(2, 2), (2, 3), (2, 2), (2, 3), (3, 2), (3, 3)]),
        ((10,), 4, [(3,), (3,), (4,)]),
        ((), 4, [()]),
    ],
)
def test_long_axes_are_cut_into_the_fewest_even_blocks(shape, max_dim, blocks):
    assert merged_dims(shape, max_dim, split=True).block_shapes() == blocks
    assert merged_dims(shape, max_dim).block_shapes() == [shape]


@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stacked"])
def test_blocks_are_views_that_cover_every_element_once(stacked):
    dims = merged_dims((7, 2, 3), 4, split=True)
    x = torch.zeros(2, 7, 2, 3) if stacked else torch.zeros(7, 2, 3)
    merged = dims.merge(x, stacked=stacked)
    assert merged.shape == ((2, 7, 2, 3) if stacked else (7, 2, 3))
    for block, shape in zip(dims.split(merged), dims.block_shapes(), strict=True):
        assert block.shape[stacked:] == shape
        block.add_(1)
    assert torch.equal(x, torch.ones_like(x))
    assert torch.equal(dims.join([block + 1 for block in dims.split(merged)]), torch.full_like(merged, 2))


def test_a_merged_tensor_is_a_view_unless_its_memory_is_permuted():
    x = torch.randn(6, 5, 4, 3)
    dims = merged_dims(tuple(x.shape), 60)
    assert dims.merge(x).data_ptr() == x.data_ptr()
    permuted = x.to(memory_format=torch.channels_last)
    assert torch.equal(dims.merge(permuted), dims.merge(x))
