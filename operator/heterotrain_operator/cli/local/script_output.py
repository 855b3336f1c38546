"""What the script prints, while it runs: the lines of the leader or of all workers, each with its worker's name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from heterotrain_operator.cli.local.log_tail import LogTail

NONE, LEADER, ALL = "none", "leader", "all"
CHOICES = (LEADER, ALL, NONE)

LOOK_EVERY_SECONDS = 0.25
"""Seconds between two reads: reading logs takes CPU time from the workers."""


class ScriptOutput:
    """Follows the logs that the user wants to see, of whichever workers there are by now."""

    def __init__(
        self,
        names: Sequence[str],
        log_file: Callable[[str], Path],
        show: Callable[[str, Sequence[str]], None],
        what: str,
    ) -> None:
        """`names` are the workers by rank, the leader first; `show` takes a worker's name and its new lines; `what` is
        one of CHOICES.
        """
        shown = {NONE: (), LEADER: names[:1], ALL: names}[what]
        self._tails = {name: LogTail(log_file(name)) for name in shown}
        self._log_file = log_file
        self._show = show
        self._what = what
        self._next = 0.0

    def follow(self, names: Sequence[str], leader: str) -> None:
        """These are the workers now, and the leader among them.

        Of a newcomer everything is shown, of a new leader what it prints from now on: it has printed much that the one
        before it printed, too. What the former leader has printed is shown first, for it may say why it ended.
        """
        if self._what == ALL:
            self._tails |= {name: LogTail(self._log_file(name)) for name in names if name not in self._tails}
        elif self._what == LEADER and leader not in self._tails:
            self._pass_on(ended=True)
            self._tails = {leader: LogTail(self._log_file(leader), from_now=True)}

    def look(self) -> None:
        """Show what is new, if the last look is long enough ago."""
        moment = time.monotonic()
        if moment >= self._next:
            self._next = moment + LOOK_EVERY_SECONDS
            self._pass_on()

    def end(self) -> None:
        """Show all that is left."""
        self._pass_on(ended=True)

    def _pass_on(self, *, ended: bool = False) -> None:
        for name, tail in self._tails.items():
            lines = tail.lines(ended=ended)
            if lines:
                self._show(name, lines)
