"""The queries of the dashboard, in PromQL; names of metrics come from the tables from which they are exported."""

from __future__ import annotations

from heterotrain import worker_metrics as workers
from heterotrain.metric import Metric
from heterotrain_operator.metrics import table

SELECTOR = '{namespace="$namespace",training_job="$job"}'


def worker(gauge: Metric) -> str:
    """A gauge of every worker."""
    return f"max by (worker) ({gauge.series}{SELECTOR})"


def job(gauge: Metric) -> str:
    """A gauge of the job; the greatest, while an old and a new operator both export it."""
    return f"max({gauge.series}{SELECTOR})"


def by(label: str, gauge: Metric) -> str:
    """A gauge of the job for each value of a label."""
    return f"max by ({label}) ({gauge.series}{SELECTOR})"


def rate(counter: Metric) -> str:
    """How fast a counter of every worker grows per second, whatever plan version it belongs to."""
    return f"sum by (worker) (rate({counter.series}{SELECTOR}[$__rate_interval]))"


def of_time(seconds: Metric) -> str:
    """Seconds of every worker per second in which they were counted."""
    return f"{rate(seconds)} / {rate(workers.OBSERVED_SECONDS)}"


def operator_rate(counter: Metric, labels: str) -> str:
    """How fast a counter of the operator grows per second."""
    return f"sum by ({labels}) (rate({counter.series}[$__rate_interval]))"


def in_view(counter: Metric) -> str:
    """By how much a counter of the job grew in the time that is shown."""
    return f"round({growth(counter, '$__range')})"


def growth(counter: Metric, time: str = "$__rate_interval") -> str:
    """By how much a counter of the job grew in a time."""
    return f"max(increase({counter.series}{SELECTOR}[{time}]))"


def quantile(share: float, histogram: Metric) -> str:
    """A quantile of what the operator measured."""
    return f"histogram_quantile({share}, sum by (le) (rate({histogram.name}_bucket[$__rate_interval])))"


STEP_SECONDS = f"({rate(workers.OWN_SECONDS)} + {rate(workers.WAIT_SECONDS)})"
"""Seconds of measured steps per second; ratios over it leave out the steps that are not measured."""

THROUGHPUT = f"{rate(workers.SAMPLES)} / {STEP_SECONDS}"
WAITING = f"{rate(workers.WAIT_SECONDS)} / {STEP_SECONDS}"
REPEATED = f"max(increase({workers.STEPS_REPLAYED.series}{SELECTOR}[5m])) * {job(table.JOB_GLOBAL_BATCH_SIZE)}"
"""Members replay a broken step together, so that one that has replayed most speaks for all."""

MEMORY_SHARE = f"{worker(workers.MEMORY_PEAK_BYTES)} / {worker(workers.MEMORY_LIMIT_BYTES)}"
