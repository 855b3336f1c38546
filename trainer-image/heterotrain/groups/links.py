"""The workers that plans have named and the channels that are open to them, and who waits to join them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from heterotrain.contract import Member, Plan
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Begins, Joins, Over, Prepare


class Links:
    """Finds a worker's name, address and newest open channel by its UID."""

    def __init__(self, own: Member) -> None:
        self._members: dict[str, Member] = {own.uid: own}
        self._channels: dict[str, list[Channel]] = {}

    def know(self, plan: Plan) -> None:
        """These members can be reached from now on."""
        self._members |= {member.uid: member for member in plan.members}

    def member(self, uid: str) -> Member | None:
        """The worker with this UID, if any plan has named it."""
        return self._members.get(uid)

    def name(self, uid: str) -> str:
        """The name of a worker; its UID if no plan has named it."""
        member = self._members.get(uid)
        return uid if member is None else member.name

    def opened(self, channel: Channel) -> None:
        """A peer is connected by this channel, perhaps beside others that end soon."""
        self._channels.setdefault(channel.peer.uid, []).append(channel)

    def ended(self, channel: Channel) -> bool:
        """A channel that was open has ended. Returns whether it was the last one with its peer."""
        uid = channel.peer.uid
        left = [each for each in self._channels.get(uid, []) if each is not channel]
        if left:
            self._channels[uid] = left
            return False
        return self._channels.pop(uid, None) is not None

    def channel(self, uid: str) -> Channel | None:
        """The newest open channel with this peer, if there is one."""
        return next((each for each in reversed(self._channels.get(uid, [])) if each.is_open), None)

    def open_channels(self) -> Iterator[tuple[str, Channel]]:
        """The newest open channel of each peer that has one."""
        for uid in self._channels:
            channel = self.channel(uid)
            if channel is not None:
                yield uid, channel


_MOST = 1024


class Joiners:
    """The workers that speak to the first member of a plan, before they are members themselves."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: dict[str, tuple[Channel, int]] = {}  # by UID, with the generation that they are to join
        self._offer: Prepare | None = None
        self._begins: int | None = None

    def receive(self, channel: Channel, message: Joins) -> None:
        """A worker says again and again which generation it is to join."""
        with self._lock:
            uid = channel.peer.uid
            if uid not in self._waiting and len(self._waiting) >= _MOST:
                return
            is_new = self._waiting.get(uid) != (channel, message.generation)
            self._waiting[uid] = channel, message.generation
            if is_new and self._offer is not None and self._offer.generation == message.generation:
                channel.send(self._offer)
            if message.generation == self._begins:
                channel.send(Begins(message.generation))

    def forget(self, channel: Channel) -> None:
        """This channel has ended."""
        with self._lock:
            self._waiting = {uid: each for uid, each in self._waiting.items() if each[0] is not channel}

    def offer(self, offer: Prepare | None) -> None:
        """Let those that are to join its generation make these groups; None: there is nothing to join any more."""
        with self._lock:
            self._offer = offer
            if offer is not None:
                self._tell(offer.generation, offer)

    def begin(self, generation: int | None) -> None:
        """The job begins with this generation, so whoever is to join it meets the others; None: this worker has trained
        by now, or continues what others train."""
        with self._lock:
            self._begins = generation
            if generation is not None:
                self._tell(generation, Begins(generation))

    def announce_job_finished(self) -> None:
        """The job is done."""
        with self._lock:
            for channel, _ in self._waiting.values():
                channel.send(Over())

    def _tell(self, generation: int, message: Prepare | Begins) -> None:
        for channel, wanted in self._waiting.values():
            if wanted == generation:
                channel.send(message)
