"""The learned greatest batch: a worker whose throughput fell after a raise is not raised beyond the old
batch.

As the papers have it one spike of interference would cap a worker for ever (Taming III-C1: `b_max <- b0`), so
the fall must show in two intervals, beyond noise, and the bound expires.
"""

from __future__ import annotations

import math
from dataclasses import replace

from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.state import WorkerMemory

FALLS = 2
"""Intervals in a row that must show the fall."""

EXPIRES_INTERVALS = 50
"""Decisions for which a learned bound holds; then the worker may show again what it can do."""

FALL_DEVIATIONS = 4.0
"""Standard errors by which a window's throughput must be lower to count as a fall; both windows of a false alarm are
compared with one and the same throughput before the raise, so they are not independent."""

LEAST_FALL = 0.02
"""Relative fall below which a throughput counts as unchanged."""


def raised(memory: WorkerMemory, old_batch: int, new_batch: int, estimate: Estimate | None) -> WorkerMemory:
    """Note the throughput before a raise; a lowered batch ends the watch."""
    if new_batch == old_batch:
        return memory
    if new_batch < old_batch or estimate is None or old_batch <= 0:
        return forgotten(memory)
    throughput = old_batch / estimate.mean_seconds
    return replace(memory, raised_from=old_batch, raised_throughput=throughput, falls=0)


def forgotten(memory: WorkerMemory) -> WorkerMemory:
    """End the watch: the batch went down again, or the worker's speed changed for a reason of its own."""
    return replace(memory, raised_from=0, raised_throughput=0.0, falls=0)


def watched(memory: WorkerMemory, batch: int, window: Estimate | None) -> WorkerMemory:
    """One interval later: count a fall, set the bound after enough of them, let an old bound expire.

    Source: Taming III-C1; the two intervals and the expiry are ours.
    """
    left = max(memory.learned_max_intervals - 1, 0)
    memory = replace(memory, learned_max_intervals=left, learned_max=memory.learned_max if left else 0)
    if memory.raised_from <= 0 or window is None or batch <= memory.raised_from:
        return memory
    # The throughput before the raise was measured about as well as this window: hence the root of two.
    noise = max(FALL_DEVIATIONS * math.sqrt(2) * window.relative_error, LEAST_FALL)
    if batch / window.mean_seconds >= memory.raised_throughput * (1 - noise):
        return replace(memory, falls=0)
    if memory.falls + 1 < FALLS:
        return replace(memory, falls=memory.falls + 1)
    capped = replace(memory, learned_max=memory.raised_from, learned_max_intervals=EXPIRES_INTERVALS)
    return forgotten(capped)
