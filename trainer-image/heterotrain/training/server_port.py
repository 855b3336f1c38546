"""Where a parameter server's workers call: their connections, what they send, and who is cut off.

One thread, the peer server's, reads and writes all connections. Each worker that has entered has one room, in which its
update arrives and from which its next parameters go: so the server holds no more than a model for each of them. The
training's thread takes what has come, one event after the other.
"""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch

from heterotrain.groups.peering.channel import Channel, End
from heterotrain.groups.peering.messages import EndJob, Enter, Grant, Left, TurnedAway, Update, Vouches
from heterotrain.groups.peering.server import PeerServer
from heterotrain.training.layout import Layout, memory_of

log = logging.getLogger(__name__)

UNPROVEN, MALFORMED, CROWDED = "unproven", "malformed", "crowded"
SILENT, UNREAD, DIFFERENT, LEASE = "silent", "unread", "different", "lease"
"""Why a connection, or what came over it, was refused."""

_OVER = "the job is over"
_SAID_SECONDS = 1.0  # between two lines of the log about what is refused for one reason

BEATS = 4
"""How often within the time after which a peer is silent both sides say that they live."""


@dataclass(eq=False, slots=True)
class Caller:
    """A worker's connection. `owes`: it was given a lease, so an update may come. `applied`: so was its last update;
    `plan_version` is that of the newest plan that it has, `frozen_version` of what is not trained, and `since` when it
    began to wait."""

    channel: Channel
    room: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    owes: bool = False
    applied: bool = False
    plan_version: int = -1
    frozen_version: int = -1
    since: float = 0.0

    @property
    def uid(self) -> str:
        """The worker's."""
        return self.channel.peer.uid

    @property
    def name(self) -> str:
        """The worker's."""
        return self.channel.peer.name


Event = tuple[Caller, "Enter | Update | EndJob | None"]
"""What a worker has sent; None: its connection has ended."""


class ServerPort:
    """All connections of a parameter server."""

    def __init__(
        self, peers: PeerServer, layout: Layout, silence_seconds: float, refused: Callable[[str], None]
    ) -> None:
        """`peers` listens, and is not started yet. A worker that sends nothing, or reads nothing of what is sent to it,
        for `silence_seconds` is cut off; fewer than `LIFE_BYTES` of a message are nothing. `refused` is called with the
        reason whenever something is refused."""
        self._refused = refused
        self._layout = layout
        self._silence_seconds = silence_seconds
        self._peers = peers
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._callers: dict[Channel, Caller] = {}  # the thread's
        self._ticked = time.monotonic()
        self._said: dict[str, float] = {}  # when a refusal for a reason was logged last
        self._closes = self._is_over = False
        peers.follow_with_bulk(Update, self._room)
        peers.handle(Enter, self._receive_entering)
        peers.handle(Update, self._receive)
        peers.handle(EndJob, self._receive)
        peers.on_opened(self._opened)
        peers.on_ended(self._ended)
        peers.start()
        peers.call_soon(self._tick)

    # --- the training's side ------------------------------------------------------------------------------------

    def next(self, seconds: float) -> Event | None:
        """What has come, waiting at most so long for it."""
        try:
            return self._events.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None

    def grant(self, caller: Caller, grant: Grant) -> None:
        """Send a worker the model as it is now."""
        layout = self._layout
        room = caller.room
        if grant.whole and layout.whole_size != layout.size:
            room = layout.room(whole=True)
        layout.write(room, whole=grant.whole)
        caller.owes = bool(grant.share)
        caller.channel.send_bulk(grant, [memory_of(room)])

    def turn_away(self, caller: Caller, reason: str, why: str, *, again: bool) -> None:
        """What a worker has sent is refused; it is to enter `again`, or not."""
        self._count(reason, f"{caller.name}: {why}")
        caller.channel.send(TurnedAway(why, again))

    def let_go(self, caller: Caller, why: str) -> None:
        """The job goes on without this worker."""
        caller.channel.send(Left(caller.uid, why))

    def say_that_all_is_over(self, waiting: Iterable[Caller] = ()) -> None:
        """From now on whoever enters, or sends what it has computed, learns that, and nothing else; so do these."""
        self._peers.call_soon(partial(self._end_all, [*waiting]))

    def close(self, seconds: float = 0.0) -> None:
        """Listen no more; what is being sent has so long to arrive."""
        self._closes = True
        self._peers.close(seconds)

    # --- the peer server's thread -------------------------------------------------------------------------------

    def _opened(self, channel: Channel) -> None:
        self._callers[channel] = Caller(channel)

    def _end_all(self, waiting: list[Caller]) -> None:
        self._is_over = True
        while (event := self.next(0)) is not None:
            waiting.append(event[0])
        for caller in waiting:
            self.let_go(caller, _OVER)

    def _receive_entering(self, channel: Channel, message: Enter) -> None:
        caller = self._callers[channel]
        caller.owes = False
        if not caller.room.numel() and not self._is_over:
            caller.room = self._layout.room()
        self._receive(channel, message)

    def _receive(self, channel: Channel, message: Enter | Update | EndJob) -> None:
        caller = self._callers[channel]
        if self._is_over:
            self.let_go(caller, _OVER)
        else:
            self._events.put((caller, message))

    def _room(self, channel: Channel, _message: Update) -> list[memoryview] | None:
        caller = self._callers[channel]
        if not caller.owes:
            return None
        caller.owes = False
        return [memory_of(caller.room)]

    def _ended(self, channel: Channel) -> None:
        if channel.end is End.DISTRUSTED:
            self._count(MALFORMED if channel.has_opened else UNPROVEN, channel.why)
        elif not channel.has_opened and channel.end in (End.SILENT, End.HERE) and not self._closes:
            self._count(UNPROVEN if channel.end is End.SILENT else CROWDED, f"{channel.name}: {channel.why}")
        caller = self._callers.pop(channel, None)
        if caller is not None:
            self._events.put((caller, None))

    def _tick(self) -> None:
        """Say to all that this server lives, and cut off who does not say so, or does not read."""
        interval, now = self._silence_seconds / BEATS, time.monotonic()
        held_up = now - self._ticked > 2 * interval  # this process was, and perhaps not the others
        self._ticked = now
        for channel in list(self._callers):
            if held_up:
                channel.received_at = channel.moved_at = now
            elif now - channel.received_at > self._silence_seconds:
                self._cut(channel, SILENT, f"{channel.name} was silent for {self._silence_seconds:g} s")
            elif not channel.is_written and now - channel.moved_at > self._silence_seconds:
                self._cut(channel, UNREAD, f"{channel.name} reads nothing")
            if channel.is_written:
                channel.send(Vouches())
        self._peers.call_later(interval, self._tick)

    def _cut(self, channel: Channel, reason: str, why: str) -> None:
        self._count(reason, why)
        channel.close(why)

    def _count(self, reason: str, why: str) -> None:
        self._refused(reason)
        now = time.monotonic()
        if now - self._said.get(reason, -math.inf) >= _SAID_SECONDS:
            self._said[reason] = now
            log.warning("refused (%s): %s", reason, why)


def beat(peers: PeerServer, channel: Callable[[], Channel | None], silence_seconds: float) -> None:
    """On a worker, in the thread of `peers`, and from then on: say to the server that this worker lives, and cut it off
    if it is silent in the midst of a message. A silent server may be busy: that is for the operator to judge."""
    found = channel()
    if found is not None and found.is_receiving and time.monotonic() - found.received_at > silence_seconds:
        found.close(f"{found.name} was silent for {silence_seconds:g} s in the midst of a message")
    if found is not None and found.is_open and found.is_written:
        found.send(Vouches())
    peers.call_later(silence_seconds / BEATS, partial(beat, peers, channel, silence_seconds))
