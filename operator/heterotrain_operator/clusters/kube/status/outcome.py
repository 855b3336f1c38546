"""What a job's status says of its end, for the case that the memory of decisions is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterotrain_operator.clusters.kube.moments import unix_seconds
from heterotrain_operator.core.memory.job import Outcome
from heterotrain_operator.core.model import FINAL_PHASES
from heterotrain_operator.core.state import Memory


def outcome_in(status: Mapping[str, Any]) -> Memory | None:
    """The memory of a job that ended as this status says; None if it has not. A job that is over never runs again."""
    phase = status.get("phase")
    if phase not in FINAL_PHASES:
        return None
    final: Mapping[str, Any] = next(
        (entry for entry in status.get("conditions") or () if entry.get("type") == phase), {}
    )
    return Memory(
        outcome=Outcome(
            outcome=phase,
            ended_at=_moment(status.get("completionTime")),
            reason=final.get("reason") or "",
            message=final.get("message") or status.get("reason") or "",
        ),
    )


def _moment(text: str | None) -> float | None:
    try:
        return unix_seconds(text) if text else None
    except (ValueError, OverflowError):
        return None
