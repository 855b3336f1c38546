"""The queries of the dashboards, in PromQL; names of metrics come from the tables from which they are exported."""

from __future__ import annotations

from collections.abc import Iterable

from heterotrain import worker_metrics as workers
from heterotrain.metric import Metric
from heterotrain_operator.metrics import table

MATCHERS = 'namespace="$namespace",training_job="$job"'
SELECTOR = f"{{{MATCHERS}}}"
OF_ALL = 'namespace=~"$namespaces"'
"""The jobs of the namespaces that the page of all jobs shows."""

KNOWN_JOBS = f'__name__=~"{table.JOB_INFO.series}|{workers.PLAN_VERSION.series}"'
"""A job whose pods never started has no workers' series; where only pods are scraped, the operator's are missing."""


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


def numbered(metric: Metric, names: Iterable[str], matchers: str, labels: str) -> str:
    """The number, from 1, of the name that a label has: of a gauge that is 1 for one name of its label `phase`."""
    each = (f'{metric.series}{{{matchers},phase="{name}"}} * {number}' for number, name in enumerate(names, start=1))
    return f"max by ({labels}) ({' or '.join(each)})"


def every_job(metric: Metric, *further: str) -> str:
    """A gauge or counter of every job; of several operators that export it the greatest."""
    return f"max by ({', '.join(('namespace', 'training_job', *further))}) ({metric.series}{{{OF_ALL}}})"


def growth_of_every_job(metric: Metric, time: str, *further: str) -> str:
    """By how much a counter of every job grew in a time."""
    labels = ", ".join(("namespace", "training_job", *further))
    return f"max by ({labels}) (increase({metric.series}{{{OF_ALL}}}[{time}]))"


def or_none(expression: str) -> str:
    """The expression, and 0 where it finds nothing."""
    return f"{expression} or vector(0)"


def of_operators(name: str) -> str:
    """A series of the operators' processes, among those of all that Prometheus scrapes."""
    return f"{name} and on (job, instance) {table.LEADER.series}"


STEP_SECONDS = f"({rate(workers.OWN_SECONDS)} + {rate(workers.WAIT_SECONDS)})"
"""Seconds of measured steps per second; ratios over it leave out the steps that are not measured."""

THROUGHPUT = f"{rate(workers.SAMPLES)} / {STEP_SECONDS}"
JOB_THROUGHPUT = f"sum({THROUGHPUT})"
COST_PER_SECOND = f"max by (group) (rate({table.JOB_COST.series}{SELECTOR}[$__rate_interval]))"
COST_OF_A_MILLION = f"1000000 * sum({COST_PER_SECOND}) / {JOB_THROUGHPUT}"
WAITING = f"{rate(workers.WAIT_SECONDS)} / {STEP_SECONDS}"
REPEATED = f"max(increase({workers.STEPS_REPLAYED.series}{SELECTOR}[5m])) * {job(table.JOB_GLOBAL_BATCH_SIZE)}"
"""Members replay a broken step together, so that one that has replayed most speaks for all."""


def _of_peers(name: str) -> str:
    """How fast what a parameter server counts of each of its workers grows per second."""
    return f"sum by (peer) (rate({name}{SELECTOR}[$__rate_interval]))"


UPDATES = _of_peers(workers.SERVER_UPDATES.series)
STALENESS = (
    f"{_of_peers(f'{workers.SERVER_STALENESS.name}_sum')} / {_of_peers(f'{workers.SERVER_STALENESS.name}_count')}"
)

MEMORY_SHARE = f"{worker(workers.MEMORY_PEAK_BYTES)} / {worker(workers.MEMORY_LIMIT_BYTES)}"

PLAN_CHANGED = f"max(changes({table.JOB_PLAN_VERSION.series}{SELECTOR}[$__rate_interval]))"
MEMBERS_CHANGED = f"max by (kind) (increase({table.JOB_TRANSITIONS.series}{SELECTOR}[$__rate_interval]))"
RESTARTED = growth(table.JOB_RESTARTS)
"""Events; where they are not zero, something happened."""


def _all_workers(counter: Metric) -> str:
    return f"sum by (namespace, training_job, worker) (rate({counter.series}{{{OF_ALL}}}[$__rate_interval]))"


_ALL_STEP_SECONDS = f"({_all_workers(workers.OWN_SECONDS)} + {_all_workers(workers.WAIT_SECONDS)})"
THROUGHPUT_OF_EVERY_JOB = f"sum by (namespace, training_job) ({_all_workers(workers.SAMPLES)} / {_ALL_STEP_SECONDS})"
WAITING_OF_EVERY_JOB = f"avg by (namespace, training_job) ({_all_workers(workers.WAIT_SECONDS)} / {_ALL_STEP_SECONDS})"
COST_PER_HOUR_OF_EVERY_JOB = (
    "3600 * sum by (namespace, training_job) (max by (namespace, training_job, group) "
    f"(rate({table.JOB_COST.series}{{{OF_ALL}}}[$__rate_interval])))"
)
FIRING = 'ALERTS{alertname=~"HeteroTrain.+",alertstate="firing"}'
"""Prometheus makes them where it evaluates the rules of the chart."""
