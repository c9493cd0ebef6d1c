"""Products of matrices are those of torch, whatever makes them and however their elements are ordered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from optim.transforms.matrices import addmm, matmul

SHAPES = [(3, 4, 5), (200, 150, 170)]
ORDERS: dict[str, Callable[[int, int], Tensor]] = {
    "rows": lambda rows, columns: torch.randn(rows, columns),
    "columns": lambda rows, columns: torch.randn(columns, rows).mT,
    "a part of columns": lambda rows, columns: torch.randn(columns, rows + 7).mT[3 : rows + 3],
    "every second": lambda rows, columns: torch.randn(rows, 2 * columns)[:, ::2],
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("left_order", ORDERS)
@pytest.mark.parametrize("right_order", ORDERS)
def test_a_product_is_that_of_torch(shape, left_order, right_order):
    rows, size, columns = shape
    left, right = ORDERS[left_order](rows, size), ORDERS[right_order](size, columns)
    expected = left.double() @ right.double()
    torch.testing.assert_close(matmul(left, right).double(), expected, rtol=0, atol=1e-6 * size)
    base = torch.randn(rows, columns)
    total = addmm(base, left, right, beta=0.5, alpha=-2.0).double()
    torch.testing.assert_close(total, 0.5 * base.double() - 2 * expected, rtol=0, atol=3e-6 * size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes_and_stacks_are_left_to_torch(dtype):
    left, right = torch.randn(2, 200, 150, dtype=dtype), torch.randn(2, 150, 170, dtype=dtype)
    assert torch.equal(matmul(left, right), left @ right)
    assert torch.equal(matmul(left[0], right[0]), left[0] @ right[0])
