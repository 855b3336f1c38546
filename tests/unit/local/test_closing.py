"""Whatever ends a run, none of its processes and cgroups is left, and nothing of anybody else's is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Mechanism
from unit.cli.commands import eventually
from unit.local.small_jobs import (
    IGNORE_TERM,
    MECHANISMS,
    SLEEP,
    all_ended,
    cgroup_folders,
    each_does,
    make_job,
    neighbours_of,
    only,
    says,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]

CHILD = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print(os.getpid(), child.pid, flush=True)
"""


def test_run_that_ends_takes_its_workers_and_what_they_started_and_leaves_others_alone(
    mechanism: Mechanism, start: Start
) -> None:
    other = start(make_job(SLEEP), mechanism)
    cluster = start(each_does(CHILD, CHILD + SLEEP, resources={"limits": {"cpu": "500m"}}), mechanism)
    (_, first), (_, second) = (map(int, says(cluster, "\n", f"job-cpu-{index}").split()) for index in (0, 1))
    eventually(lambda: cluster.observe()[0].workers[0].exit_code == 0 and not leftovers.alive(first))
    assert leftovers.alive(second)
    assert cluster.interrupt(30), "in order"
    assert [worker.exit_code for worker in all_ended(cluster)] == [0, 143]
    assert not leftovers.alive(second)

    deaf = start(make_job(IGNORE_TERM), mechanism)
    says(deaf, "deaf")
    assert not deaf.interrupt(0.1)
    assert only(deaf).exit_code == 128 + signal.SIGKILL

    for _ in range(2):
        cluster.close()
        deaf.close()
    assert only(other).exit_code is None
    assert len(cgroup_folders(os.getpid())) == len(set(mechanism.parents)), "those of the other alone"


RUNNER = """
import sys, time
from pathlib import Path
from unit.local.small_jobs import MECHANISMS, PLAN, make_job, key
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Remembered
job = make_job(sys.argv[3], resources={"limits": {"cpu": "500m"}})
cluster = LocalCluster(job, Path(sys.argv[1]), None, mechanism=MECHANISMS[sys.argv[2]])
cluster.observe()
cluster.act(Decision("Running", "", create=(key(),)), Remembered.initial())
cluster.set_neighbours("job-cpu-0", 1)
cluster.observe()
cluster.act(Decision("Running", "", plan=PLAN), Remembered.initial())
time.sleep(600)
"""


def test_killed_runner_leaves_neither_processes_nor_cgroups(mechanism: Mechanism, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", RUNNER, str(tmp_path), mechanism.name, CHILD + SLEEP]
    with subprocess.Popen(words, env=environment) as runner:
        log = tmp_path / "workers" / "job-cpu-0" / "log"
        eventually(lambda: log.exists() and len(log.read_text().split()) == 2)
        worker, grandchild = map(int, log.read_text().split())
        eventually(lambda: len(neighbours_of(runner.pid)) == 1)
        assert leftovers.alive(worker)
        assert leftovers.alive(grandchild)
        runner.send_signal(signal.SIGKILL)
    eventually(lambda: not leftovers.alive(worker) and not leftovers.alive(grandchild))
    eventually(lambda: not neighbours_of(runner.pid) and not cgroup_folders(runner.pid))


def test_what_a_dead_runner_left_is_swept_at_the_next_start_and_nothing_else(tmp_path: Path) -> None:
    mechanism = next(iter(MECHANISMS.values()))
    pid, ticks, *rest = leftovers.new_token().split("-")
    dead = "-".join([pid, "1", *rest])  # its id went to a later process
    elsewhere = "-".join([pid, "1", "1", "0"])  # in another container, so nobody can know whether it lives
    owners = [dead, elsewhere, "no-token", "-".join([pid, ticks, *rest])]
    limits = [mechanism.create("job-cpu-0", 0.5, None, owner) for owner in owners]
    environments = [{**os.environ, leftovers.ENV_RUNNER: owner} for owner in owners]
    orphans = [subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env=each) for each in environments]
    LocalCluster(make_job(""), tmp_path, None, mechanism=mechanism).close()
    try:
        assert orphans[0].wait(60) == -signal.SIGKILL
        assert not any(join.exists() for join in limits[0].joins)
        for orphan, limit in list(zip(orphans, limits, strict=True))[1:]:
            assert orphan.poll() is None
            assert all(join.exists() for join in limit.joins)
    finally:
        for orphan, limit in zip(orphans, limits, strict=True):
            orphan.kill()
            orphan.wait()
            limit.remove()
