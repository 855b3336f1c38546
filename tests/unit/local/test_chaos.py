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
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import (
    IGNORE_TERM,
    PLAN,
    SLEEP,
    ended,
    eventually,
    key,
    make_job,
    neighbours_of,
    only,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]
Start = Callable[..., LocalCluster]
NAME = "job-cpu-0"
WITH_A_CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)
print('up', flush=True)
while True: pass
"""
ChaosIn = Callable[..., Chaos]


def pids(cluster: LocalCluster) -> set[int]:
    return cluster.process(NAME).limits.pids()


def states(cluster: LocalCluster) -> set[str]:
    return {leftovers._stat_fields(pid)[0] for pid in pids(cluster) | {cluster.pid(NAME)}}


def planned(cluster: LocalCluster) -> None:
    cluster.observe()
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())


def test_killed_worker_goes_with_all_its_processes(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(WITH_A_CHILD))
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    before = pids(cluster)
    assert len(before) == 2
    chaos_in(cluster).begin("kill", NAME)
    assert ended(cluster).exit_code == 128 + signal.SIGKILL
    eventually(lambda: not any(map(leftovers.alive, before)))


def test_stopped_worker_stands_still_until_it_is_continued(
    mechanism: Mechanism, start: Start, chaos_in: ChaosIn
) -> None:
    cluster = start(make_job(WITH_A_CHILD, resources={"limits": {"cpu": "900m"}}), mechanism)
    planned(cluster)
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    chaos = chaos_in(cluster)
    chaos.begin("stop", NAME)
    eventually(lambda: states(cluster) == {"T"})
    used = cluster.process(NAME).limits.cpu_seconds()
    chaos.begin("stop", NAME)
    assert states(cluster) == {"T"}
    assert cluster.process(NAME).limits.cpu_seconds() == used, "whatever limits it lets it run"
    assert chaos.end(NAME, UNDOES["continue"]) == ("stop",)
    eventually(lambda: cluster.process(NAME).limits.cpu_seconds() > used)


def test_slow_worker_has_neighbours_at_an_unchanged_limit(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("slow", NAME, neighbours=2)
    assert len(neighbours_of(os.getpid())) == 2
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)
    assert chaos.end(NAME, UNDOES["restore"]) == ("slow",)
    assert not neighbours_of(os.getpid())


def test_starved_worker_has_hardly_any_cpu(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("starve", NAME)
    assert cluster.process(NAME).limits.cores() == pytest.approx(STARVED_CORES)
    chaos.end(NAME, UNDOES["restore"])
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)


def test_what_a_schedule_changed_meanwhile_stays(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("starve", NAME)
    chaos.begin("slow", NAME)
    cluster.set_cpu_limit(NAME, 0.25)
    cluster.set_neighbours(NAME, 3)
    assert set(chaos.end(NAME, UNDOES["restore"])) == {"slow", "starve"}
    assert (cluster.cpu_limit(NAME), cluster.neighbours(NAME)) == (0.25, 3)


def test_leaving_worker_is_asked_and_counts_as_disrupted(start: Start, chaos_in: ChaosIn) -> None:
    polite = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nprint('up', flush=True)\n"
    cluster = start(make_job(polite + SLEEP))
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    chaos_in(cluster).begin("leave", NAME)
    worker = ended(cluster)
    assert (worker.exit_code, worker.disrupted) == (3, True)


def test_worker_that_does_not_leave_is_killed_after_its_grace_period(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(IGNORE_TERM))
    eventually(lambda: "deaf" in cluster.log_file(NAME).read_text())
    chaos_in(cluster).begin("leave", NAME)
    assert ended(cluster).exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("fault", LASTING)
def test_fault_ends_after_its_time(fault: str, start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    now = [100.0]
    chaos = chaos_in(cluster, monotonic=lambda: now[0])
    chaos.begin(fault, NAME, seconds=5.0)
    now[0] += 4.9
    assert chaos.tend() == ()
    now[0] += 0.2
    (over,) = chaos.tend()
    assert (over.worker, over.fault) == (NAME, fault)
    assert chaos.standing == chaos.tend() == ()


def test_last_word_decides_when_a_fault_ends(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    now = [0.0]
    chaos = chaos_in(cluster, monotonic=lambda: now[0])
    chaos.begin("stop", NAME, seconds=5.0)
    chaos.begin("stop", NAME)
    now[0] = 1e6
    assert chaos.tend() == ()
    eventually(lambda: states(cluster) == {"T"})


def test_successor_of_a_worker_has_no_fault(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    planned(cluster)
    chaos = chaos_in(cluster)
    for fault in (*LASTING, "kill"):
        chaos.begin(fault, NAME)
    ended(cluster)
    with pytest.raises(ChaosError, match="job-cpu-0 has ended"):
        chaos.begin("stop", NAME)
    cluster.act(Decision("Restarting", "", delete=(NAME,)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    assert chaos.tend() == chaos.standing == ()
    eventually(lambda: states(cluster) <= {"S", "R"} and states(cluster))
    assert not neighbours_of(os.getpid())
    assert only(cluster).cpu_limit is None


def test_closing_takes_everything_back(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    for fault in LASTING:
        chaos.begin(fault, NAME)
    chaos.close()
    eventually(lambda: states(cluster) <= {"S", "R"})
    assert not neighbours_of(os.getpid())
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)
    assert chaos.end(NAME, LASTING) == ()


def test_unknown_worker_is_named_with_those_there_are(start: Start, chaos_in: ChaosIn) -> None:
    chaos = chaos_in(start(make_job(SLEEP)))
    for fault in FAULTS:
        with pytest.raises(ValueError, match="there is no worker 'job-cpu-7'; there are job-cpu-0"):
            chaos.begin(fault, "job-cpu-7")
