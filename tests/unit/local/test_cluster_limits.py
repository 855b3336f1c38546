"""How the local backend limits its workers' CPU: from which moment on, where they run, and what changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from heterotrain.contract import Plan
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Limits, Mechanism
from heterotrain_operator.clusters.local.limits.duty_cycle import process_cpu_seconds
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import PLAN, SLEEP, SPIN, ended, eventually, key, make_job, neighbours_of, only

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]

Start = Callable[..., LocalCluster]


def test_a_worker_is_in_its_cgroup_before_the_command_begins(mechanism: Mechanism, start: Start) -> None:
    if not mechanism.parents:
        pytest.skip("only cgroups can be looked at from inside")
    script = "print(open('/proc/self/cgroup').read())"
    cluster = start(make_job(script, resources={"limits": {"cpu": "500m"}}), mechanism)
    ended(cluster)
    assert f"{leftovers.FOLDER_PREFIX}{os.getpid()}-" in cluster.log_file("job-cpu-0").read_text()


def test_cpu_limits_hold_from_the_first_plan_on(
    mechanism: Mechanism, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_of: dict[str, Limits] = {}
    create = type(mechanism).create

    def remembered(self: Mechanism, worker: str, *limits: object) -> Limits:
        limits_of[worker] = create(self, worker, *limits)
        return limits_of[worker]

    def in_force() -> list[float | None]:
        return [limits_of[name].cores() for name in ("job-cpu-0", "job-cpu-1")]

    monkeypatch.setattr(type(mechanism), "create", remembered)
    cluster = start(make_job(SLEEP, replicas=2, resources={"limits": {"cpu": "250m"}}), mechanism)
    assert in_force() == [None, None], "a worker that starts is not held back"
    cluster.set_cpu_limit("job-cpu-1", 0.125)
    assert in_force() == [None, None], "not by a schedule either"
    seen, _ = cluster.observe()
    assert [worker.cpu_limit for worker in seen.workers] == [0.25, 0.125]
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())
    assert in_force() == [0.25, None], "who is not in the plan goes on starting"
    cluster.set_cpu_limit("job-cpu-0", 0.5)
    cluster.observe()
    both = tuple(replace(PLAN.members[0], name=name) for name in limits_of)
    cluster.act(Decision("Running", "", plan=Plan(2, 2, "step", both)), Memory.initial())
    assert in_force() == [0.5, 0.125]


def test_a_worker_that_is_started_again_keeps_to_the_cpu_of_its_name(mechanism: Mechanism, start: Start) -> None:
    def cpus() -> set[int]:
        return os.sched_getaffinity(cluster.pid("job-cpu-0"))

    other = max(os.sched_getaffinity(0))
    cluster = start(make_job(SLEEP), mechanism)
    cluster.keep_to_cpu("job-cpu-0", other)
    assert cpus() == os.sched_getaffinity(0), "a worker that starts is not held back"
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())
    assert cpus() == {other}
    cluster.act(Decision("Running", "", delete=("job-cpu-0",)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    cluster.observe()
    cluster.act(Decision("Running", "", plan=replace(PLAN, version=2, generation=2)), Memory.initial())
    assert cpus() == {other}


def test_neighbours_begin_with_the_first_plan_and_take_their_share_inside_the_limits(
    mechanism: Mechanism, start: Start
) -> None:
    cluster = start(make_job(SPIN, resources={"limits": {"cpu": "500m"}}), mechanism)
    limits = cluster._pods["job-cpu-0"].process.limits
    cluster.set_neighbours("job-cpu-0", 1)
    assert not neighbours_of(os.getpid()), "a worker that starts is not held back"
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())
    (neighbour,) = eventually(lambda: neighbours_of(os.getpid()))
    assert neighbour in eventually(lambda: len(limits.pids()) == 2 and limits.pids())
    pids = [cluster.pid("job-cpu-0"), neighbour]

    def used() -> list[float]:
        return [process_cpu_seconds(pid) or 0.0 for pid in pids]

    eventually(lambda: min(used()) > 0.05)
    before = used()
    eventually(lambda: sum(used()) - sum(before) > 0.5)
    own, beside = (after - then for after, then in zip(used(), before, strict=True))
    assert 0.25 < own / (own + beside) < 0.75, "it shares the limit, and has none of its own"
    cluster.set_neighbours("job-cpu-0", 3)
    eventually(lambda: len(neighbours_of(os.getpid())) == 3)
    cluster.set_neighbours("job-cpu-0", 0)
    assert not neighbours_of(os.getpid())


def test_neighbours_end_with_their_worker(mechanism: Mechanism, start: Start) -> None:
    cluster = start(make_job(SLEEP), mechanism)
    cluster.set_neighbours("job-cpu-0", 2)
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())
    eventually(lambda: len(neighbours_of(os.getpid())) == 2)
    os.kill(cluster.pid("job-cpu-0"), signal.SIGKILL)
    eventually(lambda: cluster.observe() and not neighbours_of(os.getpid()))
    cluster.set_neighbours("job-cpu-0", 1)
    assert not neighbours_of(os.getpid()), "nobody is beside a worker that has ended"
    with pytest.raises(ValueError, match="no worker 'nobody'"):
        cluster.set_neighbours("nobody", 1)


def test_limits_are_reported_and_can_be_changed(mechanism: Mechanism, start: Start) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "250m"}}), mechanism)
    assert only(cluster).cpu_limit == 0.25
    cluster.set_cpu_limit("job-cpu-0", 0.5)
    assert only(cluster).cpu_limit == 0.5
    with pytest.raises(ValueError, match="no worker 'nobody'"):
        cluster.set_cpu_limit("nobody", 0.5)
