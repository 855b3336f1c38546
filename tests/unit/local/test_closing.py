"""Whatever ends a run, none of its processes and cgroups is left."""

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
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import (
    IGNORE_TERM,
    MECHANISMS,
    SLEEP,
    cgroup_folders,
    ended,
    eventually,
    key,
    log_says,
    make_job,
    neighbours_of,
    only,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]


def test_an_interrupt_lets_workers_end_in_order(mechanism: Mechanism, start: Start) -> None:
    script = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\nprint('here', flush=True)\n"
    cluster = start(make_job(script + SLEEP, replicas=2, resources={"limits": {"cpu": "500m"}}), mechanism)
    for name in ("job-cpu-0", "job-cpu-1"):
        log_says(cluster, "here", name)
    assert cluster.interrupt(30)
    assert [worker.exit_code for worker in cluster.observe()[0].workers] == [143, 143]


def test_an_interrupt_kills_the_deaf(start: Start) -> None:
    cluster = start(make_job(IGNORE_TERM))
    log_says(cluster, "deaf")
    assert not cluster.interrupt(0.1)
    assert only(cluster).exit_code == 137


def test_closing_removes_grandchildren_and_limits(mechanism: Mechanism, start: Start) -> None:
    script = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)\n"
        "print('child', p.pid, flush=True)\n"
    )
    cluster = start(make_job(script + SLEEP, resources={"limits": {"cpu": "500m"}}), mechanism)
    log_says(cluster, "child")
    pid = int(cluster.log_file("job-cpu-0").read_text().split()[1])
    assert leftovers.alive(pid)
    cluster.close()
    cluster.close()
    assert not leftovers.alive(pid)
    assert not cgroup_folders(os.getpid())


def test_grandchildren_go_with_a_worker_that_ends_by_itself(mechanism: Mechanism, start: Start) -> None:
    script = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}])\nprint(p.pid, flush=True)\n"
    )
    cluster = start(make_job(script), mechanism)
    ended(cluster)
    pid = int(cluster.log_file("job-cpu-0").read_text())
    eventually(lambda: cluster.observe() and not leftovers.alive(pid))


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    job = make_job(SLEEP)
    with pytest.raises(RuntimeError, match="on purpose"), LocalCluster(job, tmp_path, None) as cluster:
        cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
        raise RuntimeError("on purpose")


def test_two_jobs_of_one_runner_do_not_touch_each_other(start: Start) -> None:
    first, second = start(make_job(SLEEP)), start(make_job(SLEEP))
    first.close()
    assert only(second).exit_code is None


RUNNER = """
import sys, time
from pathlib import Path
from unit.local.small_jobs import MECHANISMS, PLAN, make_job, key
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
script = (
    "import os, subprocess, sys, time\\n"
    "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session=True)\\n"
    "print(os.getpid(), p.pid, flush=True)\\n"
    "time.sleep(600)"
)
job = make_job(script, resources={"limits": {"cpu": "500m"}})
cluster = LocalCluster(job, Path(sys.argv[1]), None, mechanism=MECHANISMS[sys.argv[2]])
cluster.observe()
cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
cluster.set_neighbours("job-cpu-0", 1)
cluster.observe()
cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())
time.sleep(600)
"""


def test_a_killed_runner_leaves_neither_processes_nor_cgroups(mechanism: Mechanism, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path), mechanism.name], env=environment)
    log = tmp_path / "workers" / "job-cpu-0" / "log"
    eventually(lambda: log.exists() and len(log.read_text().split()) == 2)
    worker, grandchild = map(int, log.read_text().split())
    eventually(lambda: len(neighbours_of(runner.pid)) == 1)
    assert leftovers.alive(worker)
    assert leftovers.alive(grandchild)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    eventually(lambda: not leftovers.alive(worker) and not leftovers.alive(grandchild))
    eventually(lambda: not neighbours_of(runner.pid))
    eventually(lambda: not cgroup_folders(runner.pid))


def test_what_a_dead_runner_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    mechanism = next(iter(MECHANISMS.values()))
    token = leftovers.new_token().split("-")
    dead = "-".join([token[0], "1", *token[2:]])
    limits = mechanism.create("job-cpu-0", 0.5, None, dead)
    environment = {**os.environ, leftovers.ENV_RUNNER: dead}
    orphan = subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env=environment)
    LocalCluster(make_job(""), tmp_path, None, mechanism=mechanism).close()
    assert orphan.wait() == -signal.SIGKILL
    assert not any(join.exists() for join in limits.joins)
