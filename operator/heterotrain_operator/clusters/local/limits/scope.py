"""Resource limits by a systemd user scope: a cgroup that the user's own systemd makes on request."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import cgroup, stopping
from heterotrain_operator.clusters.local.limits.mechanism import (
    LimitError,
    effective_cores,
    quota_and_period,
)

NAME = "systemd-scope"
COMMAND_SECONDS = 10.0
TRIAL_MEMORY_BYTES = 256 * 1024**2
READ_OWN_LIMIT = 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/cpu.max"'


def _systemctl(*words: str) -> str:
    """Raises LimitError if it fails."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LimitError(f"systemctl --user {words[0]}: {error}") from error
    if done.returncode:
        raise LimitError(f"systemctl --user {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def cpu_properties(cores: float | None) -> list[str]:
    """The unit's properties for a CPU limit; None lifts it."""
    requested = effective_cores(cores)
    if requested is None:
        return ["CPUQuota="]
    quota, period = quota_and_period(requested)
    # systemd takes whole percents; it keeps the quota at its least by itself.
    return [f"CPUQuota={max(1, round(100 * quota / period))}%", f"CPUQuotaPeriodSec={period}us"]


@dataclass(slots=True)
class ScopeLimits:
    """The limits of one worker: a transient scope unit.

    The CPU limit is kept here, since asking systemd for it takes a process each time.
    """

    worker: str
    unit: str
    prefix: tuple[str, ...]
    limit_cores: float | None
    joins: tuple[Path, ...] = ()
    session: int | None = field(default=None)

    def started(self, pid: int) -> None:
        """Take note of the session, by which the processes are found."""
        self.session = pid

    def set_cores(self, cores: float | None) -> None:
        """Raises LimitError if systemd refuses it."""
        _systemctl("set-property", "--runtime", self.unit, *cpu_properties(cores))
        self.limit_cores = effective_cores(cores)

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """Raises LimitError: nobody may enter a scope that systemd has made."""
        if count:
            raise LimitError(f"worker {self.worker}: a systemd scope takes no busy neighbours")

    def set_stopped(self, stopped: bool) -> None:
        """As `Limits.set_stopped`."""
        stopping.set_stopped(self.pids, stopped=stopped)

    def cores(self) -> float | None:
        """As last set."""
        return self.limit_cores

    def cpu_seconds(self) -> float:
        """As accounted by systemd; 0 once the scope is gone."""
        try:
            nanoseconds = _systemctl("show", "--property=CPUUsageNSec", "--value", self.unit)
        except LimitError:
            return 0.0
        return int(nanoseconds) / 1e9 if nanoseconds.isdigit() else 0.0

    def out_of_memory(self) -> bool:
        """Always false: the scope's counter is gone with its last process."""
        return False

    def pids(self) -> set[int]:
        """Those of the worker's session."""
        mark = f"{leftovers.ENV_LIMITS}={self.unit}"
        return set() if self.session is None else leftovers.session_pids(self.session, mark)

    @property
    def environment(self) -> Mapping[str, str]:
        """The mark by which the processes are found."""
        return {leftovers.ENV_LIMITS: self.unit}

    def remove(self) -> bool:
        """The scope is removed by systemd once its last process has ended."""
        pids = self.pids()
        leftovers.kill(pids)
        return not pids


@dataclass(frozen=True, slots=True)
class Scope:
    """The mechanism: scopes of the user's systemd."""

    name: str = NAME
    parents: tuple[Path, ...] = ()

    def describe(self) -> str:
        """As `Mechanism.describe`."""
        return "systemd user scopes limit CPU and memory, CPU in periods of 10 ms and whole percents"

    def create(self, worker: str, cores: float | None, memory_bytes: int | None, owner: str) -> ScopeLimits:
        """As `Mechanism.create`; systemd makes the scope once the worker's process starts."""
        unit = f"{cgroup.folder_name(owner, worker)}.scope"
        properties = [*cpu_properties(cores), "CPUAccounting=yes"]
        if memory_bytes is not None:
            properties += [f"MemoryMax={memory_bytes}", "MemorySwapMax=0"]
        words = ["systemd-run", "--user", "--scope", "--quiet", "--collect", f"--unit={unit}"]
        words += [word for entry in properties for word in ("--property", entry)]
        return ScopeLimits(worker, unit, (*words, "--"), effective_cores(cores))


def find() -> Scope:
    """Raises LimitError if the user's systemd makes no scopes, or may not limit the CPU in them."""
    if shutil.which("systemd-run") is None:
        raise LimitError("there is no systemd-run")
    mechanism = Scope()
    limits = mechanism.create("trial", cgroup.trial_cores(), TRIAL_MEMORY_BYTES, leftovers.new_token())
    try:
        done = subprocess.run(
            [*limits.prefix, "sh", "-c", READ_OWN_LIMIT],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LimitError(f"systemd-run: {error}") from error
    if done.returncode or not done.stdout.strip() or done.stdout.startswith("max"):
        raise LimitError(f"systemd does not limit the CPU of user scopes: {done.stderr.strip()}")
    return mechanism
