"""Where the members of a generation meet: at the start, and again whenever a collective has failed.

One TCPStore, served by the leader, outlives all attempts; each attempt has a prefix of its own in it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from heterotrain.contract import Plan
from heterotrain.groups.generation import GROUP_SECONDS, Generation
from heterotrain.groups.seal import SealedStore, SealError
from heterotrain.groups.sockets import SocketCutter
from heterotrain.peers import LONGEST_WORD, parse_leaving, parse_number

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_WATCH_SECONDS = 1.0
_LEFT = "left"  # the store's key under which a worker that leaves before the end writes why
_LEFT_SECONDS = 3.0
_GIVE_UP_SECONDS = 1.0
_MAKING_GROUPS = 6  # times the bound of one wait, of which making two groups has several


class MembershipError(RuntimeError):
    """This worker cannot train with the others; the text names who is missing."""


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
        secret: str | None = None,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect to the leader's store (or serve it).

        `check_stop` is called while waiting and may raise to give up; `backend` is that of `TrainingConfig`. With a
        `secret` only what was written by those who know it is believed; `is_asked_to_stop` is for the generations.
        Raises MembershipError if the leader is not reached within `deadline_seconds`.
        """
        self._plan = plan
        self._rank = rank
        self._device_type = device_type
        self._spare_port = spare_port
        self._check_stop = check_stop
        self._backend = backend
        self._secret = secret
        self._is_asked_to_stop = is_asked_to_stop
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

    def _connect(self, host: str, port: int, deadline_seconds: float, *, serves: bool = True) -> dist.Store:
        deadline = time.monotonic() + deadline_seconds
        while True:
            self._check_stop()
            try:
                store = dist.TCPStore(
                    host,
                    port,
                    is_master=serves and self._rank == 0,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=_CONNECT_SECONDS),
                )
                return store if self._secret is None else SealedStore(store, self._secret)
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
            except SealError as error:
                raise MembershipError(str(error)) from error  # it stays there, so another try would find it again
            except RuntimeError as error:
                if isinstance(error, MembershipError):
                    raise
                if time.monotonic() > deadline:
                    raise MembershipError(f"groups of generation {number} could not be made: {error}") from error
                log.warning("attempt %s to form the group failed, trying again: %s", number, error)

    def _ask(self, call: Callable[[], Any], deadline: float) -> Any:
        """Return or raise what a call that talks to the store does.

        The call runs in a thread of its own, for a worker that waits for the answer of a frozen leader gets no signals
        and cannot keep to a deadline.
        """
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

    def leave(self) -> None:
        """The training is over, and the others are not watched any more."""
        self._current = None

    def announce_leaving(self, why: str) -> None:
        """This worker leaves before the end, and the others learn why. Does nothing if the store is gone."""
        word = json.dumps([self._plan.members[self._rank].name, why[:LONGEST_WORD]])
        _Aside(lambda: self._store.set(_LEFT, word)).done.wait(_CONNECT_SECONDS)

    def _check_left(self) -> None:
        """Raises MembershipError some time after a worker has left for good. The delay lets the operator see the end of
        that worker first, since it is the cause."""
        if not self._store.check([_LEFT]):
            return
        self._left_since = self._left_since or time.monotonic()
        if time.monotonic() - self._left_since < _LEFT_SECONDS:
            return
        name, why = parse_leaving(self._store.get(_LEFT))
        raise MembershipError(f"{name} left: {why}")

    def _keep_watch(self) -> None:
        """While a collective takes long, look whether the others have given it up already, or the leader is lost."""
        while True:
            time.sleep(_WATCH_SECONDS)
            generation = self._current
            if generation is None or generation.waiting_seconds < 2 * _WATCH_SECONDS:
                continue
            try:
                if parse_number(self._watch_store.get("attempt")) > generation.attempt:
                    generation.break_up("the others have given this attempt up")
            except dist.DistError as error:
                generation.break_up(f"lost the leader {self._plan.leader}: {error}")
            except (SealError, ValueError) as error:
                generation.break_up(f"the leader's store is in disorder: {error}")

    def _next_attempt(self) -> int:
        """The attempt after the one that failed here, or the newest that others have begun."""
        try:
            # compare_set takes an empty expectation for "not there yet"
            expected = str(self._attempt) if self._attempt else ""
            found = self._store.compare_set("attempt", expected, str(self._attempt + 1))
        except dist.DistError as error:
            raise MembershipError(f"lost the leader {self._plan.leader}: {error}") from error
        return max(parse_number(found), self._attempt + 1)

    def _await_all(self, number: str, deadline: float) -> None:
        keys = [f"here/{number}/{rank}" for rank in range(len(self._plan.members))]
        try:
            self._store.set(keys[self._rank], self._device_type)
            while not self._store.check(keys):
                if self._given_up:
                    raise MembershipError("this attempt was given up")
                self._check_left()
                if parse_number(self._store.get("attempt")) > self._attempt:
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
        generation = Generation(
            self._plan,
            self._attempt,
            self._rank,
            cutter,
            backend=backend,
            is_asked_to_stop=self._is_asked_to_stop,
        )

        # In a thread, for a signal is only handled between the main thread's instructions.
        def make() -> None:
            with cutter.watch():  # sockets are known as the generation's before this has ended
                generation.make_groups(self._store)

        try:
            self._ask(make, time.monotonic() + _MAKING_GROUPS * GROUP_SECONDS)
        except BaseException as error:
            generation.break_up(str(error))
            raise
        return generation

    def _hosts(self) -> set[str]:
        """The addresses of all members; empty if one of them cannot be resolved."""
        found: set[str] = set()
        for member in self._plan.members:
            host = member.address.rpartition(":")[0].strip("[]")
            try:
                found |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
            except OSError:
                return set()
        return found


class _Aside(threading.Thread):
    """A call in a thread of its own, which may never end."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="heterotrain-aside", daemon=True)
        self.done = threading.Event()
        self._call = call
        self._returned: Any = None
        self._error: Exception | None = RuntimeError("a call beside the main thread had no end")
        self.start()

    def run(self) -> None:
        """Keep what the call returns or raises."""
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
