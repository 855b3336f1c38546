"""What one look at an active plan says: which batches to publish, why, and what to remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain_operator.core.batching.policy import Promise, Seat
from heterotrain_operator.core.model import Event
from heterotrain_operator.core.state import Memory


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Batches to publish (None: leave the plan), why, and what to remember. `degraded` says why a plan that violates
    the job's bounds cannot be repaired.

    `decided`: a policy was asked, so an observe-only job has something new to report. `promise` is what the batches are
    to be held to, and `predicted` (by rank; empty: nobody) says whose own time they rest on is predicted for a new CPU
    limit, not measured. `at_once` (by rank; empty: nobody) are samples to compute at once, where these are fewer than
    memory holds. `events` are worth reporting whatever becomes of the batches. `seats` are the members with the
    windows of the interval that has ended, by rank; empty: none has.
    """

    batches: tuple[int, ...] | None
    reason: str
    memory: Memory
    degraded: str = ""
    decided: bool = False
    stage: int | None = None
    promise: Promise | None = None
    predicted: tuple[bool, ...] = ()
    at_once: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    seats: Sequence[Seat] = ()
