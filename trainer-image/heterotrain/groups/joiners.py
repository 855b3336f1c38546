"""Who waits to join this worker's job, and what this worker says to them."""

from __future__ import annotations

import threading

from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Begins, Joins, Over, Prepare

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

    def tell_over(self) -> None:
        """The job is done."""
        with self._lock:
            for channel, _ in self._waiting.values():
                channel.send(Over())

    def _tell(self, generation: int, message: Prepare | Begins) -> None:
        for channel, wanted in self._waiting.values():
            if wanted == generation:
                channel.send(message)
