"""How the job ended, or why its workers start again (`core/outcomes.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """`outcome`, once set, is final, and the job ended at `ended_at`; `reason` and `message` say why, or why its
    workers start again, or have not started yet.
    """

    outcome: str = ""
    ended_at: float | None = None
    reason: str = ""
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the job is over, for good."""
        return bool(self.outcome)
