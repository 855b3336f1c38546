"""What was decided, when and why; kept for the terminal and the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from heterotrain_operator.core.model import Decision, Event


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
        events=decision.events,
    )
