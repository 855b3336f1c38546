"""What this worker uses and may use: memory, CPU throttling; read from the kernel, absent where it says nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def memory_bytes() -> float | None:
    """Resident memory of this process in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


@cache
def _cpu_folder() -> Path | None:
    """The folder of this process's CPU controller: cgroup v2's unified one or v1's, as mounted here."""
    try:
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        for fields in mounts:
            kind = fields[fields.index("-") + 1]
            options = fields[-1].split(",")
            unified = kind == "cgroup2" and not controllers
            if unified or (kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options):
                root, mount_point = fields[3], Path(fields[4])
                relative = path.removeprefix(root).lstrip("/") if root != "/" else path.lstrip("/")
                for folder in (mount_point / relative, mount_point):
                    if (folder / "cpu.stat").exists():
                        return folder
    return None


def cpu_throttled_seconds() -> float | None:
    """Seconds for which the kernel held this worker's cgroup back, since it began."""
    folder = _cpu_folder()
    if folder is None:
        return None
    try:
        stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if "throttled_usec" in stat:
        return float(stat["throttled_usec"]) / 1e6
    if "throttled_time" in stat:
        return float(stat["throttled_time"]) / 1e9
    return None


def cpu_limit_cores() -> float | None:
    """The CPU limit in force now, in cores; None if there is none. It follows an in-place resize."""
    folder = _cpu_folder()
    if folder is None:
        return None
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return None if quota == "max" else float(quota) / float(period)
        micros = float((folder / "cpu.cfs_quota_us").read_text())
        return None if micros < 0 else micros / float((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
