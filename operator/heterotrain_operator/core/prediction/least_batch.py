"""The fewest samples that a worker's model trains well with, as lower bounds of batches.

BatchNorm's statistics are those of each worker's own samples, and too noisy if these are few. The worker knows its
model and reports the number; `trainer-image/heterotrain/state/batch_norm.py` has the measurements behind it. Training
also works with fewer, so upper bounds and the global batch take precedence.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.split.levels import Bounds


def reported_least(known: int, metrics: WorkerMetrics | None) -> int:
    """The fewest samples that a worker reports, or else what is `known`; one sample is no bound, and kept as 0."""
    if metrics is None:
        return known
    return metrics.least_batch_size if metrics.least_batch_size > 1 else 0


def bounded_below(total: int, bounds: Sequence[Bounds], leasts: Sequence[int]) -> list[Bounds]:
    """Bounds in samples whose lower ends are raised to `leasts`, but not beyond the upper ends.

    If the raised ends add up to more than `total` samples, the bounds stay as they are.
    """
    if not any(leasts):
        return list(bounds)
    raised = [(max(low, min(least, high)), high) for (low, high), least in zip(bounds, leasts, strict=True)]
    return raised if sum(low for low, _ in raised) <= total else list(bounds)


def why_no_fewer(least: int, users_low: int, low: int) -> str:
    """What a worker's lower bound `low` rests on, in words; empty if it is the user's, or lower. It reports `least`."""
    if low <= users_low or least <= users_low:
        return ""
    return f"at least {low} samples, since it reports that its model trains badly with fewer than {least}"
