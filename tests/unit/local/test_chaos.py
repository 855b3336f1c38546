"""Faults of real processes as they are seen from outside: each has its effect, is taken back, and leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.chaos import FAULTS, LASTING, STARVED_CORES, UNDOES, Chaos, ChaosError
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Remembered
from unit.cli.commands import eventually
from unit.local.small_jobs import PLAN, SLEEP, all_ended, key, make_job, neighbours_of, only, says

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]
ChaosIn = Callable[..., Chaos]
NAME = "job-cpu-0"
LIMITED = {"resources": {"limits": {"cpu": "500m"}}}
WITH_A_CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)
print('up', flush=True)
while True: pass
"""


def pids(cluster: LocalCluster) -> set[int]:
    return cluster.process(NAME).limits.pids()


def states(cluster: LocalCluster) -> set[str]:
    return {leftovers._stat_fields(pid)[0] for pid in pids(cluster) | {cluster.process(NAME).pid}}


def planned(cluster: LocalCluster) -> None:
    cluster.observe()
    cluster.act(Decision("Running", "", plan=PLAN), Remembered.initial())


def test_faults_have_their_effect_until_they_are_taken_back(
    mechanism: Mechanism, start: Start, chaos_in: ChaosIn
) -> None:
    cluster = start(make_job(WITH_A_CHILD, **LIMITED), mechanism)
    planned(cluster)
    says(cluster, "up")
    chaos, limits = chaos_in(cluster), cluster.process(NAME).limits
    for fault in FAULTS:
        with pytest.raises(ValueError, match="there is no worker 'job-cpu-7'; there are job-cpu-0"):
            chaos.begin(fault, "job-cpu-7")

    for _ in range(2):
        chaos.begin("stop", NAME)
        eventually(lambda: states(cluster) == {"T"})
    used = limits.cpu_seconds()
    assert states(cluster) == {"T"}
    assert limits.cpu_seconds() == used, "whatever its limits let it run"
    assert chaos.end(NAME, UNDOES["continue"]) == ("stop",)
    eventually(lambda: limits.cpu_seconds() > used)

    chaos.begin("slow", NAME, neighbours=2)
    eventually(lambda: len(neighbours_of(os.getpid())) == 2)
    assert limits.cores() == pytest.approx(0.5), "it has neighbours at an unchanged limit"
    chaos.begin("starve", NAME)
    assert limits.cores() == pytest.approx(STARVED_CORES)
    assert set(chaos.end(NAME, UNDOES["restore"])) == {"slow", "starve"}
    assert (limits.cores(), neighbours_of(os.getpid())) == (pytest.approx(0.5), [])

    chaos.begin("starve", NAME)
    chaos.begin("slow", NAME)
    cluster.set_cpu_limit(NAME, 0.25)
    cluster.set_neighbours(NAME, 3)
    chaos.end(NAME, UNDOES["restore"])
    assert (cluster.cpu_limit(NAME), cluster.neighbours(NAME)) == (0.25, 3), "what a schedule has changed stays"

    all_of_it = pids(cluster)
    chaos.begin("kill", NAME)
    (worker,) = all_ended(cluster)
    assert worker.exit_code == 128 + signal.SIGKILL
    eventually(lambda: not any(map(leftovers.alive, all_of_it)))


def test_faults_end_with_their_time_their_worker_or_the_run(start: Start, chaos_in: ChaosIn) -> None:
    cluster, now = start(make_job(SLEEP, **LIMITED)), [100.0]
    planned(cluster)
    chaos = chaos_in(cluster, monotonic=lambda: now[0])
    for fault in LASTING:
        chaos.begin(fault, NAME, seconds=5.0)
        now[0] += 4.9
        assert chaos.tend() == ()
        now[0] += 0.2
        (over,) = chaos.tend()
        assert (over.worker, over.fault) == (NAME, fault)
        assert chaos.standing == chaos.tend() == ()
    chaos.begin("stop", NAME, seconds=5.0)
    chaos.begin("stop", NAME)
    now[0] += 1e6
    assert chaos.tend() == (), "the last word decides"
    eventually(lambda: states(cluster) == {"T"})

    for fault in (*LASTING, "kill"):
        chaos.begin(fault, NAME)
    all_ended(cluster)
    with pytest.raises(ChaosError, match="job-cpu-0 has ended"):
        chaos.begin("stop", NAME)
    cluster.act(Decision("Restarting", "", delete=(NAME,)), Remembered.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    cluster.act(Decision("Running", "", create=(key(),)), Remembered.initial())
    assert chaos.tend() == chaos.standing == ()
    eventually(lambda: states(cluster) <= {"S", "R"} and states(cluster))
    assert not neighbours_of(os.getpid())
    assert only(cluster).cpu_limit == 0.5, "a successor has no fault"

    planned(cluster)
    for fault in LASTING:
        chaos.begin(fault, NAME)
    chaos.close()
    eventually(lambda: states(cluster) <= {"S", "R"})
    assert not neighbours_of(os.getpid())
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)
    assert chaos.end(NAME, LASTING) == ()
