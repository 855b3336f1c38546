"""Faults that were put on workers on purpose while a job trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """What was done to a worker at `seconds` (Unix time), when `step` steps were committed: `act` is a fault, such as
    `stop`, or what takes one back, such as `continue`; `lasts_seconds` is how long a fault is to last, None: until it
    is taken back.
    """

    seconds: float
    step: int
    worker: str
    act: str
    lasts_seconds: float | None = None
