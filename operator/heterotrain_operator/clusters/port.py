"""The port between deciding and the worlds: a Kubernetes cluster, this machine, a simulation."""

from __future__ import annotations

from typing import Protocol

from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.core.state import Memory


class PlanConflictError(Exception):
    """Somebody else wrote the plan or its memory meanwhile; observe again and decide anew."""


class Cluster(Protocol):
    """One job's world. Observing and acting never decide anything."""

    def observe(self) -> tuple[Seen, Memory | None]:
        """The job's pods, plan and metrics as they are now, and the memory stored beside the plan."""
        ...

    def act(self, decision: Decision, memory: Memory) -> None:
        """Carry out a decision and store the memory beside the plan, under one precondition.

        Raises PlanConflictError if the plan or memory changed since they were observed.
        """
        ...
