"""Cut workers off from the network, and heal that, without any rights on the network: by options of their sockets.

Of every connection between two workers that are to be kept apart, both ends are silenced. At the end of the worker
alone, what it sends would still reach the others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from heterotrain_operator.clusters.local import sockets
from heterotrain_operator.clusters.local.sockets import Ends

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
"""How often new sockets are looked for; for so long something may pass through one."""

LOOKS_PER_LISTING = 10
"""How often sockets are looked for until the workers' processes are listed again, which takes longer."""

_PRIORITY = -10
"""A nice value, of the thread that looks: workers that keep all cores busy would let much pass through new sockets."""

HEALING_LOOKS = 2
"""A socket may come by another descriptor between its being seen and its being reached."""

_NO_RIGHT = (
    "this process may not reach into its workers' sockets (pidfd_getfd: {}): a container needs the capability "
    "SYS_PTRACE, or a seccomp profile that lets the call pass, and kernel.yama.ptrace_scope must be below 2"
)
_TOO_OLD = "the kernel has no pidfd_getfd, or the container's seccomp profile hides it; it needs Linux 5.6"


_TOO_FAR = (
    "packets of this machine travel as far as any can, so that a socket cannot refuse them: net.ipv4.ip_default_ttl "
    "and net.ipv6.conf.all.hop_limit must be below 255"
)

HOPS = (Path("/proc/sys/net/ipv4/ip_default_ttl"), Path("/proc/sys/net/ipv6/conf/all/hop_limit"))


def _hops(file: Path) -> int:
    """How far packets may travel by default; 0 where nothing says so."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


class PartitionError(Exception):
    """Workers cannot be cut off on this machine; the text names what is missing."""


@dataclass(frozen=True, slots=True)
class Held:
    """A socket of a worker, as one of its processes has it."""

    worker: str
    pid: int
    descriptor: int


def silenced(cut: Collection[str], known: Mapping[int, tuple[str, Ends]]) -> set[int]:
    """The sockets at which nothing may arrive, of all (worker, ends) by inode: those of workers that are cut off, and
    the other ends of their connections. Connections of a worker to itself go on.
    """
    owners = {(ends.local, ends.remote): worker for worker, ends in known.values() if ends.remote is not None}
    found = set()
    for inode, (worker, ends) in known.items():
        across = None if ends.remote is None else owners.get((ends.remote, ends.local))
        if across != worker and (worker in cut or across in cut):
            found.add(inode)
    return found


class Partition:
    """The workers that are cut off now. A thread looks for their new sockets while there are any."""

    def __init__(self, processes: Callable[[], Mapping[str, Collection[int]]]) -> None:
        """`processes` gives the live processes of each worker; it is called from a thread, too."""
        self._processes = processes
        self._cut: set[str] = set()
        self._known: dict[int, Ends | None] = {}
        self._silent: set[int] = set()
        self._listed: Mapping[str, Collection[int]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def cut(self, worker: str) -> None:
        """Keep a worker apart from all others, and from the runner. Raises PartitionError; then nothing has changed."""
        if any(_hops(file) >= sockets.MOST_HOPS for file in HOPS):
            raise PartitionError(_TOO_FAR)
        with self._lock:
            self._cut.add(worker)
            self._listed = self._processes()
            try:
                self._look(strict=True)
            except OSError as error:
                self._cut.discard(worker)
                with contextlib.suppress(OSError):
                    self._look(strict=False)
                if error.errno == errno.ENOSYS:
                    raise PartitionError(_TOO_OLD) from error
                raise PartitionError(_NO_RIGHT.format(error.strerror)) from error
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name="partition", daemon=True)
            self._thread.start()

    def heal(self, worker: str) -> None:
        """Connect it again; harmless if it is not cut off. What was lost meanwhile is sent again when the senders'
        timers say so: after about as long as the partition has lasted.
        """
        with self._lock:
            self._cut.discard(worker)
            self._listed = self._processes()
            for _ in range(HEALING_LOOKS):
                self._look(strict=False)
            idle = not self._cut
        if idle:
            self.close()

    def close(self) -> None:
        """End the thread; sockets that are silenced stay so."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # without the right to it, more of what new sockets carry arrives
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PRIORITY)
        looks = 0
        while not self._ended.wait(LOOK_SECONDS):
            looks += 1
            with self._lock:
                if looks % LOOKS_PER_LISTING == 0:
                    self._listed = self._processes()
                self._look(strict=False)

    def _look(self, *, strict: bool) -> None:
        """Bring the sockets into line with the workers that are cut off. Raises OSError if it is `strict` and a socket
        cannot be reached.
        """
        held = {
            inode: Held(worker, pid, descriptor)
            for worker, pids in self._listed.items()
            for pid in pids
            for inode, descriptor in sockets.inodes(pid).items()
        }
        self._known = {inode: ends for inode, ends in self._known.items() if inode in held}
        for inode, each in held.items():
            ends = self._known.get(inode)
            if inode not in self._known or (ends is not None and ends.remote is None):
                self._ask(inode, each, strict=strict)
        known = {inode: (held[inode].worker, ends) for inode, ends in self._known.items() if ends is not None}
        wanted = silenced(self._cut, known)
        silent = self._silent & held.keys()
        for inode in wanted - silent:
            if self._set(inode, held[inode], strict=strict, silent=True):
                silent.add(inode)
        for inode in silent - wanted:
            if self._set(inode, held[inode], strict=strict, silent=False):
                silent.discard(inode)
        self._silent = silent

    def _ask(self, inode: int, held: Held, *, strict: bool) -> None:
        try:
            with sockets.duplicate(held.pid, held.descriptor, inode) as found:
                if found is not None:
                    self._known[inode] = sockets.ends_of(found)
        except OSError as error:
            if strict:
                raise
            logger.debug("a socket of %s cannot be reached: %s", held.worker, error)

    def _set(self, inode: int, held: Held, *, strict: bool, silent: bool) -> bool:
        """Silence a socket or take that back. Returns whether that was done."""
        try:
            with sockets.duplicate(held.pid, held.descriptor, inode) as found:
                if found is None:
                    return False
                sockets.silence(found) if silent else sockets.restore(found)
        except OSError as error:
            if strict:
                raise
            logger.debug("a socket of %s cannot be reached: %s", held.worker, error)
            return False
        return True
