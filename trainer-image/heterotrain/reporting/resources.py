"""What this worker uses and may use of memory and CPU, read from the kernel; None where the kernel has no figure.

Memory is what the process itself holds. The cgroup's own peak includes the page cache, which grows to the limit with
every file that is read and shrinks when the memory is needed; and a container may not reset it.
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

PROC_SELF = Path("/proc/self")
_STATUS_BYTES = 1 << 14  # more than the kernel writes


def memory_bytes() -> float | None:
    """Resident memory of this process in bytes."""
    return _of_status("VmRSS:")


def peak_memory_bytes() -> float | None:
    """The most resident memory of this process, in bytes, since `forget_peak`."""
    return _of_status("VmHWM:")


def forget_peak() -> bool:
    """Reset the peak to what is resident now; False where the kernel does not allow that."""
    try:
        (PROC_SELF / "clear_refs").write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return False
    return True


def children_memory_bytes() -> float:
    """Memory of this process's children alone, in bytes, such as those that load data; what they share with this
    process counts as its own.
    """
    total = 0.0
    for listed in (PROC_SELF / "task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:
            continue
        total += sum(_private_bytes(child) for child in children)
    return total


def memory_limit_bytes() -> float | None:
    """The present memory limit in bytes; None if there is none. It follows an in-place resize."""
    for file in ("memory.max", "memory.limit_in_bytes"):
        folder = _folder("memory", file)
        if folder is None:
            continue
        try:
            text = (folder / file).read_text().strip()
            limit = math.inf if text == "max" else float(text)
        except (OSError, ValueError):
            continue
        # Version 1 writes "no limit" as a number beyond any machine's memory.
        return limit if limit < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else None
    return None


def _of_status(key: str) -> float | None:
    try:
        descriptor = os.open(PROC_SELF / "status", os.O_RDONLY)
        try:
            text = os.read(descriptor, _STATUS_BYTES)
        finally:
            os.close(descriptor)
        _, found, rest = text.partition(key.encode())
        return float(rest.split(None, 1)[0]) * 1024 if found else None
    except (OSError, ValueError, IndexError):
        return None


def _private_bytes(process: str) -> float:
    try:
        lines = Path("/proc", process, "smaps_rollup").read_text().splitlines()
        return sum(float(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
    except (OSError, ValueError, IndexError):
        return 0.0


@cache
def _folder(controller: str, file: str) -> Path | None:
    """The folder of this process's cgroup that holds `file`, of version 2 or of a version 1 controller, as mounted."""
    try:
        memberships = (PROC_SELF / "cgroup").read_text().splitlines()
        mounts = [line.split(" ") for line in (PROC_SELF / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        for fields in mounts:
            kind = fields[fields.index("-") + 1]
            options = fields[-1].split(",")
            unified = kind == "cgroup2" and not controllers
            if unified or (kind == "cgroup" and controller in controllers.split(",") and controller in options):
                root, mount_point = fields[3], Path(fields[4])
                relative = path.removeprefix(root).lstrip("/") if root != "/" else path.lstrip("/")
                for folder in (mount_point / relative, mount_point):
                    if (folder / file).exists():
                        return folder
    return None


def cpu_throttled_seconds() -> float | None:
    """Seconds for which the kernel held this worker's cgroup back, since it began."""
    folder = _folder("cpu", "cpu.stat")
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
    """The present CPU limit in cores; None if there is none. It follows an in-place resize."""
    folder = _folder("cpu", "cpu.stat")
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
