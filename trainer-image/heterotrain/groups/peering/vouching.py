"""A process beside a worker that speaks for it while its interpreter is held, as by an extension or a long pickle.

No thread of the worker can say then that it lives, although nothing is wrong with it. This process looks at it from
outside: one that was stopped, or has ended, it does not vouch for. It knows the job's secret, takes no decision, grants
nothing, and ends with its worker. It imports no torch.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Vouches
from heterotrain.groups.peering.server import PeerServer

SUFFIX = "/vouching"
"""After a worker's UID, in the hello of the process that vouches for it."""

_RUNS = frozenset("RSD")  # states of a process in /proc, also while it waits for a disk
_READ_BYTES = 2**16

Listener = tuple[str, str, str]
"""Name, UID and address of a worker that judges whether another one is silent."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is to do, from its start on. It vouches while nothing came from the worker for `late_seconds`,
    every `beat_seconds`, and for no more than `most_seconds` at a time: who hangs for so long is not vouched for."""

    worker: int  # its process
    job: str
    name: str
    uid: str
    secret: str | None
    late_seconds: float
    beat_seconds: float
    most_seconds: float

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Vouching:
    """What this process knows of its worker, and its channels to those who listen."""

    def __init__(self, order: Order, worker: int) -> None:
        """`worker` is the process to vouch for."""
        self._order = order
        self._worker = worker
        self._server = PeerServer(order.job, order.name, order.uid + SUFFIX, secret=order.secret, host="127.0.0.1")
        self._server.start()
        self._listeners: Sequence[Listener] = ()
        self._channels: dict[str, Channel] = {}
        self._received_at = self._looked = self._spoke = time.monotonic()

    def read(self, lines: Sequence[bytes]) -> None:
        """The worker speaks: an empty line says that it lives, another one who listens to it."""
        if lines:
            self._received_at = time.monotonic()
            self._hang_up()
        for line in filter(None, lines):
            self._listeners = [(name, uid, address) for name, uid, address in json.loads(line)]

    def look(self) -> None:
        """Vouch for the worker if that is due."""
        order, now = self._order, time.monotonic()
        if now - self._looked > order.late_seconds:  # this process was held up itself, and the worker perhaps with it
            self._received_at = now
        self._looked = now
        is_due = (
            order.late_seconds < now - self._received_at < order.most_seconds
            and now >= self._spoke + order.beat_seconds
        )
        if is_due and self._runs():
            self._spoke = now
            for listener in self._listeners:
                self._vouch(*listener)

    def close(self) -> None:
        """The worker has ended."""
        self._server.close()

    def _runs(self) -> bool:
        try:
            stat = Path(f"/proc/{self._worker}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in _RUNS

    def _vouch(self, name: str, uid: str, address: str) -> None:
        channel = self._channels.get(uid)
        if channel is None or channel.end is not None:
            channel = self._channels[uid] = self._server.dial(address, name, uid)
        channel.send(Vouches())

    def _hang_up(self) -> None:
        for channel in self._channels.values():
            channel.close("the worker speaks for itself")
        self._channels.clear()


def main() -> None:
    """Serve the process that has started this one, which writes lines to the standard input."""
    read = b""
    while b"\n" not in read:
        more = os.read(0, _READ_BYTES)
        if not more:
            return
        read += more
    first, _, rest = read.partition(b"\n")
    order = Order(**json.loads(first))
    parent = order.worker  # os.getppid() is another process by now if the worker was killed meanwhile
    if os.getppid() != parent:
        return
    vouching = Vouching(order, parent)
    try:
        # Children of the worker hold the other end of the pipe open, so its end tells no more than half.
        while os.getppid() == parent:
            ready, _, _ = select.select([0], [], [], min(order.beat_seconds, order.late_seconds) / 2)
            if ready:
                more = os.read(0, _READ_BYTES)
                if not more:
                    return
                rest += more
            *lines, rest = rest.split(b"\n")
            vouching.read(lines)
            vouching.look()
    finally:
        vouching.close()
