"""Process groups in generations: make them, cut them when a collective fails, make them again.

A generation's groups are never repaired. When a collective fails on one rank, it shuts the sockets of the whole
generation: every pending collective fails at once, here and at the others, and all meet again under the next attempt
of the generation. One TCPStore, served by the leader, outlives all attempts; each has a prefix of its own in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from heterotrain.contract import Plan

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 1.0
# Beyond this a collective is lost even if nobody noticed; the operator acts on silent workers long before.
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class MembershipError(RuntimeError):
    """This worker cannot train with the others; the text names who is missing."""


class CollectiveError(RuntimeError):
    """A collective failed, or its groups were given up meanwhile."""


def is_collective_error(error: RuntimeError) -> bool:
    """Whether an error comes from torch.distributed or gloo (which raises plain RuntimeErrors), not from a model."""
    return isinstance(error, (CollectiveError, dist.DistError)) or "gloo" in str(error).lower()


def _open_sockets() -> dict[int, int]:
    """Inode -> file descriptor of the sockets that this process holds."""
    sockets = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                sockets[int(target[8:-1])] = int(descriptor.name)
    return sockets


class SocketCutter:
    """Remembers which sockets appeared inside its `watch()`, and can shut them down, whoever uses them.

    `ProcessGroupGloo.abort()` does not unblock a stuck collective; this does. It works on duplicates, so that a file
    descriptor that was closed and used anew is never touched.
    """

    def __init__(self, spare_port: int | None = None) -> None:
        """Sockets with the local port `spare_port` (that of our metrics server) are left alone."""
        self._spare_port = spare_port
        self._sockets: list[socket.socket] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Sockets that appear inside this block belong to the generation, also if it is left by an exception."""
        before = _open_sockets()
        try:
            yield
        finally:
            for inode, descriptor in _open_sockets().items():
                if inode not in before:
                    with contextlib.suppress(OSError):
                        self._adopt(socket.socket(fileno=os.dup(descriptor)))

    def _adopt(self, duplicate: socket.socket) -> None:
        name = duplicate.getsockname()
        # one that is not of the network (a data loader's) is no group's
        ours = not isinstance(name, tuple) or name[1] == self._spare_port
        # gloo ends the process if accept() on a listening socket of its fails
        listening = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if ours or listening:
            duplicate.close()
        else:
            self._sockets.append(duplicate)

    def cut(self) -> None:
        """Shut all of them down; pending operations on them fail at once on both ends. May be called twice."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # not connected any more
                each.shutdown(socket.SHUT_RDWR)
        self.release()

    def release(self) -> None:
        """Forget them without a cut."""
        for each in self._sockets:
            each.close()
        self._sockets = []


class Generation:
    """The process groups of one attempt: `gradients` (nccl if all members have GPUs, else gloo), `control` (gloo).

    Whoever waits for a collective waits for what `watch` returns: gloo can lose track of an operation on a connection
    that closes, and such a one would never end by itself.
    """

    gradients: dist.ProcessGroup
    control: dist.ProcessGroup

    def __init__(self, plan: Plan, attempt: int, rank: int, cutter: SocketCutter) -> None:
        self.number = f"{plan.generation}.{attempt}"
        self.attempt = attempt
        self.rank = rank
        self.world_size = len(plan.members)
        self._cutter = cutter
        self._lock = threading.Lock()
        self._outstanding: dict[torch.futures.Future[Any], float] = {}
        self._broken = ""
        self._left = False

    def watch(self, work: dist.Work, device: torch.device = CPU) -> torch.futures.Future[Any]:
        """A future that ends when the collective does, or at once with a CollectiveError when this attempt is broken
        up. `device` is that of its tensors: on a GPU whoever waits is ordered after them in its stream."""
        promise: torch.futures.Future[Any] = torch.futures.Future(devices=None if device == CPU else [device])
        with self._lock:
            broken = self._broken
            if not broken:
                self._outstanding[promise] = time.monotonic()
        if broken:
            # Even if it completes: what was begun after the break does not count.
            promise.set_exception(CollectiveError(broken))
            return promise

        def end(done: torch.futures.Future[Any]) -> None:
            with self._lock:
                if self._outstanding.pop(promise, None) is None:
                    return  # broken up meanwhile
            try:
                promise.set_result(done.value())
            except RuntimeError as error:
                promise.set_exception(CollectiveError(str(error)))

        work.get_future().add_done_callback(end)
        return promise

    @property
    def waiting_seconds(self) -> float:
        """For how long the oldest collective under way has not ended; 0 if there is none."""
        with self._lock:
            return time.monotonic() - min(self._outstanding.values()) if self._outstanding else 0.0

    def break_up(self, reason: str) -> None:
        """Fail all pending collectives of this attempt, here and at the others. Safe from any thread, any number of
        times."""
        with self._lock:
            first, self._broken = not self._broken, self._broken or reason
            abandoned = list(self._outstanding)
            self._outstanding.clear()
        if first:
            self._cutter.cut()
        for promise in abandoned:
            promise.set_exception(CollectiveError(reason))

    def leave(self) -> None:
        """Release the groups, of which nobody else may hold a reference. Calling it twice is harmless."""
        if self._left:
            return
        self._left = True
        if self._broken:
            # Their destructors wait for operations that gloo may have lost track of, so they must never run.
            for group in (self.gradients, self.control):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        dist.destroy_process_group()
        # Otherwise they must run now: a thread of gloo's that still returns from a callback while the interpreter ends
        # would take the process down.
        del self.gradients, self.control
        self._cutter.release()


class Rendezvous:
    """Where the members of one generation of the operator's plan meet, as often as it takes."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device_type: str,
        *,
        deadline_seconds: float,
        spare_port: int | None,
        check_stop: Callable[[], None],
    ) -> None:
        """Connect to the leader's store (or serve it).

        `check_stop` is called while waiting and may raise to give up. Raises MembershipError if the leader is not
        reached within `deadline_seconds`.
        """
        self._plan = plan
        self._rank = rank
        self._device_type = device_type
        self._spare_port = spare_port
        self._check_stop = check_stop
        self._attempt = 0
        self._current: Generation | None = None
        host, _, port = plan.members[0].address.rpartition(":")
        if host.startswith("127."):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = self._connect(host, int(port), deadline_seconds)
        threading.Thread(target=self._keep_watch, name="heterotrain-watch", daemon=True).start()

    def _connect(self, host: str, port: int, deadline_seconds: float) -> dist.TCPStore:
        deadline = time.monotonic() + deadline_seconds
        while True:
            self._check_stop()
            try:
                return dist.TCPStore(
                    host,
                    port,
                    is_master=self._rank == 0,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=_CONNECT_SECONDS),
                )
            except dist.DistError as error:
                if time.monotonic() > deadline:
                    raise MembershipError(
                        f"cannot reach the leader {self._plan.leader} at {host}:{port} "
                        f"for generation {self._plan.generation}: {error}"
                    ) from error

    def meet(self, deadline_seconds: float) -> Generation:
        """Make the groups of the next attempt together with all other members.

        Raises MembershipError, naming the missing, if they are not all here within `deadline_seconds`.
        """
        deadline = time.monotonic() + deadline_seconds
        while True:
            self._attempt = self._next_attempt()
            number = f"{self._plan.generation}.{self._attempt}"
            try:
                self._await_all(number, deadline)
                self._current = self._make_groups(number)
                return self._current
            except _OvertakenError:
                continue
            except RuntimeError as error:
                if isinstance(error, MembershipError) or time.monotonic() > deadline:
                    raise
                log.warning("attempt %s to form the group failed, trying again: %s", number, error)

    def part(self) -> None:
        """The training is over; nobody is to be watched any more."""
        self._current = None

    def _keep_watch(self) -> None:
        """If a collective takes long, look whether the others have given it up already, or the leader is lost."""
        while True:
            time.sleep(_WATCH_SECONDS)
            generation = self._current
            if generation is None or generation.waiting_seconds < 2 * _WATCH_SECONDS:
                continue
            try:
                if int(self._store.get("attempt")) > generation.attempt:
                    generation.break_up("the others have given this attempt up")
            except dist.DistError as error:
                generation.break_up(f"lost the leader {self._plan.leader}: {error}")

    def _next_attempt(self) -> int:
        """The attempt after the one that failed here, or the newest that others have begun."""
        try:
            # compare_set takes an empty expectation for "not there yet"
            expected = str(self._attempt) if self._attempt else ""
            found = self._store.compare_set("attempt", expected, str(self._attempt + 1))
        except dist.DistError as error:
            raise MembershipError(f"lost the leader {self._plan.leader}: {error}") from error
        return max(int(found or b"0"), self._attempt + 1)

    def _await_all(self, number: str, deadline: float) -> None:
        keys = [f"here/{number}/{rank}" for rank in range(len(self._plan.members))]
        try:
            self._store.set(keys[self._rank], self._device_type)
            while not self._store.check(keys):
                self._check_stop()
                if int(self._store.get("attempt")) > self._attempt:
                    raise _OvertakenError
                if time.monotonic() > deadline:
                    missing = [
                        member.name
                        for key, member in zip(keys, self._plan.members, strict=True)
                        if not self._store.check([key])
                    ]
                    raise MembershipError(f"gave up waiting for {', '.join(missing)} in generation {number}")
                time.sleep(_POLL_SECONDS)
        except dist.DistError as error:
            raise MembershipError(f"lost the leader {self._plan.leader}: {error}") from error

    def _make_groups(self, number: str) -> Generation:
        world_size = len(self._plan.members)
        devices = {self._store.get(f"here/{number}/{rank}") for rank in range(world_size)}
        # nccl reaches only GPUs; gloo serves a mixture, staging GPU buckets through pinned host memory by itself.
        backend = "nccl" if devices == {b"cuda"} else "gloo"
        cutter = SocketCutter(self._spare_port)
        generation = Generation(self._plan, self._attempt, self._rank, cutter)
        try:
            with cutter.watch():
                dist.init_process_group(
                    backend,
                    store=dist.PrefixStore(number, self._store),
                    rank=self._rank,
                    world_size=world_size,
                    timeout=_COLLECTIVE_TIMEOUT,
                )
                control = dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT)
            assert control is not None
            assert dist.group.WORLD is not None
            generation.gradients, generation.control = dist.group.WORLD, control
        except RuntimeError as error:
            generation.break_up(str(error))
            if dist.is_initialized():
                dist.destroy_process_group()
            raise
        return generation


class _OvertakenError(Exception):
    """Others have begun a later attempt."""
