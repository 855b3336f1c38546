"""The arithmetic of forward and backward: as the model has it, or bfloat16 by autocast.

Parameters, and with them gradients, optimizer and checkpoints, stay as they are, so workers of either precision train
one model. What the model returns is made float32 again: the script's loss is then computed as it always was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16}
PRECISIONS = tuple(_AUTOCAST)


class Arithmetic:
    """One worker's precision on its device."""

    def __init__(self, precision: str, device: torch.device) -> None:
        """Raises ValueError for an unknown precision."""
        if precision not in _AUTOCAST:
            raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, found {precision!r}")
        self._dtype = _AUTOCAST[precision]
        self._device_type = device.type

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The outputs of `forward`, computed in this precision."""
        if self._dtype is None:
            return forward(*args, **kwargs)
        with torch.autocast(self._device_type, dtype=self._dtype):
            outputs = forward(*args, **kwargs)
        return in_float32(outputs)


def in_float32(outputs: Any) -> Any:
    """Tensors of lower precision in nested tuples, lists and mappings as float32; all else as it is."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    if isinstance(outputs, Mapping):
        return type(outputs)({key: in_float32(value) for key, value in outputs.items()})  # type: ignore[call-arg]  # dicts and their kin
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*(in_float32(value) for value in outputs))
    if isinstance(outputs, (list, tuple)):
        return type(outputs)(in_float32(value) for value in outputs)
    return outputs
