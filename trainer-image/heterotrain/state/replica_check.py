"""A checksum of a worker's replica: of the parameters, and of what the optimizer keeps of them.

Each checksum is of a window of all numbers, and the window moves on, so that after a while all numbers were looked at.
Workers on machines of one kind must have the very same bits. Machines of different kinds round differently, so only the
sizes of their numbers are compared: sums of absolute values must agree to one part in a thousand.
"""

from __future__ import annotations

import math
import platform
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import torch
from torch import nn

WINDOW = 1 << 17
"""Parameters in one window, which takes some tenths of a millisecond."""

TOLERANCE = 1e-3

_EXACT = 1 << 52  # what a float64, in which it travels, holds without rounding
_WORD = 8  # bytes
_LARGE = 1 << 12  # numbers; to copy so many costs more than another call
_COMPUTED_WITH = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaError(Exception):
    """The workers' models have become different; the text says whose."""

    fatal = True


def kind_of_machine(device: torch.device) -> str:
    """The kind of machine that this worker runs on. Machines of one kind compute the same bits from the same numbers,
    as far as the optimizer's step goes."""
    if device.type == "cuda":
        return f"{torch.__version__} {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__} {platform.machine()} {capability} {torch.get_num_threads()}"


class ReplicaChecksum:
    """The numbers of one worker's replica."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = list(module.parameters())  # frozen ones too, which a script may change by itself
        self._device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._starts = list(accumulate((each.numel() for each in self._parameters), initial=0))

    def of(self, modules: Iterable[nn.Module]) -> ReplicaChecksum:
        """That of the parameters of other modules."""
        return ReplicaChecksum(nn.ModuleList(modules), self._optimizer)

    def at(self, number: int, *, exact: bool) -> float:
        """The checksum of the `number`th window: of its bits, a whole number below 2**52; or if not `exact`, the sum
        of its absolute values."""
        large: list[torch.Tensor] = []
        small: dict[torch.dtype, list[torch.Tensor]] = {}
        for part in map(_whole_numbers if exact else _sizes, self._window(number)):
            if part.numel() >= _LARGE:
                large.append(part)
            else:
                small.setdefault(part.dtype, []).append(part.to(self._device))
        # Small ones together, for most models have many; on one device, for an optimizer may keep some on the CPU.
        parts = [*large, *map(torch.cat, small.values())]
        if not exact:
            return math.fsum(float(each.sum()) for each in parts)
        return float(sum((place + 1) * _bits(each) for place, each in enumerate(parts)) % _EXACT)

    @property
    def windows(self) -> int:
        """How many windows hold all numbers."""
        return -(-self._starts[-1] // WINDOW)

    def over(self, first: int, count: int, *, exact: bool) -> float:
        """The checksum of so many windows, made of theirs in the same way."""
        sums = [self.at(number, exact=exact) for number in range(first, first + count)]
        if not exact:
            return math.fsum(sums)
        return float(sum((place + 1) * int(each) for place, each in enumerate(sums)) % _EXACT)

    def whole(self, *, exact: bool) -> float:
        """The checksum of all numbers."""
        return self.over(0, self.windows, exact=exact)

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
            yield _real(parameter)[part]
            kept = self._optimizer.state.get(parameter) or {}
            for name in sorted(key for key in kept if isinstance(key, str)):
                value = kept[name]
                if isinstance(value, torch.Tensor):
                    yield _real(value)[part if value.numel() == parameter.numel() else slice(WINDOW)]


def bits_of(tensor: torch.Tensor) -> int:
    """A checksum of a tensor's bits; 0 of one without numbers."""
    return _bits(_whole_numbers(_real(tensor)).contiguous()) if tensor.numel() else 0


def have_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type have the same bits."""
    return torch.equal(_whole_numbers(_real(one)), _whole_numbers(_real(other)))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1)


def _whole_numbers(vector: torch.Tensor) -> torch.Tensor:
    """The bits of a vector's elements: torch computes little with its rarer types, such as those of eight bits."""
    return vector.view(_WHOLE_NUMBERS[vector.element_size()])


def _sizes(vector: torch.Tensor) -> torch.Tensor:
    """The absolute values of a vector. Only what is computed with is rounded; all else counts by its bits."""
    return (vector if vector.dtype in _COMPUTED_WITH else _whole_numbers(vector)).double().abs()


def _bits(whole: torch.Tensor) -> int:
    """A sum in which each bit counts: of the lower halves of all words of 64 bits, and thrice that of the upper halves,
    which are signed. What is left behind the last whole word is added in the tensor's own width. To widen narrower
    numbers one by one would take longer than both sums.
    """
    size = whole.element_size()
    if whole.storage_offset() * size % _WORD or whole.stride(0) != 1:
        whole = whole.clone(memory_format=torch.contiguous_format)  # words begin at the first element, wherever it lies
    count = len(whole) - len(whole) * size % _WORD // size
    words = whole[:count].view(torch.int64)
    upper = int((words >> 32).sum())
    lower = (int(words.sum()) - (upper << 32)) % (1 << 64)  # as sums wrap; of less than 2**32 words it is exact
    rest = int(whole[count:].sum(dtype=torch.int64)) if count < len(whole) else 0
    return lower + 3 * upper + rest


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks that differ from most of the others."""

    what: str
    ranks: tuple[int, ...]


def difference(what: str, values: Sequence[float], *, exact: bool) -> Difference | None:
    """The ranks that differ from the others; None if all agree. Where no value is shared by most workers, all ranks
    that disagree with the first one differ."""
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
