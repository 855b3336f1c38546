"""What both versions of cgroups share: where they are mounted, our own place in them, and a trial of them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import launch
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, Mechanism, machine_cores

PROC_SELF = Path("/proc/self")
TRIAL_CORES = 0.5
TRIAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy: `root` is the cgroup that `point` shows; `options` name v1 controllers."""

    root: str
    point: Path
    kind: str  # cgroup | cgroup2
    options: frozenset[str]


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """The cgroup hierarchies in a /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            point = Path(fields[4].encode().decode("unicode_escape"))  # blanks are written as \040
            found.append(Mount(fields[3], point, kind[0], frozenset(kind[2].split(","))))
    return tuple(found)


def parse_memberships(text: str) -> dict[str, str]:
    """Our cgroup by controller, from a /proc/PID/cgroup; that of version 2 under the empty name."""
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def own_folder(mount: Mount, membership: str) -> Path:
    """The folder of our own cgroup in a mounted hierarchy; the mount's top if ours is outside of it."""
    if mount.root in (membership, "/"):
        return mount.point / membership.removeprefix(mount.root).lstrip("/")
    if membership.startswith(mount.root + "/"):
        return mount.point / membership.removeprefix(mount.root + "/")
    return mount.point


def mounts() -> tuple[Mount, ...]:
    """The cgroup hierarchies that are mounted here. Raises LimitError where /proc cannot be read."""
    try:
        return parse_mounts((PROC_SELF / "mountinfo").read_text(encoding="utf-8"))
    except OSError as error:
        raise LimitError(f"no cgroups: {error}") from error


def memberships() -> dict[str, str]:
    """Our own cgroups. Raises LimitError where /proc cannot be read."""
    try:
        return parse_memberships((PROC_SELF / "cgroup").read_text(encoding="utf-8"))
    except OSError as error:
        raise LimitError(f"no cgroups: {error}") from error


def upwards(folder: Path, top: Path) -> Iterator[Path]:
    """A folder and those around it, up to and with `top`."""
    yield folder
    while folder != top and top in folder.parents:
        folder = folder.parent
        yield folder


def folder_name(owner: str, worker: str) -> str:
    """A unique name for a worker's cgroup, in which its owner can be read.

    It is unique because a worker's successor may start while the worker's folder is still being removed.
    """
    return f"{leftovers.FOLDER_PREFIX}{owner}-{worker}-{secrets.token_hex(4)}"


def read(folder: Path, file: str) -> str | None:
    """A cgroup file's text; None if there is none or it cannot be read (the cgroup is gone)."""
    try:
        return (folder / file).read_text(encoding="ascii").strip()
    except OSError:
        return None


def read_keyed(folder: Path, file: str, key: str) -> int:
    """The number behind a key in a cgroup file such as cpu.stat; 0 if it is not there."""
    for line in (read(folder, file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def launcher(prefix: tuple[str, ...], joins: tuple[Path, ...]) -> list[str]:
    """The words that start a command inside its limits; the command's own words follow."""
    return [
        *prefix,
        *(sys.executable, "-I", "-S", launch.__file__),
        *(str(os.getpid()), *map(str, joins), "--"),
    ]


def trial_cores() -> float:
    """A CPU limit for a trial: below what the machine has, so that it has an effect."""
    return min(TRIAL_CORES, machine_cores() / 2)


def try_out(mechanism: Mechanism, memory_bytes: int | None) -> None:
    """Start a process inside limits. Raises LimitError if that fails at any point."""
    limits = mechanism.create("trial", trial_cores(), memory_bytes, leftovers.new_token())
    try:
        words = [*launcher(limits.prefix, limits.joins), sys.executable, "-I", "-S", "-c", ""]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
        if done.returncode:
            raise LimitError(f"a process could not be started inside its limits: {done.stderr.strip()}")
        if limits.cores() is None:
            raise LimitError("the CPU limit did not take effect")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LimitError(f"a process could not be started inside its limits: {error}") from error
    finally:
        gone = limits.remove()
    if not gone:
        raise LimitError("a cgroup could not be removed")
