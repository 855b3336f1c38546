"""A worker's connection to its parameter server: made again whenever it is lost, to wherever the newest plan says."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable

import torch

from heterotrain.contract import Server
from heterotrain.groups.assembly import MembershipError
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import EndJob, Enter, Grant, Left, TurnedAway, Update
from heterotrain.groups.peering.server import CONNECT_SECONDS, PeerServer
from heterotrain.training.layout import Layout
from heterotrain.training.server_port import beat

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2  # between two looks at the plan while this worker waits
_CLOSING_SECONDS = 1.0

Reply = Grant | Left | TurnedAway


class ServerLostError(MembershipError):
    """The job's parameter server does not answer, and no other has taken its place in time."""


class ServerLine:
    """One worker's line. Gradients are sent from where they are, and parameters received where they belong."""

    def __init__(
        self,
        peers: PeerServer,
        layout: Layout,
        *,
        find: Callable[[], Server | None],
        gives_up: Callable[[], bool],
        silence_seconds: float,
        patience_seconds: float,
    ) -> None:
        """`find` names the server of the newest plan, `gives_up` says that this worker is to wait no longer. Without a
        server for `patience_seconds` it is lost."""
        self._layout = layout
        self._room = layout.room(whole=True)  # for what does not lie in memory as it travels
        self._peers = peers
        self._find = find
        self._gives_up = gives_up
        self._patience_seconds = patience_seconds
        self._channel: Channel | None = None
        self._server: Server | None = None
        self._entered: Channel | None = None  # the one over which this worker has a lease
        self._asked: Channel | None = None  # the one over which a grant may come: parameters change only meanwhile
        self._apart = False
        self._replies: queue.SimpleQueue[tuple[Channel, Reply | None]] = queue.SimpleQueue()
        peers.follow_with_bulk(Grant, self._room_for)
        peers.handle(Grant, self._receive)
        peers.handle(Left, self._receive)
        peers.handle(TurnedAway, self._receive)
        peers.on_ended(lambda channel: self._replies.put((channel, None)))
        peers.start()
        peers.call_soon(lambda: beat(peers, lambda: self._channel, silence_seconds))

    def enter(self, message: Enter) -> Reply | None:
        """Ask for a first grant. None if this worker gives up waiting, or the connection is lost. Raises
        ServerLostError."""
        channel = self._reach()
        self._apart = False
        self._entered = self._asked = channel  # before the answer, which may come at once
        if channel is None or not channel.send(message):
            return None
        return self._await(channel)

    def push(
        self, message: Update | EndJob, trained: Iterable[torch.Tensor | None] = (), *, apart: bool = False
    ) -> Reply | None:
        """Send what was computed, with an update gradients or parameters, which must not change before the answer is
        there, and buffers. The model changes as the answer comes; with `apart` only once it is taken. None as `enter`,
        and if the server that gave the lease is lost: it, or who has taken its place, knows whether the update was
        applied."""
        channel = self._entered
        if channel is None or not channel.is_open:
            log.warning("the parameter server is lost: %s", "" if channel is None else channel.why)
            return None
        self._asked, self._apart = channel, apart
        if isinstance(message, Update):
            sent = channel.send_bulk(message, self._layout.outgoing(self._room, trained))
        else:
            sent = channel.send(message)
        return self._await(channel) if sent else None

    def take(self, grant: Grant) -> None:
        """Take over what of the model that came with a grant is not where it belongs yet."""
        self._layout.settle(self._room, whole=grant.whole, apart=self._apart)

    def close(self) -> None:
        """This worker's part has ended."""
        self._peers.close(_CLOSING_SECONDS)

    # --- inside -------------------------------------------------------------------------------------------------

    def _receive(self, channel: Channel, reply: Reply) -> None:
        self._replies.put((channel, reply))

    def _room_for(self, channel: Channel, grant: Grant) -> list[memoryview] | None:
        if channel is not self._asked:
            return None
        self._asked = None
        return self._layout.incoming(self._room, whole=grant.whole, apart=self._apart)

    def _await(self, channel: Channel) -> Reply | None:
        """The answer, or None once the connection has ended: what was sent, and the model, are in use until then."""
        while True:
            try:
                source, reply = self._replies.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if self._gives_up():
                    channel.close("this worker waits no longer")
                elif self._find() != self._server:
                    channel.close("another server has taken its place")
                continue
            if source is channel:
                if reply is None:
                    log.warning("the parameter server is lost: %s", channel.why)
                return reply

    def _reach(self) -> Channel | None:
        """An open connection; None if this worker gives up waiting."""
        began = time.monotonic()
        why = "no plan names one"
        while not self._gives_up():
            server, channel = self._find(), self._channel
            if channel is not None and channel.is_open and server == self._server:
                return channel
            if channel is not None:
                channel.close("another server has taken its place")
            if server is not None:
                self._server = server
                self._channel = channel = self._peers.dial(server.address, server.name, server.uid)
                if channel.wait_open(CONNECT_SECONDS):
                    return channel
                why = channel.why or f"{server.name} does not answer"
            if time.monotonic() - began > self._patience_seconds:
                raise ServerLostError(
                    f"the parameter server did not answer for {self._patience_seconds:g} s "
                    f"(runPolicy.startupDeadlineSeconds): {why}"
                )
            time.sleep(_LOOK_SECONDS)
        return None
