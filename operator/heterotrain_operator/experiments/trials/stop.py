"""Turn signals into orderly ends: the first asks, the second insists."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - what the user asks for is no error
    """The user asked to stop; `signum` is the signal that asked for it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """As shells report an end by this signal."""
        return 128 + self.signum


class Insisted(Interrupted):
    """The user asked a second time: stop at once."""


class StopSignals:
    """Counts the stop signals that have arrived.

    The handler itself raises nothing (an exception at an arbitrary line would tear what is being written)
    until the run is ending already: inside `insistable` a second signal raises Insisted.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._count = 0
        self._raising = False

    def handle(self, signum: int, _frame: FrameType | None = None) -> None:
        """A signal has arrived."""
        self._count += 1
        if self._first is None:
            self._first = signum
        if self._raising and self._count > 1:
            self._raising = False
            raise Insisted(self._first)

    def check(self) -> None:
        """Raises Interrupted if a signal has arrived."""
        if self._first is not None:
            raise Interrupted(self._first)

    @contextmanager
    def insistable(self) -> Iterator[None]:
        """While inside, a second signal (now, or one that came before) raises Insisted."""
        if self._first is not None and self._count > 1:
            raise Insisted(self._first)
        self._raising = True
        try:
            yield
        finally:
            self._raising = False


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Install the handlers for SIGINT, SIGTERM and SIGHUP, and put back what was there.

    A signal that is ignored stays ignored: nohup asks for that with SIGHUP, and shells with SIGINT of what they run in
    the background.
    """
    stop = StopSignals()
    answered = [signum for signum in SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop.handle) for signum in answered}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
