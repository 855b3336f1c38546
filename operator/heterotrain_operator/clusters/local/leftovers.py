"""Find and end what a runner leaves behind: processes and cgroups, however it ended.

Standard library only and run by its path: as the guardian it must start at once, and outlive a runner that
was killed and so could clean up nothing itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER_PREFIX = "heterotrain-"
ENV_RUNNER = "HETEROTRAIN_RUNNER"  # in every process that a runner starts: the runner's token
ENV_LIMITS = "HETEROTRAIN_LIMITS"  # marks the processes of a worker whose limits are no cgroup of ours
PROC = Path("/proc")
TOKEN_PARTS = 4  # pid, start, pid namespace, serial number
PAUSE_SECONDS = 0.01
PATIENCE_SECONDS = 10.0  # a killed process can be held up by the kernel (a core dump, a slow disk)

_serial = itertools.count()


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process.

    With the pid it identifies a process for as long as the machine is up.
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: those before may hold blanks."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _namespace() -> int:
    return (PROC / "self" / "ns" / "pid").stat().st_ino


def new_token() -> str:
    """A name for something that this process runs: nothing else has it, before or after."""
    return f"{os.getpid()}-{start_ticks(os.getpid())}-{_namespace()}-{next(_serial)}"


def runner_is_dead(token: str) -> bool:
    """Whether the process that made this token has ended.

    A text that is no token names nobody, and a runner in another container cannot be judged: neither is dead.
    """
    parts = token.split("-")
    if len(parts) != TOKEN_PARTS or not all(part.isdigit() for part in parts) or int(parts[2]) != _namespace():
        return False
    fields = _stat_fields(int(parts[0]))
    return not fields or fields[0] == "Z" or int(fields[19]) != int(parts[1])


def all_pids() -> list[int]:
    """All processes that can be seen here."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def environment(pid: int) -> list[str]:
    """A process' environment as `NAME=value`, as it was at its start; empty if it may not be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether a process exists and still runs (a zombie does not)."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def session_pids(session: int, mark: str) -> set[int]:
    """Live processes in the session of that leader, or with the `NAME=value` of `mark` in their environment.

    Neither alone is enough: a child may open a session of its own, or overwrite its environment with a title.
    """
    found = set()
    for pid in all_pids():
        fields = _stat_fields(pid)
        if not fields or fields[0] in "ZX":
            continue
        if int(fields[3]) == session or mark in environment(pid):
            found.add(pid)
    return found


def folder_pids(folder: Path) -> set[int]:
    """Processes in a cgroup; empty if there is no such cgroup."""
    try:
        pids = {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    except OSError:
        return set()
    return pids - {0}  # 0 stands for processes of other containers, and would name our own group


def kill(pids: Iterable[int]) -> None:
    """SIGKILL them; those that are gone already, or are not ours to kill, are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def remove_folder(folder: Path) -> bool:
    """One attempt to kill what is in a cgroup and to remove it. Returns whether it is gone."""
    for child in folder.glob("*/"):
        remove_folder(child)
    try:
        (folder / "cgroup.kill").write_text("1")
    except OSError:  # cgroup v1 and old kernels have no such file
        kill(folder_pids(folder))
    try:
        folder.rmdir()
    except (FileNotFoundError, PermissionError):  # another user's is not ours to remove, and not to wait for
        return True
    except OSError:  # busy until its last process is gone
        return False
    return True


def _is_left(owner: str, token: str | None) -> bool:
    return runner_is_dead(owner) if token is None else owner == token


def _round(parents: Sequence[Path], token: str | None) -> bool:
    """One attempt at everything. Returns whether nothing is left."""
    clean = True
    for parent in parents:
        for folder in parent.glob(f"{FOLDER_PREFIX}*/"):
            owner = "-".join(folder.name.removeprefix(FOLDER_PREFIX).split("-")[:TOKEN_PARTS])
            if _is_left(owner, token):
                clean = remove_folder(folder) and clean
    for pid in all_pids():
        for entry in environment(pid):
            name, _, owner = entry.partition("=")
            if name == ENV_RUNNER and _is_left(owner, token) and alive(pid):
                kill([pid])
                clean = False
    return clean


def sweep(parents: Sequence[Path], token: str | None = None) -> bool:
    """Kill all processes and remove all cgroups below `parents` of one token; without: of all dead runners.

    Waits up to PATIENCE_SECONDS. Returns whether nothing is left.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _round(parents, token):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def main(arguments: Sequence[str]) -> int:
    """`leftovers.py TOKEN [PARENT...]`: wait until standard input closes, as the runner ends at the latest; sweep."""
    sys.stdin.buffer.read()
    return 0 if sweep([Path(parent) for parent in arguments[1:]], arguments[0]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
