"""Three workers of which one may become a straggler, and what tests ask of the decisions."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.stragglers.evidence import Evidence
from unit.core.traces import World, hetero_world

SLOW = "job-g1-0"

HEALTHY = Evidence(0.1, 32, 30, 20)


def world(noise: float = 0.05, **changes: object) -> World:
    """Three workers of speeds 1, 2 and 4, balanced."""
    made = hetero_world("Optimal", (1, 2, 4), noise=noise, seed=3, **changes)
    made.run(12)
    return made


def named(decision: Decision) -> list[str]:
    return [verdict.worker for verdict in decision.stragglers]


def reasons(decisions: Sequence[Decision]) -> list[str]:
    return [event.reason for each in decisions for event in each.events if event.reason.startswith("Straggler")]


def condition(decision: Decision) -> tuple[bool | None, str]:
    [found] = [each for each in decision.conditions if each.type == "StragglersDetected"]
    return found.status, found.reason
