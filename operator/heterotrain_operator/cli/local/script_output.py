"""What the script prints, while it runs: the lines of the leader or of all workers, each with its worker's name.

Logs may still grow while they are read; they are read as lines, in bounded memory whatever a script prints.
"""

from __future__ import annotations

import os
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

LONGEST_LINE = 4096
"""A longer line is shown in pieces of so many characters."""
MOST_BYTES = 256 * 1024
"""Bytes read at once; what a script prints beyond that between two calls is skipped, and its length is shown."""
LAST_BYTES = 256 * 1024
"""Bytes at the end of a log that are searched for its last lines."""


def visible(line: str) -> str:
    """What a terminal shows of a line that a progress bar has overwritten: all after its last carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


class LogTail:
    """Follows one log from its beginning, or from where it ends now."""

    def __init__(self, path: Path, *, from_now: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_now and path.exists() else 0
        self._rest = ""
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def lines(self, *, ended: bool = False) -> list[str]:
        """The whole lines that were written since the last call; at the end the unfinished one, too."""
        text = self._rest + self._read()
        *whole, self._rest = text.split("\n")
        while len(self._rest) > LONGEST_LINE:
            whole.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        if ended and self._rest:
            whole.append(self._rest)
            self._rest = ""
        return [visible(line)[:LONGEST_LINE] for line in whole]

    def _read(self) -> str:
        try:
            with self._path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                skipped = end - self._offset - MOST_BYTES
                log.seek(max(self._offset, end - MOST_BYTES))
                data = log.read(MOST_BYTES)
                self._offset = log.tell()
        except FileNotFoundError:
            return ""
        text = self._decoder.decode(data)
        return f"\n[{skipped} bytes are only in the log]\n{text}" if skipped > 0 else text


def last_lines(path: Path, number: int) -> list[str]:
    """The last lines of a log; empty where there is none. Raises OSError if it cannot be read."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(0, end - LAST_BYTES))
            text = log.read(LAST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    kept = deque(text.rstrip("\n").split("\n"), maxlen=number)
    return [visible(line)[:LONGEST_LINE] for line in kept] if text.strip() else []


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
