"""From the series that one worker exports to what decisions know of it; the same wherever the series were read."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from prometheus_client.samples import Sample

from heterotrain import contract
from heterotrain_operator.core.model import WorkerMetrics

logger = logging.getLogger(__name__)

PHASE_LABEL = "phase"
METRIC_LABEL = "metric"
OWN_LABELS = (PHASE_LABEL, METRIC_LABEL)
"""Labels in which series of one scrape differ."""
GREATEST_LEAST_BATCH = 1024
"""Samples; a worker that reports to need more than this is not believed."""

_COUNTER_SUFFIX = "_total"  # prometheus_client appends it to the names of counters


def worker_metrics(samples: Iterable[Sample]) -> WorkerMetrics | None:
    """What one worker exports of the plan version in force, the greatest that it names.

    None if it names no version, or if a figure that must be whole is none.
    """
    own = list(samples)
    versions = [sample.value for sample in own if sample.name == contract.METRIC_PLAN_VERSION]
    if not versions or not math.isfinite(max(versions)):
        return None
    version = int(max(versions))
    values: dict[str, float] = {}
    evaluation: list[tuple[str, float]] = []
    phase = ""
    for sample in own:
        if sample.labels.get("plan_version") != str(version):
            continue
        if sample.name == contract.METRIC_PHASE:
            phase = sample.labels.get(PHASE_LABEL, "") if sample.value else phase
        elif sample.name == contract.METRIC_EVALUATION:
            evaluation.append((sample.labels.get(METRIC_LABEL, ""), sample.value))
        else:
            values[sample.name.removesuffix(_COUNTER_SUFFIX)] = sample.value
    try:
        return replace(_metrics(version, values, phase), evaluated=_evaluated(values, evaluation))
    except (ValueError, OverflowError) as error:
        logger.debug("malformed metrics: %s", error)
        return None


def _metrics(version: int, values: Mapping[str, float], phase: str) -> WorkerMetrics:
    return WorkerMetrics(
        plan_version=version,
        generation=int(values.get(contract.METRIC_GENERATION, 0)),
        batch_size=int(values.get(contract.METRIC_BATCH_SIZE, 0)),
        step=int(values.get(contract.METRIC_STEP, 0)),
        total_steps=int(values.get(contract.METRIC_TOTAL_STEPS, 0)),
        epoch=int(values.get(contract.METRIC_EPOCH, 0)),
        phase=phase,
        in_collective=values.get(contract.METRIC_IN_COLLECTIVE, 0.0) > 0,
        steps=values.get(contract.METRIC_STEPS, 0.0),
        samples=values.get(contract.METRIC_SAMPLES, 0.0),
        own_seconds=values.get(contract.METRIC_OWN_SECONDS, 0.0),
        own_seconds_squared=values.get(contract.METRIC_OWN_SECONDS_SQUARED, 0.0),
        wait_seconds=values.get(contract.METRIC_WAIT_SECONDS, 0.0),
        own_seconds_ewma=values.get(contract.METRIC_OWN_SECONDS_EWMA),
        loss=values.get(contract.METRIC_LOSS),
        memory_bytes=values.get(contract.METRIC_MEMORY_BYTES),
        cpu_limit=values.get(contract.METRIC_CPU_LIMIT),
        memory_peak_bytes=values.get(contract.METRIC_MEMORY_PEAK_BYTES),
        memory_limit_bytes=values.get(contract.METRIC_MEMORY_LIMIT_BYTES),
        memory_batch_size=int(values.get(contract.METRIC_MEMORY_BATCH_SIZE, 0)),
        least_batch_size=_least_batch(values.get(contract.METRIC_LEAST_BATCH_SIZE, 1.0)),
    )


def _evaluated(values: Mapping[str, float], metrics: list[tuple[str, float]]) -> contract.Evaluated | None:
    step = values.get(contract.METRIC_EVALUATION_STEP, math.nan)
    return contract.Evaluated.of(int(step), metrics) if math.isfinite(step) else None


def _least_batch(value: float) -> int:
    return int(value) if 1 <= value <= GREATEST_LEAST_BATCH and value == int(value) else 1
