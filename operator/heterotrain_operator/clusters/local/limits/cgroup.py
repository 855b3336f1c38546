"""What both versions of cgroups share: where they are mounted, our own place in them, a worker's folders, a trial."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits.mechanism import (
    LimitError,
    Mechanism,
    Neighbours,
    effective_cores,
    launcher,
    machine_cores,
    set_stopped,
)

PROC_SELF = Path("/proc/self")
TRIAL_CORES = 0.5
TRIAL_SECONDS = 10.0
TRIAL_MEMORY_BYTES = 256 * 1024**2


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


def surroundings() -> tuple[tuple[Mount, ...], dict[str, str]]:
    """The cgroup hierarchies that are mounted, and our own cgroups. Raises LimitError where /proc cannot be read."""
    try:
        mounted, ours = ((PROC_SELF / file).read_text(encoding="utf-8") for file in ("mountinfo", "cgroup"))
    except OSError as error:
        raise LimitError(f"no cgroups: {error}") from error
    return parse_mounts(mounted), parse_memberships(ours)


def upwards(folder: Path, top: Path) -> Iterator[Path]:
    """A folder and those around it, up to and with `top`."""
    yield folder
    while folder != top and top in folder.parents:
        folder = folder.parent
        yield folder


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


class CgroupLimits(ABC):
    """The limits of one worker as cgroups, which know their processes; the versions differ in the files alone."""

    environment: Mapping[str, str] = {}

    def __init__(self, worker: str, *folders: Path | None, owner: str = "") -> None:
        """`folders` are the worker's, that of the CPU first; a folder that is named twice is one."""
        self.worker = worker
        self.folders = tuple(dict.fromkeys(folder for folder in folders if folder is not None))
        self._neighbours = Neighbours({leftovers.ENV_RUNNER: owner})

    def made(self, cores: float | None, memory_bytes: int | None) -> Self:
        """Make the folders and set the limits. Raises LimitError; then nothing is left."""
        try:
            for folder in self.folders:
                folder.mkdir()
            self.set_cores(cores)
            if memory_bytes is not None:
                self._write_memory(memory_bytes)
        except (OSError, LimitError) as error:
            self.remove()
            raise LimitError(f"worker {self.worker}: no cgroup could be made: {error}") from error
        return self

    @property
    def joins(self) -> tuple[Path, ...]:
        """The lists of processes, one for each folder."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def started(self, pid: int) -> None:
        """Has no effect."""
        del pid  # the cgroup knows its processes

    def set_cores(self, cores: float | None) -> None:
        """As `Limits.set_cores`."""
        try:
            self._write_cores(effective_cores(cores))
        except OSError as error:
            raise LimitError(f"worker {self.worker}: a limit of {cores} cores was refused: {error}") from error

    def set_neighbours(self, count: int, cpu: int | None) -> None:
        """As `Limits.set_neighbours`."""
        self._neighbours.set_count(count, cpu, self.joins)

    def set_stopped(self, stopped: bool) -> None:
        """As `Limits.set_stopped`."""
        set_stopped(self.pids, stopped=stopped)

    def pids(self) -> set[int]:
        """All processes in it."""
        return leftovers.folder_pids(self.folders[0])

    def remove(self) -> bool:
        """True once no folder is left."""
        self._neighbours.set_count(0)
        left = [folder for folder in self.folders if not leftovers.remove_folder(folder)]
        return not left

    @abstractmethod
    def cores(self) -> float | None:
        """The limit that the kernel applies."""

    @abstractmethod
    def cpu_seconds(self) -> float:
        """As accounted by the kernel."""

    @abstractmethod
    def out_of_memory(self) -> bool:
        """As counted by the kernel."""

    @abstractmethod
    def _write_cores(self, cores: float | None) -> None:
        """Raises OSError."""

    @abstractmethod
    def _write_memory(self, memory_bytes: int) -> None:
        """Raises OSError."""


class Cgroups(Mechanism, Protocol):
    """A mechanism that may limit memory, too."""

    @property
    def memory(self) -> object:
        """Something that is true if memory is limited."""


Found = TypeVar("Found", bound=Cgroups)


def described(mechanism: Cgroups) -> str:
    """As `Mechanism.describe`."""
    what = "CPU and memory" if mechanism.memory else "CPU (memory cannot be limited)"
    return f"{mechanism.name.replace('-', ' ')} limits {what}, CPU in periods of 10 ms"


def first_that_works(mechanisms: Iterable[Found], nothing: str) -> Found:
    """Start a process inside the limits of each. Raises LimitError if none works: what was wrong with the last, or
    that there is `nothing` to try."""
    problem = LimitError(nothing)
    for mechanism in mechanisms:
        try:
            _try_out(mechanism)
        except LimitError as error:
            problem = error
        else:
            return mechanism
    raise problem


def _try_out(mechanism: Cgroups) -> None:
    """Raises LimitError if a process cannot be limited, at any point. The CPU limit is one that has an effect here."""
    cores, memory_bytes = min(TRIAL_CORES, machine_cores() / 2), TRIAL_MEMORY_BYTES if mechanism.memory else None
    limits = mechanism.create("trial", cores, memory_bytes, leftovers.new_token())
    try:
        words = [*launcher(limits.joins), sys.executable, "-I", "-S", "-c", ""]
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
