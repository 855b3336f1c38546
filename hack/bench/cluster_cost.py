"""What the operator takes for its jobs: CPU, memory and writes, from its own metrics, over a while in which nothing
happens to the jobs but training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cluster_bench import Bench

from e2e.api import Document
from e2e.installation import Installation
from e2e.jobs import JobOnCluster
from e2e.manifests import digits, group, job
from e2e.waiting import wait_for

WORKER_CPU = "50m"
START_SECONDS = 1200.0
"""Forty workers that load torch on two CPUs take their time."""

SETTLE_SECONDS = 60.0

WRITES = "heterotrain_operator_api_writes_total"
LOOKS = "heterotrain_operator_reconcile_duration_seconds"


@dataclass(frozen=True, slots=True)
class Cost:
    """The operator's cost at a number of jobs of two workers each, all of them training or all suspended.

    `look_seconds` is the mean of one look at a job; `writes_per_job_minute` are by verb and kind.
    """

    jobs: int
    state: str
    seconds: float
    cpu_seconds_per_job_hour: float
    memory_bytes: float
    look_seconds: float
    writes_per_job_minute: dict[str, float]


def measure_cost(bench: Bench, count: int, seconds: float) -> list[Cost]:
    """The cost of jobs that train, and of the same jobs suspended."""
    with bench.namespace() as namespace:
        jobs = [bench.apply(namespace, small_job(f"small-{number}")) for number in range(count)]
        await_all(jobs, "Running", lambda each: each.condition("Balanced").get("reason") != "NotMeasured")
        training = measure(bench.installation, count, "training", seconds)
        for each in jobs:
            each.patch({"runPolicy": {"suspend": True}})
        await_all(jobs, "Suspended", lambda each: not each.pods())
        return [training, measure(bench.installation, count, "suspended", seconds)]


def small_job(name: str) -> Document:
    """Two workers with a sliver of a CPU each."""
    workers = group("worker", WORKER_CPU, replicas=2, command=digits(4))
    workers["template"]["spec"]["containers"][0] |= {"env": []}  # nobody reads their steps
    return job(
        name,
        workers,
        batch=32,
        checkpoint={"everySteps": 1_000_000},
        runPolicy={"startupDeadlineSeconds": START_SECONDS},
    )


def await_all(jobs: list[JobOnCluster], phase: str, settled: Callable[[JobOnCluster], bool]) -> None:
    """Wait until all jobs are in a phase, and then for a while."""
    for each in jobs:
        each.wait_for_phase(phase, START_SECONDS)
    for each in jobs:
        wait_for(partial(settled, each), START_SECONDS, f"{each.name} to settle")
    time.sleep(SETTLE_SECONDS)


def measure(installation: Installation, count: int, state: str, seconds: float) -> Cost:
    """Two looks at the operator's own metrics."""
    (pod,) = installation.pods()
    name = pod["metadata"]["name"]
    before, began = installation.metrics(name), time.monotonic()
    time.sleep(seconds)
    after, ended = installation.metrics(name), time.monotonic()
    took = ended - began

    def grown(series: str) -> float:
        return after.get(series, 0.0) - before.get(series, 0.0)

    writes = {series: grown(series) for series in after if series.startswith(WRITES)}
    looks = grown(f"{LOOKS}_count")
    return Cost(
        jobs=count,
        state=state,
        seconds=took,
        cpu_seconds_per_job_hour=grown("process_cpu_seconds_total") / took * 3600 / count,
        memory_bytes=after["process_resident_memory_bytes"],
        look_seconds=grown(f"{LOOKS}_sum") / looks if looks else 0.0,
        writes_per_job_minute={series: number / took * 60 / count for series, number in writes.items() if number},
    )
