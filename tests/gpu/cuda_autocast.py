"""The rules of CUDA's autocast on a CPU, whose own turn other functions to 16 or 32 bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _dispatch_get_registrations_for_dispatch_key, _ExcludeDispatchKeyGuard
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

# the lists of aten/src/ATen/autocast_mode.h (torch 2.13); CUDA's other functions are computed in 32 bits
LOWER_PRECISION = {
    *("_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d"),
    *("conv_transpose2d.input", "conv_transpose3d.input", "convolution", "cudnn_convolution"),
    *("cudnn_convolution_transpose", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv"),
    *("linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
}
FLOAT32_OUTPUT = {  # the input stays as it is
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
}
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
WIDEST = {
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"),
    "scatter_add",
}
REFUSED = "binary_cross_entropy"


def functions_of(key: str) -> set[str]:
    """Return the names of aten's functions for which a dispatch key has a kernel."""
    return {name.removeprefix("aten::") for name in _dispatch_get_registrations_for_dispatch_key(key)}


def function(name: str) -> OpOverload:
    base, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return found


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Let ``torch.autocast("cpu")`` do what ``torch.autocast("cuda")`` does."""
    cuda, cpu = functions_of("AutocastCUDA"), functions_of("AutocastCPU")
    library, is_enabled = torch.library.Library("aten", "IMPL"), torch.is_autocast_enabled
    try:
        # torch's attention asks without a device, which means CUDA
        torch.is_autocast_enabled = lambda device_type="cpu": is_enabled(device_type)
        for name in cuda - (LOWER_PRECISION & cpu):
            library.impl(function(name), _kernel(name), "AutocastCPU")
        for name in cpu - cuda:
            library.impl(function(name), torch.library.fallthrough_kernel, "AutocastCPU")
        yield
    finally:
        torch.is_autocast_enabled = is_enabled
        library._destroy()


def _kernel(name: str) -> Callable[..., Any]:
    """Return what CUDA's autocast does for a function."""
    called, arguments = function(WITH_DTYPE.get(name, name)), function(name)._schema.arguments
    defaults = {each.name: each.default_value for each in arguments if each.has_default_value()}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if name == REFUSED:
            raise RuntimeError("binary_cross_entropy is unsafe to autocast")
        given = {**defaults, **{each.name: x for each, x in zip(arguments, args, strict=False)}, **kwargs}
        if name in FLOAT32_OUTPUT or name in WITH_DTYPE:
            if _is_eligible(args[0]) and given.get("dtype") is None:
                given["dtype"] = torch.float32
            elif name in WITH_DTYPE:
                given["dtype"] = args[0].dtype
        else:
            dtypes = {x.dtype for x in tree_leaves(given) if _is_eligible(x)}
            lower = torch.get_autocast_dtype("cpu")
            is_lower = name in LOWER_PRECISION or (name in WIDEST and dtypes <= {lower})
            dtype = lower if is_lower else torch.float32
            given = tree_map(lambda x: x.to(dtype) if _is_eligible(x) else x, given)
        with _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.AutocastCPU)):
            return called(**given)

    return kernel


def _is_eligible(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
