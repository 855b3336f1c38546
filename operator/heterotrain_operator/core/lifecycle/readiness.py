"""Which workers cannot be members yet, and why not, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterotrain.contract import PHASE_WARMING
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.model import WorkerSeen, WorkerState


def unready(workers: Sequence[WorkerSeen], states: Mapping[str, WorkerState]) -> list[str]:
    """Workers that cannot be members yet, each with the reason."""
    return [f"{each.name} ({why_unready(each)})" for each in workers if states[each.name] is not WorkerState.WARM]


def why_unready(worker: WorkerSeen) -> str:
    """Why a worker cannot be a member yet."""
    if worker.deleting_since is not None:
        return "being deleted"
    if worker.phase != "Running":
        return ": ".join(filter(None, [worker.phase, worker.message.strip()]))
    if worker.exit_code is not None:
        return "ended"
    if worker.metrics is None:
        return "Running, but its metrics do not answer"
    if not worker.address:
        return "Running, but without an address"
    if worker.metrics.phase == PHASE_WARMING:
        return "Running, and warming up"
    return "Running, but its script is not at its loop yet"


def blind(facts: Facts) -> str:
    """What is wrong with the source of the metrics, which may be to blame, and not the workers."""
    source = facts.metrics_problem or facts.metrics_note
    return f"; {source}" if source else ""
