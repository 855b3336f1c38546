"""When the job and its workers began, and how long that took (`lifecycle/startup.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """The job was seen first at `created_at`, and its active time began at `started_at`. Since `starting_at` its
    workers have been due to start, and pods were created last at `pods_created_at`. The present workers took
    `start_seconds` from nothing to their first plan.
    """

    created_at: float | None = None
    started_at: float | None = None
    starting_at: float | None = None
    pods_created_at: float | None = None
    start_seconds: float = 0.0
