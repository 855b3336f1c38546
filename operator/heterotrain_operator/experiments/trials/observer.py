"""The port through which an experiment reports what happens, and what is kept of each decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from heterotrain_operator.core.model import Decision, Event, Job, Seen
from heterotrain_operator.core.state import Remembered


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision that published a plan or recorded events.

    `seconds` since the trial began; `step` counts the steps committed by then; `version` and `batches` (by
    rank) are those of the plan it published, None and empty if it published none.
    """

    seconds: float
    step: int
    version: int | None
    batches: tuple[int, ...]
    reason: str
    events: tuple[Event, ...]

    def to_json(self) -> str:
        """One line, without the newline."""
        return json.dumps(asdict(self))


LOCAL_WORDS = {"SuccessfulCreatePod": "WorkersStarted"}
"""Events whose names speak of a cluster, as this machine has them."""


def entry_of(seconds: float, step: int, decision: Decision) -> Entry | None:
    """The entry for a decision; None if it published no plan and recorded no event."""
    if decision.plan is None and not decision.events:
        return None
    return Entry(
        seconds=seconds,
        step=step,
        version=decision.plan.version if decision.plan else None,
        batches=decision.plan.batch_sizes if decision.plan else (),
        reason=decision.reason,
        events=tuple(replace(each, reason=LOCAL_WORDS.get(each.reason, each.reason)) for each in decision.events),
    )


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

    def remember(self, memory: Remembered) -> None:
        """What is remembered after a round, before it is shown."""

    def show(self, seen: Seen, decision: Decision, entry: Entry | None) -> None:
        """One round of the loop is over; `entry` is what is worth keeping of it, None if nothing is."""

    def end(self) -> None:
        """The trial is over, and none of its workers runs any more."""

    def warn(self, text: str) -> None:
        """Something happened that the user has to know."""
