"""What is done about members that hang: the job's response, and a short grace for those that can use no longer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle.progress import hung
from heterotrain_operator.core.lifecycle.responses import Incident, respond
from heterotrain_operator.core.model import Decision, Job, WorkerSeen
from heterotrain_operator.core.state import Memory


def after_hang(
    job: Job, facts: Facts, members: Sequence[WorkerSeen], memory: Memory, now: float
) -> tuple[Decision, Memory] | None:
    """What is done about members of which some hang; None if none does, or nothing is done about it."""
    hang = hung(job, members, facts.states, memory, now)
    if hang is None:
        return None
    response = respond(job, facts, memory, now, incident=Incident.WORKER_HUNG, message=hang.message)
    if response is None:
        return None
    decided, memory = response
    return replace(decided, short_grace=hang.seen), memory
