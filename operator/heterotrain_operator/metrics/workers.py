"""From the series that one worker exports to what decisions know of it; the same wherever the series were read.

The table of workers' metrics says which series holds which field of `WorkerMetrics`, and the field's type and default
how it is read. A value is accepted only if it is possible: a single absurd number, such as a plan version of 300
digits, would otherwise appear in plans, status and metrics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_type_hints

from heterotrain import worker_metrics as table
from heterotrain.contract import Evaluated
from heterotrain.metric import TOTAL, Metric
from heterotrain_operator.core.model import WorkerMetrics

logger = logging.getLogger(__name__)

OWN_LABELS = frozenset(label for metric in table.WORKERS for label in metric.further)
"""Labels of single series of a worker, beside those that all of them have."""

PHASE, EVALUATION, RESUMED_STEP = table.PHASE.series, table.EVALUATION.series, table.RESUMED_STEP.series
WARM_UP, SMALLER_STEP = table.WARM_UP_SECONDS.series, table.SMALLER_STEP_SECONDS.series
"""The series of which the labels are read, too."""

MAX_UID_LENGTH = 64
MAX_LEAST_BATCH = 1024
"""Samples; a worker that reports to need more than this counts as one that needs one."""

MAX_PROTOCOL = 1024
"""A worker that speaks a greater version counts as one that speaks the first."""

MAX_FIGURE = 2.0**53
"""Of any kind: steps, seconds, samples, bytes. Whole numbers beyond it cannot be distinguished."""

MAX_BATCH_DIGITS = 9

MAX_SIZES = 8
"""Batch sizes that are read, of those that a worker had in its warm-up, or in smaller steps: the smallest."""

MAX_PHASE_LENGTH = 64
"""Characters of a phase's name, which may be one that this version does not know."""


class Sample(NamedTuple):
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics_of(samples: Iterable[Sample]) -> WorkerMetrics | None:
    """What one worker exports of the plan version that it follows, the greatest that it names.

    None if it names no version, or if a value is impossible.
    """
    own = list(samples)
    versions = [sample.value for sample in own if sample.name == table.PLAN_VERSION.name]
    try:
        if not versions:
            return None
        version = _whole(table.PLAN_VERSION.name, max(versions))
        followed = str(version)
        return _of_version([sample for sample in own if sample.labels.get(table.VERSION_LABEL) == followed], version)
    except ValueError as error:
        logger.debug("malformed metrics: %s", error)
        return None


def _of_version(samples: Iterable[Sample], version: int) -> WorkerMetrics:
    values: dict[str, float] = {}
    evaluation: list[tuple[str, float]] = []
    by_batch: dict[str, list[tuple[str, float]]] = {WARM_UP: [], SMALLER_STEP: []}
    phase = resumed_from = ""
    for name, labels, value in samples:
        if name == PHASE:
            phase = labels.get(table.PHASE_LABEL, "") if value else phase
        elif name == EVALUATION:
            evaluation.append((labels.get(table.METRIC_LABEL, ""), value))
        elif name in by_batch:
            by_batch[name].append((labels.get(table.BATCH_LABEL, ""), value))
        else:
            if name == RESUMED_STEP:
                resumed_from = labels.get(table.RESUMED_FROM_LABEL, "")
            values[name.removesuffix(TOTAL)] = value
    found = {field: read(name, values[name]) for name, field, read in _READ if name in values}
    found |= {
        "plan_version": version,
        "phase": _text("the phase", phase, MAX_PHASE_LENGTH),
        "resumed_from": _text("the earlier job's UID", resumed_from, MAX_UID_LENGTH),
        "evaluated": _evaluated(values.get(table.EVALUATION_STEP.name, math.nan), evaluation),
        "warm_up": _by_batch(by_batch[WARM_UP]),
        "smaller_steps": _by_batch(by_batch[SMALLER_STEP]),
    }
    return WorkerMetrics(**found)


def _text(what: str, text: str, longest: int) -> str:
    if len(text) > longest or not (text.isascii() and text.isprintable()):
        raise ValueError(f"{what} is {text[:longest]!r}")
    return text


def _evaluated(step: float, metrics: list[tuple[str, float]]) -> Evaluated | None:
    return Evaluated.of(int(step), metrics) if math.isfinite(step) else None


def _by_batch(steps: Iterable[tuple[str, float]]) -> tuple[tuple[int, float], ...]:
    """Batches and seconds; what is impossible is passed over, for it is a hint and no measurement."""
    possible = (
        (int(batch), seconds)
        for batch, seconds in steps
        if batch.isascii() and batch.isdigit() and len(batch) <= MAX_BATCH_DIGITS and 0 < seconds <= MAX_FIGURE
    )
    return tuple(sorted(each for each in possible if each[0] > 0)[:MAX_SIZES])


def _figure(name: str, value: float) -> float:
    if not 0 <= value <= MAX_FIGURE:
        raise ValueError(f"{name} is {value:g}")
    return value


def _whole(name: str, value: float) -> int:
    return int(_figure(name, value))


def _flag(_: str, value: float) -> bool:
    return value > 0


def _any(_: str, value: float) -> float:
    return value


def _whole_or_none(_: str, value: float) -> int | None:
    return int(value) if 0 <= value < MAX_FIGURE else None


def _least_batch(_: str, value: float) -> int:
    return int(value) if 1 <= value <= MAX_LEAST_BATCH and value == int(value) else 1


def _protocol(_: str, value: float) -> int:
    return int(value) if 1 <= value <= MAX_PROTOCOL and value == int(value) else 1


def _figure_or_none(_: str, value: float) -> float | None:
    return value if 0 <= value <= MAX_FIGURE else None


_Reader = Callable[[str, float], Any]
_BY_TYPE: Mapping[Any, _Reader] = {
    int: _whole,
    float: _figure,
    float | None: _figure,
    int | None: _whole_or_none,
    bool: _flag,
}
_BY_METRIC: Mapping[Metric, _Reader] = {
    table.LOSS: _any,  # it may be negative, and no number
    # One that is impossible does not make the others unreadable.
    table.LEAST_BATCH_SIZE: _least_batch,
    table.PROTOCOL: _protocol,
    table.OBSERVED_SECONDS: _figure_or_none,
    table.CPU_SECONDS: _figure_or_none,
    table.CPU_THROTTLED_OF_VERSION: _figure_or_none,
    table.CPU_WAIT_SECONDS: _figure_or_none,
    table.CPU_PRESSURE_SECONDS: _figure_or_none,
    table.COMPUTING_THREADS: _figure_or_none,
}


def _readers() -> tuple[tuple[str, str, _Reader], ...]:
    """For each metric whose value alone is a field: its name, the field, and how the value is read.

    Raises KeyError if a row of the table names a field that does not exist, or one of a type that cannot be read.
    """
    types = get_type_hints(WorkerMetrics)
    apart = (
        table.PLAN_VERSION,
        table.PHASE,
        table.EVALUATION,
        table.WARM_UP_SECONDS,
        table.SMALLER_STEP_SECONDS,
    )
    rows = [metric for metric in table.WORKERS if metric.field and metric not in apart]
    return tuple((row.name, row.field, _BY_METRIC.get(row) or _BY_TYPE[types[row.field]]) for row in rows)


_READ = _readers()
