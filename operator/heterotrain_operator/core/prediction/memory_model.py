"""How a worker's peak memory grows with its batch, and the greatest batch that its limit holds.

Parameters, gradients and optimizer are a fixed part; activations and data grow with the batch. So a peak is `fixed +
slope*b`, and the greatest batch is `floor((available - fixed)/slope)` (OmniLearn III-B2). The line goes through the
smallest and the greatest batch seen, which span most and are four small numbers to remember; it is read with an error
against us at both ends. So it holds more the further they lie apart, and promises little beyond two batches that are
nearly alike. All of it is whole mebibytes and samples: exact, and total on whatever is remembered.

Batches are also kept below what the worker ran out of memory with. Where nothing else is known, half of a batch that
did not fit is a guess, but one that makes progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from heterotrain_operator.core.columns import Column
from heterotrain_operator.core.model import WorkerMetrics

MEBIBYTE = 1 << 20

USABLE_PERCENT = 95
"""Of a limit; the rest is for what a peak does not show, such as the kernel's own memory. Source: LB-BSP Algorithm 2
(a worker gets more samples only while its memory is at most 95 % used)."""

ERROR_PERCENT = 5
"""By which a peak may be misjudged: allocators keep what they may need again, so that after a greater batch the same
one was seen to take 4 to 6 % more than before it."""

LEAST_ERROR_MIB = 2
"""And at least by so much."""

FADING = 4
"""One part in so many of what a peak lies below the one remembered is believed per interval: up at once, down slowly.
"""

ABSURD_BYTES = 2.0**60
"""A peak or limit beyond this is a fault of measurement."""

VARIATION_PERCENT = 1
"""Of a limit: peaks of one batch vary by about so much, and a batch is tried only where that leaves its peak within the
usable part. With half of it, tried batches were taken back later, with twice as much none was tried from 92 % on."""

LIMIT_GROWTH_PERCENT = 5
"""By which a limit must grow for an earlier lack of memory to say nothing any more."""


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What a worker's memory is known to be: peaks at two batches (samples, MiB) and the limit (MiB; 0: none)."""

    low_batch: int
    low_mib: int
    high_batch: int
    high_mib: int
    limit_mib: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What is remembered of a worker's memory: peaks (MiB) at the smallest and the greatest batch seen, and the limit.

    `guessed_batch` is the batch that is thought to be safe since `failed_batch` did not fit; 0: it never ran out of
    memory. What follows from these numbers is worked out once, for they change seldom and are read at every look.
    """

    guessed_batch: Annotated[int, Column(20)] = 0
    limit_mib: Annotated[int, Column(22)] = 0
    low_batch: Annotated[int, Column(23)] = 0
    low_mib: Annotated[int, Column(24)] = 0
    high_batch: Annotated[int, Column(25)] = 0
    high_mib: Annotated[int, Column(26)] = 0
    failed_batch: Annotated[int, Column(27)] = 0
    line: MemoryLine | None = field(default=None, init=False, compare=False, repr=False)
    """None with fewer than two batches: one batch tells no slope."""
    greatest_batch: int | None = field(default=None, init=False, compare=False, repr=False)
    """The greatest batch whose peak stays within the usable part of the limit; None if that is not known."""

    def __post_init__(self) -> None:
        if 0 < self.low_batch < self.high_batch and 0 < self.low_mib <= self.high_mib:
            line = MemoryLine(self.low_batch, self.low_mib, self.high_batch, self.high_mib, self.limit_mib)
            object.__setattr__(self, "line", line)
            object.__setattr__(self, "greatest_batch", _greatest(line))

    @property
    def greatest_growth(self) -> int | None:
        """The greatest batch to try when only one was seen; None if nothing is known.

        The fixed part is not negative, so memory grows at most in proportion to the batch. That is no bound, for nearly
        all of it may be fixed, but a size at which the next peak can be looked at without risk.
        """
        if self.low_batch <= 0 or self.low_mib <= 0 or self.limit_mib <= 0 or self.line is not None:
            return None
        return max(self.low_batch * _usable(self.limit_mib) // _raised(self.low_mib), self.low_batch)


def _greatest(line: MemoryLine) -> int | None:
    """Never less than the smallest batch seen, which has run, and not less than the greatest one while its peak fits.
    Where nothing more is sure, some may be tried.
    """
    if line.limit_mib <= 0:
        return None
    usable = _usable(line.limit_mib)
    low, high, span = _raised(line.low_mib), _raised(line.high_mib), line.high_batch - line.low_batch
    if line.high_mib <= usable:
        sure = (usable - high) * span // (high - (line.low_mib - _error(line.low_mib)))
        return line.high_batch + (sure if sure > 0 else _tried(line, usable, span))
    if low >= usable:
        return line.low_batch
    return line.low_batch + (usable - low) * span // (high - low)


def _tried(line: MemoryLine, usable: int, span: int) -> int:
    """Samples more whose peak may be looked at, since it will be below the limit in any case.

    They are expected to stay as far below the usable part as peaks vary, and are no more than the batches seen span. So
    even if the lower peak was misjudged by its whole error, they exceed the usable part by less than that error, which
    is no more than what is not used of the limit.
    """
    variation = line.limit_mib * VARIATION_PERCENT // 100
    room = usable - variation - line.high_mib
    return max(min(room * span // max(line.high_mib - line.low_mib + variation, 1), span), 0)


def measured(known: MemoryUse, batch: int, peak_bytes: float | None, limit_bytes: float | None = None) -> MemoryUse:
    """Take in the peak at a batch, and the present limit; an absurd figure is ignored.

    A peak beyond what the line allows within its ends is a growth of the fixed part, and lifts both ends.
    """
    limit = int(limit_bytes // MEBIBYTE) if limit_bytes is not None and 0 <= limit_bytes < ABSURD_BYTES else None
    peak = -int(-peak_bytes // MEBIBYTE) if peak_bytes is not None and 0 <= peak_bytes < ABSURD_BYTES else None
    if limit is not None and limit != known.limit_mib:
        known = _under_limit(known, limit)
    if batch <= 0 or peak is None or peak <= 0:
        return known
    low, high = known.low_batch, known.high_batch
    if low <= 0:
        return _with_ends(known, batch, peak, 0, 0)
    line = known.line
    if line is None:
        if batch == low:
            return replace(known, low_mib=_followed(known.low_mib, peak))
        if batch > low:
            return _with_ends(known, low, known.low_mib, batch, max(peak, known.low_mib))
        return _with_ends(known, batch, peak, low, max(peak, known.low_mib))
    if batch > high:
        return _with_ends(known, low, line.low_mib, batch, max(peak, line.high_mib))
    if batch < low:
        # More memory for fewer samples: it is the fixed part that has grown.
        return _with_ends(known, batch, peak, high, line.high_mib + max(peak - line.low_mib, 0))
    return _within(known, line, batch, peak)


def failed(known: MemoryUse, batch: int) -> MemoryUse:
    """The limit did not hold this batch: where the line says that it would, it is bent to what has happened."""
    line, bound = known.line, known.greatest_batch
    if 0 < batch <= known.low_batch:
        return _with_ends(known, 0, 0, 0, 0)
    if line is None or bound is None or bound < batch:
        return known
    return _with_ends(known, line.low_batch, line.low_mib, batch, max(line.limit_mib, line.high_mib))


def fitting_batch(known: MemoryUse, below: int) -> int:
    """The greatest batch below `below` that is known to have run within the limit; 0 if none is."""
    usable = _usable(known.limit_mib)
    ends = (
        (known.high_batch, known.high_mib),
        (known.low_batch, known.low_mib),
    )
    return max((batch for batch, peak in ends if 0 < batch < below and 0 < peak <= usable), default=0)


def _under_limit(known: MemoryUse, limit: int) -> MemoryUse:
    if 0 < known.limit_mib * (100 + LIMIT_GROWTH_PERCENT) < limit * 100:
        known = replace(known, guessed_batch=0, failed_batch=0)
    return replace(known, limit_mib=limit)


def _within(known: MemoryUse, line: MemoryLine, batch: int, peak: int) -> MemoryUse:
    low, high = line.low_mib, line.high_mib
    if batch == line.high_batch and peak == high:
        return known
    span = line.high_batch - line.low_batch
    expected = low + (high - low) * (batch - line.low_batch) // span
    if batch == line.high_batch:
        # Lowered together, the ends keep their slope; a higher peak at the greatest batch makes it steeper.
        change = _followed(high, peak) - high
        low, high = low + min(change, 0), high + change
    elif peak > _raised(expected):
        low, high = low + peak - expected, high + peak - expected
    elif batch == line.low_batch and peak < low:
        low = _followed(low, peak)
    return _with_ends(known, line.low_batch, max(low, 1), line.high_batch, max(high, 1))


def _with_ends(known: MemoryUse, low_batch: int, low_mib: int, high_batch: int, high_mib: int) -> MemoryUse:
    ends = (low_batch, low_mib, high_batch, high_mib)
    if ends == (known.low_batch, known.low_mib, known.high_batch, known.high_mib):
        return known
    return replace(
        known,
        low_batch=low_batch,
        low_mib=low_mib,
        high_batch=high_batch,
        high_mib=high_mib,
    )


def _followed(known: int, peak: int) -> int:
    return peak if peak >= known else known - (known - peak) // FADING


def _usable(limit_mib: int) -> int:
    return limit_mib * USABLE_PERCENT // 100


def _error(mib: int) -> int:
    return max(-(-mib * ERROR_PERCENT // 100), LEAST_ERROR_MIB)


def _raised(mib: int) -> int:
    return mib + _error(mib)


def batch_limit(known: MemoryUse) -> int | None:
    """The greatest batch that a worker's memory is thought to hold; None if nothing is known."""
    modelled = known.greatest_batch
    if known.guessed_batch <= 0 and known.failed_batch <= 0:
        return modelled
    limits = [_guessed(known)] if known.guessed_batch > 0 else []
    limits += [max(known.failed_batch - 1, 1)] if known.failed_batch > 0 else []
    return min([*limits, modelled] if modelled is not None else limits)


def _guessed(known: MemoryUse) -> int:
    """What was guessed after a failure, or the more that the one batch seen since says is sure to fit."""
    tried = known.greatest_growth
    return max(known.guessed_batch, tried) if tried is not None and tried < known.failed_batch else known.guessed_batch


def with_peak(known: MemoryUse, metrics: WorkerMetrics) -> MemoryUse:
    """Take in what a worker reports of its peak memory since the active plan began.

    Once two batches have been measured, their line takes the place of a guess, unless it belies the failure.
    """
    after = measured(known, metrics.memory_batch_size, metrics.memory_peak_bytes, metrics.memory_limit_bytes)
    if after is known:
        return known
    modelled = after.greatest_batch
    if known.line is None and modelled is not None and modelled < after.failed_batch:
        return replace(after, guessed_batch=0)
    return after


def why_no_more(known: MemoryUse) -> str:
    """What the greatest batch that a worker's memory holds rests on, in words; empty if none is known."""
    most = batch_limit(known)
    if most is None:
        return ""
    line = known.line
    if line is None or known.greatest_batch != most:
        return f"at most {most} samples, since it ran out of memory with more"
    if most == line.low_batch:
        return f"at most {most} samples, the fewest seen, with which it took {line.low_mib} of {line.limit_mib} MiB"
    return (
        f"at most {most} samples, which are sure to fit into its {line.limit_mib} MiB by peaks of {line.low_mib} MiB "
        f"at {line.low_batch} and {line.high_mib} MiB at {line.high_batch} samples"
    )


def after_failure(known: MemoryUse, batch: int, low: int) -> MemoryUse:
    """What is known once a batch has not fitted; `low` is the least that the user allows.

    A model that knew the batch to be too large is believed. One that did not is corrected, and the next batch is one
    that is known to fit, or half of the failed one.
    """
    modelled = known.greatest_batch
    if modelled is not None and modelled < batch:
        safe = modelled
    else:
        tried = known.greatest_growth or 0
        safe = max(batch // 2, fitting_batch(known, batch), tried if tried < batch else 0)
    safe = max(safe, low)
    if safe >= batch:
        return known
    return replace(failed(known, batch), guessed_batch=safe, failed_batch=min(batch, known.failed_batch or batch))
