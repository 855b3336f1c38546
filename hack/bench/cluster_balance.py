"""The digits job on a cluster, run after run: when it starts, is balanced and follows its plans, and how fast it is."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cluster_bench import Bench

from e2e.api import ApiError, Document
from e2e.example import unequal_digits
from e2e.history import History
from e2e.jobs import JobOnCluster, own_seconds
from e2e.waiting import wait_for
from heterotrain import worker_metrics as table
from heterotrain.contract import StepRecord
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.series import align
from heterotrain_operator.experiments.figures.summary import Summary, summarize

RUN_SECONDS = 1800.0
TOLERANCE = 0.10
LEAST_STEPS = 10

PROFILED_SPLITS = (
    (100, 100, 100),
    (130, 100, 70),
    (150, 95, 55),
    (165, 90, 45),
    (180, 80, 40),
    (200, 70, 30),
)
"""Batches at which own times are measured for the ceiling: from equal shares to beyond those of the CPU limits."""

PROFILED_STEPS = 25

Records = Mapping[str, Sequence[StepRecord]]


@dataclass(frozen=True, slots=True)
class Balance:
    """One run. `running_seconds` are from the creation of the job until it is Running; `balanced_seconds` from the
    first measured step until the workers follow the first plan from which on their own times stay within 10 %, None
    if there is none; `followed_seconds` from each adjustment's write until all follow it. `batches` are the last
    ones, and `imbalance` the slowest own time under them over the mean, less one.
    """

    policy: str
    round: int
    running_seconds: float
    balanced_seconds: float | None
    followed_seconds: tuple[float, ...]
    adjustments: int
    batches: tuple[int, ...]
    imbalance: float


def measure_balance(bench: Bench, policy: str, number: int, steps: int, width: int) -> tuple[Balance, TrialHistory]:
    """Run the job once, to its end."""
    manifest = unequal_digits(width, training={"steps": steps}, batching={"policy": policy})
    with bench.namespace() as namespace:
        applied = time.time()
        job = bench.apply(namespace, manifest)
        with History(job) as history:
            status = job.wait_for_phase("Succeeded", RUN_SECONDS)
        records = records_of(job, history)
    judged = [version for version in sorted(history.plans) if imbalance(records, version) is not None]
    last = judged[-1]
    excess = imbalance(records, last)
    assert excess is not None
    balance = Balance(
        policy=policy,
        round=number,
        running_seconds=history.entered["Running"] - applied,
        balanced_seconds=balanced_seconds(records, judged),
        followed_seconds=followed_seconds(records, history),
        adjustments=len(history.plans) - 1,
        batches=history.plans[last].batch_sizes,
        imbalance=excess,
    )
    trial = TrialHistory(
        policy=policy,
        round=number,
        steps=align(records),
        adjustments=len(history.plans) - 1,
        phase="Succeeded",
        restarts=int(status["restarts"]),
    )
    return balance, trial


def compare(bench: Bench, trials: Sequence[TrialHistory], width: int) -> Summary:
    """Profile the workers on this cluster, and put the runs beside the best that was possible."""
    profile, bounds = profiled(bench, width)
    names = list(profile.steps[0].records)
    ordered = sorted(trials, key=lambda trial: trial.policy != "Optimal")
    return summarize("digits", ordered, names, bounds=bounds, profiled=[profile])


def profiled(bench: Bench, width: int) -> tuple[TrialHistory, Mapping[str, tuple[int, int]]]:
    """Own times of every worker at several batches, which its bounds force on it; and the bounds of the job itself."""
    manifest = unequal_digits(width, training={"steps": 1_000_000}, batching={"policy": "Uniform"})
    groups = manifest["spec"]["workerGroups"]
    with bench.namespace() as namespace:
        job = bench.apply(namespace, manifest)
        with History(job) as history:
            job.wait_for_phase("Running")
            for split in PROFILED_SPLITS:
                force(job, split)
                wait_for(partial(measured, job, groups, split), 300, f"enough steps at {split}")
        steps = align(records_of(job, history))
    bounds = {job.pod_name(group["name"]): (group["batchSize"]["min"], group["batchSize"]["max"]) for group in groups}
    return TrialHistory(policy="Profile", round=1, steps=steps, adjustments=0, phase="Running"), bounds


def force(job: JobOnCluster, batches: Sequence[int]) -> None:
    """Leave every group only one batch."""
    patch = [
        {"op": "replace", "path": f"/spec/workerGroups/{index}/batchSize", "value": {"min": batch, "max": batch}}
        for index, batch in enumerate(batches)
    ]
    where = (f"--namespace={job.namespace}", "--type=json", f"--patch={json.dumps(patch)}")
    job.cluster.kubectl("patch", "heterotrainingjob", job.name, *where)


def measured(job: JobOnCluster, groups: Sequence[Document], batches: Sequence[int]) -> bool:
    """Whether every worker has measured enough steps at its batch."""
    try:
        found = [job.metrics(group["name"]) for group in groups]
    except ApiError:
        return False
    return all(
        each[table.BATCH_SIZE.name] == batch and each[table.STEPS.name] >= PROFILED_STEPS
        for each, batch in zip(found, batches, strict=True)
    )


def records_of(job: JobOnCluster, history: History) -> dict[str, Sequence[StepRecord]]:
    """The steps of every worker, the leader's first."""
    members = history.plans[history.newest].members
    return {member.name: job.records(member.group) for member in members}


def imbalance(records: Records, version: int) -> float | None:
    """The slowest mean own time under a plan over that of all, less one; None if too little was measured."""
    times = [own_seconds(mine, version) for mine in records.values()]
    if min(map(len, times)) < LEAST_STEPS:
        return None
    means = [statistics.fmean(own) for own in times]
    return max(means) / statistics.fmean(means) - 1


def balanced_seconds(records: Records, judged: Sequence[int]) -> float | None:
    """From the first measured step until the first plan from which on all are balanced; None without one."""
    first = None
    for version in reversed(judged):
        excess = imbalance(records, version)
        if excess is None or excess > TOLERANCE:
            break
        first = version
    if first is None:
        return None
    began = min(record.time for mine in records.values() for record in mine if not record.mark)
    # Balance that was there from the start takes no time.
    return max(0.0, max(began_to_follow(mine, first) for mine in records.values()) - began)


def followed_seconds(records: Records, history: History) -> tuple[float, ...]:
    """From each adjustment's write until the last worker follows it."""
    started = min(history.plans)
    return tuple(
        max(began_to_follow(mine, version) for mine in records.values()) - history.written[version]
        for version in sorted(history.plans)
        if version > started and all(any(record.version == version for record in mine) for mine in records.values())
    )


def began_to_follow(records: Sequence[StepRecord], version: int) -> float:
    """When a worker began its first step under a plan, in Unix seconds."""
    first = next(record for record in records if record.version >= version)
    return first.time - first.own - first.wait
