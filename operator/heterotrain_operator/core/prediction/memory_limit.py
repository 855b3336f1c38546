"""Batches that memory allows: by the fitted model of a worker's memory, and below what it ran out of memory with.

Where nothing else is known, half of a batch that did not fit is a guess, but one that makes progress.
"""

from __future__ import annotations

from dataclasses import replace

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.memory_model import MemoryUse, failed, fitting_batch, measured


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
