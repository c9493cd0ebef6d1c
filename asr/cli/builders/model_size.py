"""How large a recognizer may become, noticed while it is built: a config is short, whatever it asks for."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from asr.cli.errors import ConfigError

BUILT = ("encoder", "head", "augment", "decoder", "features")  # of a config, for decoding
MAX_NUMBER = 1_000_000  # in these
MAX_PARAMETERS = 10_000  # tensors of weights, and buffers; the largest zipformers have some thousand
SPARE_PARAMETERS, SPARE_BYTES = 1000, 2**22  # that a recognizer may register beside those of its checkpoint


def refuse_huge_numbers(config: Mapping[str, Any]) -> None:
    """Refuse widths and counts that would take all memory before a single parameter is made.

    Raises:
        ConfigError: names the key.
    """
    _refuse_huge_numbers({key: config.get(key) for key in BUILT})


def _refuse_huge_numbers(node: Any, key: str = "") -> None:
    if isinstance(node, Mapping | list):
        for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            _refuse_huge_numbers(value, f"{key}.{name}" if key else str(name))
    # the parts themselves refuse infinite numbers
    elif isinstance(node, int | float) and MAX_NUMBER < abs(node) < math.inf:
        # Python refuses to print integers of thousands of digits
        number = f"{node:.3g}" if isinstance(node, float) or abs(node) < 10**300 else "a number of more than 300 digits"
        raise ConfigError(f"{key}={number} is more than {MAX_NUMBER}, which no recognizer needs")


@contextlib.contextmanager
def no_more_parameters_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop building a recognizer as soon as it has clearly more parameters than a checkpoint.

    Some parameters are registered twice (shared or replaced ones), and some buffers are not saved.

    Raises:
        ConfigError: it has.
    """
    storages = {weight.untyped_storage().data_ptr(): weight.untyped_storage().nbytes() for weight in weights.values()}
    most, most_bytes = 2 * len(weights) + SPARE_PARAMETERS, 2 * sum(storages.values()) + SPARE_BYTES

    def check(seen: int, seen_bytes: int) -> None:
        if seen > most or seen_bytes > most_bytes:
            raise ConfigError(
                f"its weights do not fit its config, which describes more than {seen - 1} parameters, or than "
                f"{most_bytes} bytes of them; the file has {len(weights)} of {sum(storages.values())} bytes"
            )

    with _counting(check):
        yield


@contextlib.contextmanager
def no_more_than_this_machine_holds(on_cpu: bool) -> Iterator[None]:
    """Stop building a recognizer as soon as it is too large to be trained here, or to be one.

    Args:
        on_cpu: it is trained in the memory of this machine, where gradients, and the moments of optimizers such as
            AdamW, take as much each; else the weights of a checkpoint that is read do.

    Raises:
        ConfigError: it is.
    """
    share, others = ("a quarter", "gradients and two moments of an optimizer") if on_cpu else ("half", "a checkpoint")
    most_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (4 if on_cpu else 2)

    def check(seen: int, seen_bytes: int) -> None:
        if seen > MAX_PARAMETERS:
            raise ConfigError(
                f"encoder, head: the recognizer has more than {MAX_PARAMETERS} tensors of weights, which none needs; "
                "choose fewer layers"
            )
        if seen_bytes > most_bytes:
            raise ConfigError(
                f"encoder, head: the weights of the recognizer take more than {most_bytes / 1e9:.1f} GB, {share} of "
                f"this machine's memory, of which {others} take as much each; choose fewer or narrower layers"
            )

    with _counting(check):
        yield


@contextlib.contextmanager
def _counting(check: Callable[[int, int], None]) -> Iterator[None]:
    """Call a check with the number, and the bytes, of the parameters and buffers that modules have registered."""
    seen = seen_bytes = 0

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal seen, seen_bytes
        if value is not None:
            # called before anything is written to the memory
            seen, seen_bytes = seen + 1, seen_bytes + value.nbytes
            check(seen, seen_bytes)

    hooks = register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
