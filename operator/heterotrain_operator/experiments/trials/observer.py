"""The port through which an experiment reports what happens, while it happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from heterotrain_operator.core.model import Decision, Job, Seen
from heterotrain_operator.experiments.trials.journal import Entry


class Observer:
    """Receives what an experiment reports. By itself it ignores all of it; an implementation overrides what it needs.

    Every method is called from the thread that runs the experiment, which waits for it.
    """

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        """A trial begins. `log_file` gives the log of each worker by name; `position` is the place among several
        trials, in words; an endless trial is stopped once it has been measured.
        """

    def look(self) -> None:
        """The experiment waits for its workers. This is called several times a second, and should be quick."""

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """One round of the loop is over; `entry` is what is worth keeping of it, None if nothing is."""

    def end(self) -> None:
        """The trial is over, and none of its workers runs any more."""

    def warn(self, text: str) -> None:
        """Something happened that the user has to know."""
