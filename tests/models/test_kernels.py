import pytest
import torch

from asr.models import kernels
from asr.models.kernels import block_of, blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 12)


@pytest.mark.parametrize(("shape", "row_elements", "sizes"), [((7, 2, 2), None, [3, 3, 1]), ((3, 40), None, [1, 1, 1])])
def test_blocks_follow_each_other_and_have_at_most_so_many_elements_or_one_row(shape, row_elements, sizes):
    x = torch.randn(shape)
    found = [x[block] for block in blocks(x, row_elements)]
    assert [len(block) for block in found] == sizes
    assert torch.equal(torch.cat(found), x)


def test_rows_may_count_for_more_elements_than_they_have():
    assert list(blocks(torch.zeros(5, 1), row_elements=6)) == [slice(0, 2), slice(2, 4), slice(4, 6)]


def test_a_gpu_takes_everything_in_one_block():
    assert list(blocks(torch.zeros(7, 100, device="meta"))) == [slice(0, 7)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_has_no_blocks_and_rows_without_elements_have_some(device):
    assert list(blocks(torch.zeros(0, 3, device=device))) == []
    assert sum(1 for _ in blocks(torch.zeros(2, 0, device=device))) == 1


def test_a_missing_tensor_has_missing_blocks():
    assert block_of(None, slice(0, 1)) is None
    assert torch.equal(block_of(torch.arange(3), slice(1, 3)), torch.tensor([1, 2]))
