"""Batches follow the machines: real training under real CPU limits that change while it runs."""

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from heterotrain.contract import StepRecord
from heterotrain_operator.api import to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.loop import run_job
from jobs.worlds import digits_job

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    training = {"globalBatchSize": 96, "epochs": 400, "seed": 7}
    batching = {"policy": "Optimal", "initial": "Uniform", "applyAt": request.param}
    job = digits_job(tmp_path / "results", ["800m", "400m"], training=training, batching=batching, width=32)
    with LocalCluster(job, tmp_path / "run", None) as cluster:
        yield cluster


@pytest.mark.alone
@pytest.mark.parametrize("cluster", ["step", pytest.param("epoch", marks=pytest.mark.long)], indirect=True)
def test_batches_follow_a_limit_that_changes_while_training(cluster: LocalCluster) -> None:
    shares: list[int] = []  # of the worker whose limit falls below the other's

    def watch(seen: Seen, decision: Decision) -> None:
        if seen.plan is not None:
            batch = seen.plan.members[0].batch_size
            if not shares or shares[-1] != batch:
                shares.append(batch)
            if batch > 48 and len(shares) == 2:
                cluster.set_cpu_limit("job-g0-0", 0.2)

    deadline = time.monotonic() + 150
    last = run_job(
        to_core(cluster.job),
        cluster,
        now=time.time,
        pause=cluster.wait,
        on_round=watch,
        until=lambda seen, _: bool(shares and len(shares) > 2 and shares[-1] < 48) or time.monotonic() > deadline,
    )
    assert last.phase == "Running", last.reason
    assert shares[0] == 48  # from uniform batches,
    assert shares[1] > 48  # to the faster worker,
    assert shares[-1] < 48, f"batches {shares} do not follow: {last.reason}"  # and away from it when it is slowed

    path = cluster.series_files()["job-g0-0"][0]
    records = [StepRecord.from_json(line) for line in path.read_text().splitlines()]
    switched_inside_an_epoch = [
        one.step for one, other in pairwise(records) if one.version != other.version and one.epoch == other.epoch
    ]
    assert len({record.version for record in records}) >= 2
    if cluster.job.spec.batching.apply_at == "epoch":
        assert not switched_inside_an_epoch


@pytest.mark.long
def test_smaller_steps_at_the_ends_of_epochs_reach_decisions(tmp_path: Path) -> None:
    """Of 1,500 samples every second step has 500, in halves; the others have 1,000 and are measured."""
    training = {"globalBatchSize": 1000, "epochs": 400}
    job = digits_job(tmp_path / "results", ["1", "1"], training=training, batching={"policy": "Uniform"}, width=4)
    told: list[tuple[int, float]] = []

    def has_told(seen: Seen, _: Decision) -> bool:
        metrics = [worker.metrics for worker in seen.workers if worker.metrics is not None and worker.metrics.steps > 1]
        told[:] = [each for known in metrics for each in known.smaller_steps]
        return len(told) > 1

    deadline = time.monotonic() + 150
    with LocalCluster(job, tmp_path / "run", None) as cluster:
        last = run_job(
            to_core(cluster.job),
            cluster,
            now=time.time,
            pause=cluster.wait,
            on_round=lambda *_: None,
            until=lambda seen, decision: has_told(seen, decision) or time.monotonic() > deadline,
        )
    assert last.phase == "Running", last.reason
    assert [(samples, seconds > 0) for samples, seconds in told] == [(250, True)] * 2
