"""The stand-in for CUDA's autocast converts what CUDA's own does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu.cuda_autocast import cuda_autocast, function, functions_of

VALUES = {
    "int": 0,
    "float": 0.5,
    "number": 2,
    "bool": False,
    "str": "fro",
    "List[int]": [1, 1],
    "Optional[List[int]]": [1],
}


class Reached(Exception):
    """A function has been reached, with these tensors."""


class UntilReached(TorchDispatchMode):
    """Keeps the conversions that come first; stops at any other function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs or {}))
        dtypes = [x.dtype if isinstance(x, Tensor) else x for x in leaves if isinstance(x, Tensor | torch.dtype)]
        self.seen.append((func, dtypes))
        if func is torch.ops.aten._to_copy.default:
            return func(*args, **(kwargs or {}))
        raise Reached


def arguments(name: str, dtypes: list[torch.dtype], device: str) -> list[Any]:
    """Return arguments of the right kinds, but not of shapes that go together: they are converted before a use."""

    def value(kind: str) -> Any:
        if kind == "List[Optional[Tensor]]":  # of indices
            return [torch.zeros(2, dtype=torch.int64, device=device)]
        if "Tensor" in kind:
            tensor = torch.ones(2, 2, dtype=dtypes[0], device=device)
            dtypes.append(dtypes.pop(0))
            return [tensor] if kind.startswith("List") else tensor
        return VALUES.get(kind)

    return [value(str(argument.type)) for argument in function(name)._schema.arguments if not argument.kwarg_only]


def conversions(name: str, dtypes: list[torch.dtype], device: str) -> list[Any]:
    # in a build for a CPU, tensors of CUDA can only be pretended
    with FakeTensorMode():
        given = arguments(name, [*dtypes], device)
        # as torch.autocast(device) does, which refuses CUDA here
        torch.set_autocast_dtype(device, torch.bfloat16)
        torch.set_autocast_enabled(device, True)
        try:
            with UntilReached() as recorded, suppress(Exception):
                function(name)(*given)
        finally:
            torch.set_autocast_enabled(device, False)
    return recorded.seen


MIXTURES = [[torch.bfloat16], [torch.float32], [torch.bfloat16, torch.float32], [torch.float64], [torch.int64]]


@pytest.mark.parametrize("dtypes", MIXTURES, ids=str)
def test_the_stand_in_converts_the_arguments_of_every_function_as_cuda_does(dtypes):
    names = sorted(functions_of("AutocastCUDA") | functions_of("AutocastCPU"))
    expected = {name: conversions(name, dtypes, "cuda") for name in names}
    with cuda_autocast():
        found = {name: conversions(name, dtypes, "cpu") for name in names}
    # of a loss that no rule changes: on CUDA torch first asks whether cuDNN can compute it
    del expected["ctc_loss.Tensor"], found["ctc_loss.Tensor"]
    assert found == expected
    assert any(expected.values())


def test_the_stand_in_leaves_nothing_behind():
    x = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        before = x.exp().dtype
        with cuda_autocast():
            assert x.exp().dtype == torch.float32
        assert x.exp().dtype == before == torch.bfloat16
