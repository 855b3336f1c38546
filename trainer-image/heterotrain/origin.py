"""Where a training comes from that another job has begun."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The checkpoint of an earlier job: its step, and the UID of that job, empty if it does not say."""

    step: int
    job_uid: str
