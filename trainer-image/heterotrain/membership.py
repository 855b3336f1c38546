"""Process groups in generations: make them, cut them when a collective fails, make them again.

A generation's groups are never repaired. When a collective fails on one rank, it shuts the sockets of the whole
generation: every pending collective fails at once, here and at the others, and all meet again under the next attempt
of the generation. One TCPStore, served by the leader, outlives all attempts; each has a prefix of its own in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from functools import partial
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
_LEFT = "left"  # the store's key under which a worker that leaves before the end says so
_LEFT_SECONDS = 3.0
_GIVE_UP_SECONDS = 1.0
_LONGEST_WORD = 1000
# All members are here when groups are made, so whoever is not connected by then died in between.
_GROUP_SECONDS = 10.0
# Beyond this a collective is lost even if nobody noticed; the operator acts on silent workers long before.
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class MembershipError(RuntimeError):
    """This worker cannot train with the others; the text names who is missing."""


class CollectiveError(RuntimeError):
    """A collective failed, or its groups were given up meanwhile."""


Then = Callable[[Callable[[], Any]], Any]
"""What to make of a collective's outcome; see `Generation.watch`."""


def _fail(reason: str) -> Any:
    raise CollectiveError(reason)


def _settle(promise: torch.futures.Future[Any], outcome: Callable[[], Any], then: Then | None) -> None:
    try:
        result = outcome() if then is None else then(outcome)
    except RuntimeError as error:
        promise.set_exception(CollectiveError(str(error)))
        return
    promise.set_result(result)


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

    def __init__(self, spare_port: int | None = None, hosts: Collection[str] = ()) -> None:
        """Sockets with the local port `spare_port` (that of our metrics server) are left alone; so are, if `hosts` are
        given, those that lead to other hosts: another thread's connections."""
        self._spare_port = spare_port
        self._hosts = frozenset(hosts)
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
        if ours or listening or not self._leads_to_a_member(duplicate):
            duplicate.close()
        else:
            self._sockets.append(duplicate)

    def _leads_to_a_member(self, duplicate: socket.socket) -> bool:
        if not self._hosts:
            return True
        try:
            host = str(duplicate.getpeername()[0])
        except OSError:
            return True  # not connected yet, or not any more
        return host.removeprefix("::ffff:") in self._hosts

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

    They are no part of torch.distributed's own world, which stays the script's. Whoever waits for a collective waits
    for what `watch` returns: gloo can lose track of an operation on a connection that closes, and such a one would
    never end by itself.
    """

    gradients: dist.ProcessGroup
    control: dist.ProcessGroup

    def __init__(self, plan: Plan, attempt: int, rank: int, cutter: SocketCutter, backend: str = "gloo") -> None:
        self.number = f"{plan.generation}.{attempt}"
        self.attempt = attempt
        self.rank = rank
        self.world_size = len(plan.members)
        self.backend = backend
        self._cutter = cutter
        self._lock = threading.Lock()
        self._outstanding: dict[torch.futures.Future[Any], tuple[float, Then | None]] = {}
        self._broken = ""
        self._left = False
        self._sum = dist.AllreduceOptions()

    def make_groups(self, store: dist.Store) -> None:
        """Connect to all other members, who do the same. Raises RuntimeError if that takes too long."""
        make = timedelta(seconds=_GROUP_SECONDS)
        prefix = dist.PrefixStore(self.number, store)
        self.control = self._gloo(dist.PrefixStore("control", prefix), make)
        if self.backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            own = dist.PrefixStore("gradients", prefix)
            nccl: Any = dist.ProcessGroupNCCL(own, self.rank, self.world_size, options)
            self.gradients = nccl
        else:
            self.gradients = self._gloo(dist.PrefixStore("gradients", prefix), make)

    def _gloo(self, store: dist.Store, make: timedelta) -> dist.ProcessGroup:
        group: Any = dist.ProcessGroupGloo(store, self.rank, self.world_size, make)
        group._set_default_timeout(_COLLECTIVE_TIMEOUT)  # torch has no public name for it on a group of this kind
        made: dist.ProcessGroup = group
        return made

    def sum_gradients(self, tensor: torch.Tensor, then: Then | None = None) -> torch.futures.Future[Any]:
        """Sum over all members, in place; `then` is as for `watch`. Raises RuntimeError if the groups are broken
        already."""
        return self.watch(self.gradients.allreduce([tensor], self._sum), tensor.device, then)

    def sum(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        """The same of small tensors on the CPU, beside the gradients."""
        return self.watch(self.control.allreduce([tensor], self._sum))

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.futures.Future[Any]:
        """That of rank `source` for all, in place, on the CPU. Raises RuntimeError as above."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        return self.watch(self.control.broadcast([tensor], options))

    def watch(self, work: dist.Work, device: torch.device = CPU, then: Then | None = None) -> torch.futures.Future[Any]:
        """A future that ends when the collective does, or at once with a CollectiveError when this attempt is broken
        up. `device` is that of its tensors: on a GPU whoever waits is ordered after them in its stream.

        The future has what `then` makes of the outcome: a function that it may call returns the collective's value, or
        raises RuntimeError. (A second future that follows the first would take a thread once more.)
        """
        promise: torch.futures.Future[Any] = torch.futures.Future(devices=None if device == CPU else [device])
        with self._lock:
            broken = self._broken
            if not broken:
                self._outstanding[promise] = (time.monotonic(), then)
        if broken:
            # Even if it completes: what was begun after the break does not count.
            _settle(promise, partial(_fail, broken), then)
            return promise

        def end(done: torch.futures.Future[Any]) -> None:
            with self._lock:
                if self._outstanding.pop(promise, None) is None:
                    return  # broken up meanwhile
            _settle(promise, done.value, then)

        work.get_future().add_done_callback(end)
        return promise

    @property
    def waiting_seconds(self) -> float:
        """For how long the oldest collective under way has not ended; 0 if there is none."""
        with self._lock:
            began = [moment for moment, _ in self._outstanding.values()]
        return time.monotonic() - min(began) if began else 0.0

    def break_up(self, reason: str) -> None:
        """Fail all pending collectives of this attempt, here and at the others. Safe from any thread, any number of
        times."""
        with self._lock:
            first, self._broken = not self._broken, self._broken or reason
            abandoned = [(promise, then) for promise, (_, then) in self._outstanding.items()]
            self._outstanding.clear()
        if first:
            self._cutter.cut()
        for promise, then in abandoned:
            _settle(promise, partial(_fail, reason), then)

    def leave(self) -> None:
        """Release the groups, of which nobody else may hold a reference. Calling it twice is harmless."""
        if self._left:
            return
        self._left = True
        for name in ("gradients", "control"):
            group = self.__dict__.pop(name, None)
            if self._broken and group is not None:
                # Its destructor waits for operations that gloo may have lost track of, so it must never run. Otherwise
                # it must run now: a thread of gloo's that still returns from a callback while the interpreter ends
                # would take the process down.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            del group
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
        backend: str = "auto",
    ) -> None:
        """Connect to the leader's store (or serve it).

        `check_stop` is called while waiting and may raise to give up; `backend` is that of `TrainingConfig`. Raises
        MembershipError if the leader is not reached within `deadline_seconds`.
        """
        self._plan = plan
        self._rank = rank
        self._device_type = device_type
        self._spare_port = spare_port
        self._check_stop = check_stop
        self._backend = backend
        self._attempt = 0
        self._left_since = 0.0
        self._given_up = False
        self._devices: set[bytes] = set()  # kinds that the members have
        self._current: Generation | None = None
        host, _, port = plan.members[0].address.rpartition(":")
        if host.startswith("127."):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = self._connect(host, int(port), deadline_seconds)
        # A client of its own, for one that waits for an answer keeps its lock.
        self._watch_store = self._connect(host, int(port), deadline_seconds, serves=False)
        threading.Thread(target=self._keep_watch, name="heterotrain-watch", daemon=True).start()

    def _connect(self, host: str, port: int, deadline_seconds: float, *, serves: bool = True) -> dist.TCPStore:
        deadline = time.monotonic() + deadline_seconds
        while True:
            self._check_stop()
            try:
                return dist.TCPStore(
                    host,
                    port,
                    is_master=serves and self._rank == 0,
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
            self._attempt = self._ask(self._next_attempt, deadline)
            number = f"{self._plan.generation}.{self._attempt}"
            try:
                self._ask(partial(self._await_all, number, deadline), deadline)
                self._current = self._make_groups(number)
                return self._current
            except _OvertakenError:
                continue
            except RuntimeError as error:
                if isinstance(error, MembershipError):
                    raise
                if time.monotonic() > deadline:
                    raise MembershipError(f"groups of generation {number} could not be made: {error}") from error
                log.warning("attempt %s to form the group failed, trying again: %s", number, error)

    def _ask(self, call: Callable[[], Any], deadline: float) -> Any:
        """What a call that talks to the store returns or raises. In a thread: a leader that is frozen keeps whoever
        waits for its answer from hearing signals, and from knowing the time."""
        self._given_up = False
        asking = _Aside(call)
        try:
            while not asking.done.wait(_POLL_SECONDS):
                self._check_stop()
                if time.monotonic() > deadline + _CONNECT_SECONDS:
                    raise MembershipError(f"lost the leader {self._plan.leader}: it does not answer")
        except BaseException:
            # A thread that comes back from torch while the interpreter ends would take the process down.
            self._given_up = True
            asking.done.wait(_GIVE_UP_SECONDS)
            raise
        return asking.result()

    def part(self) -> None:
        """The training is over; nobody is to be watched any more."""
        self._current = None

    def leave_word(self, why: str) -> None:
        """This worker leaves before the end; whoever looks for it learns why. Does nothing if the store is gone."""
        word = json.dumps([self._plan.members[self._rank].name, why[:_LONGEST_WORD]])
        _Aside(lambda: self._store.set(_LEFT, word)).done.wait(_CONNECT_SECONDS)

    def _check_left(self) -> None:
        """Raises MembershipError some time after a worker has left for good: whoever acts on ends should see its end
        first, for it is the cause."""
        if not self._store.check([_LEFT]):
            return
        self._left_since = self._left_since or time.monotonic()
        if time.monotonic() - self._left_since < _LEFT_SECONDS:
            return
        try:
            name, why = json.loads(self._store.get(_LEFT))
        except ValueError:
            name, why = "a worker", "in disorder"
        raise MembershipError(f"{name} left: {why}")

    def _keep_watch(self) -> None:
        """If a collective takes long, look whether the others have given it up already, or the leader is lost."""
        while True:
            time.sleep(_WATCH_SECONDS)
            generation = self._current
            if generation is None or generation.waiting_seconds < 2 * _WATCH_SECONDS:
                continue
            try:
                if int(self._watch_store.get("attempt")) > generation.attempt:
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
                if self._given_up:
                    raise MembershipError("not waited for any more")
                self._check_left()
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
            self._devices = {self._store.get(key) for key in keys}
        except dist.DistError as error:
            raise MembershipError(f"lost the leader {self._plan.leader}: {error}") from error

    def _make_groups(self, number: str) -> Generation:
        # nccl reaches only GPUs; gloo serves a mixture, staging GPU buckets through pinned host memory by itself.
        backend = "nccl" if self._devices == {b"cuda"} and self._backend == "auto" else "gloo"
        cutter = SocketCutter(self._spare_port, self._hosts())
        generation = Generation(self._plan, self._attempt, self._rank, cutter, backend)

        # In a thread, for a signal is only handled between the main thread's instructions.
        def make() -> None:
            with cutter.watch():  # sockets are known as the generation's before this has ended
                generation.make_groups(self._store)

        try:
            self._ask(make, time.monotonic() + _COLLECTIVE_TIMEOUT.total_seconds())
        except BaseException as error:
            generation.break_up(str(error))
            raise
        return generation

    def _hosts(self) -> set[str]:
        """Addresses of all members; empty if they cannot all be found out."""
        found: set[str] = set()
        for member in self._plan.members:
            host = member.address.rpartition(":")[0].strip("[]")
            try:
                found |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
            except OSError:
                return set()
        return found


class _Aside(threading.Thread):
    """A call beside the main thread, whose end may not come."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="heterotrain-aside", daemon=True)
        self.done = threading.Event()
        self._call = call
        self._returned: Any = None
        self._error: Exception | None = RuntimeError("a call beside the main thread had no end")
        self.start()

    def run(self) -> None:
        """Keep what comes of it."""
        try:
            self._returned = self._call()
            self._error = None
        except (RuntimeError, OSError, ValueError, _OvertakenError) as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> Any:
        """What the call returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._returned


class _OvertakenError(Exception):
    """Others have begun a later attempt."""
