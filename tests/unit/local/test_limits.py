"""Limits hold for real. CPU time under two limits is compared within one run, never with a clock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterotrain.contract import TrainingConfig
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import MECHANISMS as KNOWN
from heterotrain_operator.clusters.local.limits import LimitError, Limits, Mechanism, cgroup, detect, duty_cycle
from heterotrain_operator.clusters.local.limits.cgroup_v1 import LimitsV1
from heterotrain_operator.clusters.local.limits.cgroup_v2 import LimitsV2
from heterotrain_operator.clusters.local.limits.mechanism import (
    effective_cores,
    launcher,
    machine_cores,
    quota_and_period,
)
from unit.cli.commands import eventually
from unit.local.small_jobs import MECHANISMS, SLEEP, SPIN

Limited = Callable[[Mechanism, str, float | None], Limits]
CHILD = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)
open('pid.tmp', 'w').write(str(child.pid))
os.rename('pid.tmp', 'pid')
"""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """Starts a script inside limits; everything is removed in the end."""
    owner = leftovers.new_token()
    running: list[tuple[Limits, subprocess.Popen[bytes]]] = []

    def start(mechanism: Mechanism, script: str, cores: float | None) -> Limits:
        limits = mechanism.create("worker", cores, None, owner)
        words = [*launcher(limits.joins), sys.executable, "-S", "-c", script]
        environment = {**os.environ, **limits.environment}
        process = subprocess.Popen(words, env=environment, cwd=tmp_path, start_new_session=True)
        running.append((limits, process))
        limits.started(process.pid)
        return limits

    yield start
    for limits, process in running:
        process.kill()
        process.wait()
        eventually(limits.remove)


def share_of_first(workers: list[Limits]) -> float:
    """Of the CPU time that two use while they use most of a second together."""
    eventually(lambda: all(limits.cpu_seconds() > 0.02 for limits in workers))
    before = [limits.cpu_seconds() for limits in workers]

    def used() -> list[float]:
        return [limits.cpu_seconds() - start for limits, start in zip(workers, before, strict=True)]

    first, other = eventually(lambda: found if sum(found := used()) > 0.8 else [])
    return first / (first + other)


@pytest.mark.alone
@pytest.mark.processes
def test_limits_hold_can_be_changed_and_shared_and_end_all_that_runs_in_them(
    mechanism: Mechanism, limited: Limited, tmp_path: Path
) -> None:
    one, other = limited(mechanism, CHILD + SPIN, 0.2), limited(mechanism, SPIN, 0.6)
    assert 0.1 < share_of_first([one, other]) < 0.4  # a quarter on an idle machine
    other.set_cores(0.1)
    assert other.cores() == pytest.approx(0.1)
    assert 0.55 < share_of_first([one, other]) < 0.85  # two thirds
    other.set_cores(None)
    assert other.cores() is None
    other.set_cores(0.2)

    one.set_neighbours(1, None)
    grandchild = int((tmp_path / "pid").read_text())
    pids = eventually(lambda: found if len(found := one.pids()) == 3 else set())
    assert grandchild in pids
    assert 0.35 < share_of_first([one, other]) < 0.65, "neighbours share the limit, and have none of their own"
    one.remove()
    eventually(lambda: not any(map(leftovers.alive, pids)))


@pytest.mark.parametrize(
    ("cores", "quota", "period"),
    [(3.5, 35_000, 10_000), (0.1, 1_000, 10_000), (0.05, 1_000, 20_000), (0.0001, 1_000, 1_000_000)],
)
def test_period_is_lengthened_only_where_the_quota_would_be_too_small(cores: float, quota: int, period: int) -> None:
    assert quota_and_period(cores) == (quota, period)


def test_more_cores_than_the_machine_has_need_no_limit() -> None:
    assert effective_cores(machine_cores() + 1.0) is None
    assert effective_cores(None) is None
    assert effective_cores(machine_cores() / 2) == machine_cores() / 2


def test_best_working_mechanism_is_chosen_and_there_is_always_one() -> None:
    assert detect().name == next(iter(MECHANISMS))
    assert list(MECHANISMS) == [name for name in KNOWN if name in MECHANISMS]
    assert duty_cycle.NAME in MECHANISMS


def test_duty_cycle_never_stops_a_worker_so_long_that_it_seems_dead_and_saves_no_more_than_a_period() -> None:
    found = duty_cycle.credit_seconds(0.0, 0.05, elapsed=0.01, used=3.0)  # a child that had worked before it was found
    stopped = 0.0
    while found < 0:
        found = duty_cycle.credit_seconds(found, 0.05, elapsed=0.01, used=0.0)
        stopped += 0.01
    assert stopped == pytest.approx(duty_cycle.LONGEST_STOP_SECONDS, abs=0.02)
    assert TrainingConfig(steps=1).heartbeat_timeout_seconds / 2 > duty_cycle.LONGEST_STOP_SECONDS
    saved = duty_cycle.credit_seconds(0.0, 0.5, elapsed=60.0, used=0.0)
    assert saved == pytest.approx(0.5 * duty_cycle.PERIOD_SECONDS)


def test_removing_twice_is_harmless_and_a_refused_cgroup_names_the_worker(mechanism: Mechanism) -> None:
    limits = mechanism.create("worker", 0.5, None, leftovers.new_token())
    assert limits.remove()
    assert limits.remove()
    if mechanism.parents:
        with pytest.raises(LimitError, match="worker no/folder"):
            mechanism.create("no/folder", 0.5, None, leftovers.new_token())


def test_command_that_cannot_be_run_is_named() -> None:
    said = subprocess.run([*launcher(()), "no-such-program"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (127, "command not found: no-such-program\n")


def test_version_2_gets_quota_and_period_at_once(tmp_path: Path) -> None:
    limits = LimitsV2("worker", tmp_path)
    limits.set_cores(0.25)
    assert (tmp_path / "cpu.max").read_text() == "2500 10000"
    assert limits.cores() == 0.25
    limits.set_cores(None)
    assert (tmp_path / "cpu.max").read_text() == "max"
    assert limits.cores() is None
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert limits.cpu_seconds() == 1.5
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert limits.out_of_memory()


def test_version_1_sets_no_limit_that_the_cgroup_around_it_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "cpu.cfs_period_us").write_text("100000")
    limits = LimitsV1("worker", tmp_path, None, None, ceiling_cores=0.5)
    limits.set_cores(0.25)
    assert limits.cores() == 0.25
    assert (tmp_path / "cpu.cfs_period_us").read_text() == "10000"
    limits.set_cores(0.75)
    assert limits.cores() is None


def test_mounts_and_memberships_are_read_as_the_kernel_writes_them() -> None:
    mounts = cgroup.parse_mounts(
        "25 30 0:22 / /proc rw - proc proc rw\n"
        "33 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "42 31 0:38 / /mnt/a\\040b rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert [mount.kind for mount in mounts] == ["cgroup", "cgroup2"]
    assert mounts[0].options >= {"cpu", "cpuacct"}
    assert mounts[1].point == Path("/mnt/a b")
    ours = cgroup.parse_memberships("4:cpu,cpuacct:/docker/abc/def\n1:name=systemd:/x\n0::/user.slice\n")
    assert ours["cpu"] == ours["cpuacct"] == "/docker/abc/def"
    assert cgroup.own_folder(mounts[0], ours["cpu"]) == Path("/sys/fs/cgroup/cpu,cpuacct/def")
    assert cgroup.own_folder(mounts[1], ours[""]) == Path("/mnt/a b/user.slice")
    assert cgroup.own_folder(mounts[0], "/elsewhere") == Path("/sys/fs/cgroup/cpu,cpuacct")


def test_dead_runner_is_told_from_a_live_one() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    token = leftovers.new_token().split("-")
    of_child = "-".join([str(child.pid), str(leftovers.start_ticks(child.pid)), *token[2:]])
    assert not leftovers.runner_is_dead(of_child)
    child.kill()
    child.wait()
    assert leftovers.runner_is_dead(of_child)
    for foreign in ("", "job", "1-2", "1-2-x-0", "1-2-3-4-5", "999999999-1-1-0"):
        assert not leftovers.runner_is_dead(foreign), foreign
