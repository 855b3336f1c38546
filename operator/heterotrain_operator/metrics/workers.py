"""From the series that one worker exports to what decisions know of it; the same wherever the series were read.

A figure is believed only if it can be one: a single absurd number, such as a plan version of 300 digits, would
otherwise stand in plans, status and metrics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from heterotrain import contract
from heterotrain_operator.core.model import WorkerMetrics

logger = logging.getLogger(__name__)

PHASE_LABEL = "phase"
METRIC_LABEL = "metric"
OWN_LABELS = frozenset({PHASE_LABEL, METRIC_LABEL, contract.LABEL_RESUMED_FROM})
"""Of single series of a worker, beside those that all of them have."""

LONGEST_UID = 64
GREATEST_LEAST_BATCH = 1024
"""Samples; a worker that reports to need more than this is not believed."""

GREATEST_FIGURE = 2.0**53
"""Of any kind: steps, seconds, samples, bytes. Whole numbers beyond it are not told apart."""

GREATEST_PHASE = 64
"""Characters of a phase's name, which may be one that this version does not know."""

_COUNTER_SUFFIX = "_total"  # prometheus_client appends it to the names of counters


class Sample(NamedTuple):
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def worker_metrics(samples: Iterable[Sample]) -> WorkerMetrics | None:
    """What one worker exports of the plan version in force, the greatest that it names.

    None if it names no version, or if a figure cannot be one.
    """
    own = list(samples)
    versions = [sample.value for sample in own if sample.name == contract.METRIC_PLAN_VERSION]
    try:
        if not versions:
            return None
        version = _whole({contract.METRIC_PLAN_VERSION: max(versions)}, contract.METRIC_PLAN_VERSION)
        values, texts = _of_version(own, str(version))
        return _metrics(version, values, texts)
    except ValueError as error:
        logger.debug("malformed metrics: %s", error)
        return None


def _of_version(samples: Iterable[Sample], version: str) -> tuple[dict[str, float], _Texts]:
    """The figures, and what is told in labels."""
    values: dict[str, float] = {}
    evaluation: list[tuple[str, float]] = []
    phase = resumed_from = ""
    for sample in samples:
        if sample.labels.get("plan_version") != version:
            continue
        if sample.name == contract.METRIC_PHASE:
            phase = sample.labels.get(PHASE_LABEL, "") if sample.value else phase
        elif sample.name == contract.METRIC_EVALUATION:
            evaluation.append((sample.labels.get(METRIC_LABEL, ""), sample.value))
        else:
            if sample.name == contract.METRIC_RESUMED_STEP:
                resumed_from = sample.labels.get(contract.LABEL_RESUMED_FROM, "")
            values[sample.name.removesuffix(_COUNTER_SUFFIX)] = sample.value
    if len(phase) > GREATEST_PHASE or not (phase.isascii() and phase.isprintable()):
        raise ValueError(f"the phase is {phase[:GREATEST_PHASE]!r}")
    if len(resumed_from) > LONGEST_UID or not (resumed_from.isascii() and resumed_from.isprintable()):
        raise ValueError(f"the earlier job's UID is {resumed_from[:LONGEST_UID]!r}")
    return values, _Texts(phase, resumed_from, evaluation)


class _Texts(NamedTuple):
    """The phase, of which job the checkpoint was that it resumed from, and what was evaluated last, by metric."""

    phase: str
    resumed_from: str
    evaluation: list[tuple[str, float]]


def _metrics(version: int, values: Mapping[str, float], texts: _Texts) -> WorkerMetrics:
    return WorkerMetrics(
        plan_version=version,
        generation=_whole(values, contract.METRIC_GENERATION),
        batch_size=_whole(values, contract.METRIC_BATCH_SIZE),
        step=_whole(values, contract.METRIC_STEP),
        total_steps=_whole(values, contract.METRIC_TOTAL_STEPS),
        epoch=_whole(values, contract.METRIC_EPOCH),
        phase=texts.phase,
        in_collective=values.get(contract.METRIC_IN_COLLECTIVE, 0.0) > 0,
        steps=_figure(values, contract.METRIC_STEPS),
        samples=_figure(values, contract.METRIC_SAMPLES),
        own_seconds=_figure(values, contract.METRIC_OWN_SECONDS),
        own_seconds_squared=_figure(values, contract.METRIC_OWN_SECONDS_SQUARED),
        wait_seconds=_figure(values, contract.METRIC_WAIT_SECONDS),
        own_seconds_ewma=_known(values, contract.METRIC_OWN_SECONDS_EWMA),
        loss=values.get(contract.METRIC_LOSS),
        memory_bytes=_known(values, contract.METRIC_MEMORY_BYTES),
        cpu_limit=_known(values, contract.METRIC_CPU_LIMIT),
        memory_peak_bytes=_known(values, contract.METRIC_MEMORY_PEAK_BYTES),
        memory_limit_bytes=_known(values, contract.METRIC_MEMORY_LIMIT_BYTES),
        memory_batch_size=_whole(values, contract.METRIC_MEMORY_BATCH_SIZE),
        resumed_step=_step(values.get(contract.METRIC_RESUMED_STEP)),
        resumed_from=texts.resumed_from,
        evaluated=_evaluated(values, texts.evaluation),
        least_batch_size=_least_batch(values.get(contract.METRIC_LEAST_BATCH_SIZE, 1.0)),
    )


def _figure(values: Mapping[str, float], name: str) -> float:
    value = values.get(name, 0.0)
    if not 0 <= value <= GREATEST_FIGURE:
        raise ValueError(f"{name} is {value:g}")
    return value


def _known(values: Mapping[str, float], name: str) -> float | None:
    return _figure(values, name) if name in values else None


def _whole(values: Mapping[str, float], name: str) -> int:
    return int(_figure(values, name))


def _step(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None


def _evaluated(values: Mapping[str, float], metrics: list[tuple[str, float]]) -> contract.Evaluated | None:
    step = values.get(contract.METRIC_EVALUATION_STEP, math.nan)
    return contract.Evaluated.of(int(step), metrics) if math.isfinite(step) else None


def _least_batch(value: float) -> int:
    return int(value) if 1 <= value <= GREATEST_LEAST_BATCH and value == int(value) else 1
