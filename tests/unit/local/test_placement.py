import os
from pathlib import Path

import pytest

from heterotrain.contract import Member, Plan
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.pod import place
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import SLEEP, key, make_job


def test_workers_share_a_cpu_only_if_their_limits_fit_on_it() -> None:
    assert place({"small": 0.25, "large": 1.0, "medium": 0.5}, [0, 1]) == {"large": 0, "medium": 1, "small": 1}


@pytest.mark.parametrize(
    "limits",
    [{"a": None, "b": 0.5}, {"a": 1.5}, {"a": 0.8, "b": 0.8, "c": 0.3}],
    ids=["no limit", "more than a core", "too many"],
)
def test_where_that_cannot_be_all_go_where_they_like(limits: dict[str, float | None]) -> None:
    assert place(limits, [0, 1]) == {}


def test_equal_workers_are_placed_by_name() -> None:
    assert place({"b": 0.5, "a": 0.5, "c": 0.5}, [3, 7]) == {"a": 3, "b": 3, "c": 7}


@pytest.mark.processes
def test_a_worker_keeps_to_its_cpu_from_the_first_plan_on(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    with LocalCluster(make_job(SLEEP), tmp_path, None, cpus={"job-cpu-0": cpu}) as cluster:
        cluster.observe()
        cluster.act(Decision("Running", "test", create=(key(),)), Memory.initial())
        assert os.sched_getaffinity(cluster.pid("job-cpu-0")) == os.sched_getaffinity(0)
        cluster.observe()
        plan = Plan(1, 1, "step", (Member("job-cpu-0", "u", "127.0.0.1:1", "cpu", 32),))
        cluster.act(Decision("Running", "test", plan=plan), Memory.initial())
        assert os.sched_getaffinity(cluster.pid("job-cpu-0")) == {cpu}
