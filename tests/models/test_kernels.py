import pytest
import torch

from asr.models import kernels
from asr.models.kernels import blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 12)


@pytest.mark.parametrize(
    ("shape", "row_elements", "sizes"),
    [((7, 2, 2), None, [3, 3, 1]), ((3, 40), None, [1, 1, 1]), ((5, 1), 6, [2, 2, 1])],
)
def test_blocks_follow_each_other_and_have_at_most_so_many_elements_or_one_row(shape, row_elements, sizes):
    x = torch.randn(shape)
    found = [x[block] for block in blocks(x, row_elements)]
    assert [len(block) for block in found] == sizes
    assert torch.equal(torch.cat(found), x)


def test_a_gpu_takes_everything_in_one_block():
    assert list(blocks(torch.zeros(7, 100, device="meta"))) == [slice(0, 7)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_has_no_blocks_and_rows_without_elements_have_some(device):
    assert list(blocks(torch.zeros(0, 3, device=device))) == []
    assert sum(1 for _ in blocks(torch.zeros(2, 0, device=device))) == 1
