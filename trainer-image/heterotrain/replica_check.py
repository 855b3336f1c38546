"""A checksum of a worker's replica: of the parameters, and of what the optimizer keeps of them.

Each time a window of all numbers is looked at, and the window moves on, so that all have been looked at after a while.
Workers of one kind of machine must have the very same bits. Others round differently, so theirs are only compared in
size: sums of absolute values must agree to one part in a thousand.
"""

from __future__ import annotations

import math
import platform
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import torch
from torch import nn

WINDOW = 1 << 18
"""Parameters looked at each time, at about 0.1 ms for a million numbers."""

TOLERANCE = 1e-3

_EXACT = 1 << 52  # what a float64, in which it travels, holds without rounding
_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaError(Exception):
    """The workers' models have become different; the text says whose."""

    fatal = True


def kind_of_machine(device: torch.device) -> str:
    """Workers of one kind compute the same bits from the same numbers, as far as the optimizer's step goes."""
    if device.type == "cuda":
        return f"{torch.__version__} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__} {platform.machine()} {capability} {torch.get_num_threads()}"


class ReplicaChecksum:
    """The numbers of one worker's replica."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        self._starts = list(accumulate((each.numel() for each in self._parameters), initial=0))

    def at(self, number: int, *, exact: bool) -> float:
        """Of the `number`th window: a checksum of its bits, a whole number below 2**52; or if not `exact` the sum of
        its absolute values."""
        sums = [_bits(part) if exact else float(part.abs().double().sum()) for part in self._window(number)]
        if not exact:
            return math.fsum(sums)
        return float(sum((place + 1) * bits for place, bits in enumerate(sums)) % _EXACT)

    @torch.no_grad()
    def _window(self, number: int) -> Iterator[torch.Tensor]:
        total = self._starts[-1]
        if not total:
            return
        start = number * WINDOW % (-(-total // WINDOW) * WINDOW)
        stop = min(start + WINDOW, total)
        first = bisect_right(self._starts, start) - 1
        for parameter, begin in zip(self._parameters[first:], self._starts[first:], strict=False):
            if begin >= stop:
                return
            part = slice(max(0, start - begin), stop - begin)
            yield parameter.detach().reshape(-1)[part]
            kept = self._optimizer.state.get(parameter) or {}
            for name in sorted(key for key in kept if isinstance(key, str)):
                value = kept[name]
                if isinstance(value, torch.Tensor) and not value.is_complex():
                    yield value.detach().reshape(-1)[part if value.numel() == parameter.numel() else slice(WINDOW)]


def _bits(part: torch.Tensor) -> int:
    whole = part.contiguous()
    if whole.dtype is torch.bool:
        return int(whole.sum())
    return int(whole.view(_WHOLE_NUMBERS[whole.element_size()]).sum(dtype=torch.int64))


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks that differ from most of the others."""

    what: str
    ranks: tuple[int, ...]


def difference(what: str, values: Sequence[float], *, exact: bool) -> Difference | None:
    """Who differs from the others, by rank; None if nobody does. Where no value is most workers', all but those that
    agree with the first are said to differ."""
    if exact:
        if len(set(values)) == 1:
            return None
        usual = max(dict.fromkeys(values), key=lambda value: sum(each == value for each in values))
        ranks = tuple(rank for rank, value in enumerate(values) if value != usual)
        return Difference(what, ranks)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    middle = median(finite)
    ranks = tuple(
        rank
        for rank, value in enumerate(values)
        if not math.isfinite(value) or abs(value - middle) > TOLERANCE * max(abs(middle), 1e-30)
    )
    return Difference(what, ranks) if ranks else None
