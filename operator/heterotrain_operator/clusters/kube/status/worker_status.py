"""The workers in a job's status: each with its batch, the plan that it follows, its own time and its waiting.

Figures are rounded to two digits, because the noise of every measurement would otherwise be a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heterotrain import contract
from heterotrain.contract import Plan
from heterotrain_operator.api.base import MAX_BATCH, MAX_COUNT, MAX_GROUP_NAME, MAX_NAME, MAX_STEPS, MAX_TEXT
from heterotrain_operator.core.model import PeerMetrics, Seen, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.remembered.members import Passage
from heterotrain_operator.core.stragglers.verdict import Verdict

Entry = dict[str, Any]

PAUSE_PHASES = frozenset({contract.PHASE_CHECKPOINTING, contract.PHASE_EVALUATING, contract.PHASE_PAUSED})
"""Phases of a worker that does something between two steps which takes longer than a step."""

TRAINING_PHASES = frozenset({contract.PHASE_TRAINING, contract.PHASE_HOLDING, *PAUSE_PHASES})
"""Phases of a worker that takes part in the training; writing a checkpoint is part of it."""

PHASE_DELETED = "deleted"
"""Phase of a worker whose pod was removed at the end of its job."""

_MEASURED = ("generation", "planVersion", "ownMilliseconds", "waitingPercent", "cpuThrottledPercent", "cpuWaitPercent")
"""Fields that come from a worker's metrics alone."""


_JOINED = ("joinedAtStep", "joinedBecause")
"""Fields of a member that joined others, which are reported as long as it trains."""

_SERVED = ("updates", "staleness", "discarded", "waitedSeconds")
"""Fields that come from the parameter server, and stay while it cannot be read."""

LEAST_OBSERVED_SECONDS = 1.0
"""Before that, shares of time say little."""


def two_digits(value: float) -> float | int:
    """A figure rounded to two significant digits; a whole one as an integer.

    >>> two_digits(1234.5), two_digits(87.6), two_digits(3.456)
    (1200, 88, 3.5)
    """
    rounded = float(f"{value:.2g}")
    return int(rounded) if rounded.is_integer() else rounded


def own_seconds(metrics: WorkerMetrics | None) -> float | None:
    """A worker's mean own time per step under the plan that it follows; None if nothing sound was measured."""
    if metrics is None or not metrics.steps > 0 or not math.isfinite(metrics.steps):
        return None
    mean = metrics.own_seconds / metrics.steps
    return mean if 0 <= mean * 1000 <= MAX_STEPS else None


def updates_per_second(workers: Iterable[WorkerSeen]) -> float | None:
    """Of workers that train asynchronously, by their whole time between two updates under the active plan."""
    read = [worker.metrics for worker in workers if worker.metrics is not None]
    cycles = [(each.steps, each.own_seconds + each.wait_seconds) for each in read]
    rate = sum(steps / seconds for steps, seconds in cycles if steps >= 1 and seconds > 0)
    return two_digits(rate) if 0 < rate <= MAX_STEPS else None


def server_entry(server: WorkerSeen | None, ends: int) -> Entry | None:
    """The parameter server, of which so many have ended before; None if none is there."""
    if server is None:
        return None
    metrics = server.metrics
    return {
        "name": server.name[:MAX_NAME],
        "phase": (metrics.phase if metrics is not None else "")[:MAX_NAME] or server.phase.lower(),
        "ends": min(ends, MAX_COUNT),
        "node": server.node,
        "message": server.message.strip()[:MAX_TEXT],
    }


def _served(peer: PeerMetrics) -> Entry:
    """What the parameter server says of a worker."""
    stale = {} if peer.staleness is None else {"staleness": two_digits(min(peer.staleness, MAX_STEPS))}
    return {
        "updates": int(two_digits(min(peer.updates, MAX_STEPS))),
        "discarded": int(two_digits(min(peer.discarded, MAX_STEPS))),
        "waitedSeconds": two_digits(min(peer.waited_seconds, MAX_STEPS)),
        **stale,
    }


def worker_entries(
    previous: Sequence[Mapping[str, Any]],
    groups: Sequence[str],
    seen: Seen,
    plan: Plan | None,
    *,
    states: Mapping[str, WorkerState],
    batch_limits: Mapping[str, int],
    slowed: Mapping[str, str],
    stragglers: Mapping[str, Verdict],
    replacing: Sequence[tuple[str, str]],
    arrivals: Sequence[Passage] = (),
    peers: Sequence[PeerMetrics] = (),
    over: bool,
) -> list[Entry]:
    """One entry per worker: members in the plan's order, then others by group (in the order given) and index.

    `plan` is the one that is active after this decision, `states` those that it rests on, `batch_limits` what memory
    holds, `slowed` what slowed whom and `stragglers` the verdicts, by worker; `replacing` are stragglers, each with the
    newcomer that is to take its place, and `arrivals` the newest that joined. `peers` is what a parameter server says
    of its workers. `over`: the job has ended, so workers whose pods are gone stay listed as they were last seen.
    """
    replaced_by = dict(replacing)
    served = {peer.worker: peer for peer in peers}
    arrived = {passage.name: passage for passage in arrivals}
    replaces = {newcomer: straggler for straggler, newcomer in replacing}
    before = {entry.get("name"): entry for entry in previous}
    ranks = {member.name: rank for rank, member in enumerate(plan.members)} if plan is not None else {}
    order = {name: position for position, name in enumerate(groups)}

    def place(worker: WorkerSeen) -> tuple[int, int, int, str]:
        return ranks.get(worker.name, len(ranks)), order.get(worker.group, len(order)), worker.index, worker.name

    workers = {worker.name: worker for worker in sorted(seen.workers, key=place)}
    known = seen.plan or plan
    entries = [_entry(worker, known, plan, before.get(worker.name, {})) for worker in workers.values()]
    for entry in entries:
        state = states.get(entry["name"])
        if state is not None:
            joins = state is WorkerState.WARM and "batchSize" in entry
            entry["state"] = (WorkerState.MEMBER if joins else state).value
        if 0 <= batch_limits.get(entry["name"], -1) <= MAX_BATCH:
            entry["maxBatchSize"] = batch_limits[entry["name"]]
        if entry["name"] in slowed:
            entry["slowedBy"] = slowed[entry["name"]]
        if entry["name"] in stragglers:
            entry["straggler"] = _straggler(stragglers[entry["name"]])
        known_before, peer = before.get(entry["name"], {}), served.get(entry["name"])
        kept = {name: known_before[name] for name in _SERVED if name in known_before}
        entry.update(kept if peer is None else _served(peer))
        if entry["name"] in replaced_by:
            entry["replacedBy"] = replaced_by[entry["name"]][:MAX_NAME]
        if entry["name"] in replaces:
            entry["replaces"] = replaces[entry["name"]][:MAX_NAME]
        if entry["name"] in arrived:
            joined = arrived[entry["name"]]
            entry |= {"joinedAtStep": min(joined.step, MAX_STEPS), "joinedBecause": joined.why[:MAX_TEXT]}
    if over:
        entries += [_gone(entry) for name, entry in before.items() if name not in workers]
    return entries


def _entry(worker: WorkerSeen, known: Plan | None, plan: Plan | None, before: Mapping[str, Any]) -> Entry:
    metrics = worker.metrics
    entry: Entry = {
        "name": worker.name[:MAX_NAME],
        "group": worker.group[:MAX_GROUP_NAME],
        "phase": (metrics.phase if metrics is not None else "")[:MAX_NAME] or worker.phase.lower(),
    }
    if metrics is not None:
        entry |= _measured(metrics)
    elif known is not None and known.rank_of(worker.name, worker.uid) is not None:
        # This very worker was read before; what was read stays true if one reading fails, or the worker ends.
        entry |= {name: before[name] for name in _MEASURED if name in before}
        if worker.phase == "Running" and before.get("phase") in contract.PHASES:
            entry["phase"] = before["phase"]
    rank = plan.rank_of(worker.name, worker.uid) if plan is not None else None
    if rank is not None:
        entry |= {name: before[name] for name in _JOINED if name in before}
    if plan is not None and rank is not None and plan.members[rank].batch_size <= MAX_BATCH:
        entry["batchSize"] = plan.members[rank].batch_size
    if worker.cpu_limit is not None and 0 <= worker.cpu_limit <= MAX_COUNT:
        entry["cpuLimit"] = worker.cpu_limit
    if worker.node:
        entry["node"] = worker.node
    if worker.message.strip():
        entry["message"] = worker.message.strip()[:MAX_TEXT]
    return entry


def _measured(metrics: WorkerMetrics) -> Entry:
    entry: Entry = {}
    if 0 < metrics.generation <= MAX_STEPS:
        entry["generation"] = metrics.generation
    if 0 < metrics.plan_version <= MAX_STEPS:
        entry["planVersion"] = metrics.plan_version
    own = own_seconds(metrics)
    if own is not None:
        entry["ownMilliseconds"] = two_digits(own * 1000)
        whole = metrics.own_seconds + metrics.wait_seconds
        if whole > 0 and 0 <= metrics.wait_seconds / whole <= 1:
            entry["waitingPercent"] = round(100 * metrics.wait_seconds / whole)
    entry |= _cpu_shares(metrics)
    return entry


def _cpu_shares(metrics: WorkerMetrics) -> Entry:
    """Shares of the plan's time; several threads together may be held back, or wait, for longer than that."""
    observed = metrics.observed_seconds
    if observed is None or not LEAST_OBSERVED_SECONDS <= observed < math.inf:
        return {}
    found = {"cpuThrottledPercent": metrics.cpu_throttled_seconds, "cpuWaitPercent": metrics.cpu_wait_seconds}
    return {
        name: round(100 * min(seconds / observed, 1))
        for name, seconds in found.items()
        if seconds is not None and 0 <= seconds < math.inf
    }


def _straggler(verdict: Verdict) -> Entry:
    return {
        "slowdown": two_digits(min(verdict.slowdown, MAX_COUNT)),
        "sinceStep": min(verdict.since_step, MAX_STEPS),
        "grounds": verdict.grounds.value,
        "remedy": verdict.remedy.value,
    }


def _gone(entry: Mapping[str, Any]) -> Entry:
    """The entry of a worker whose pod is no longer there."""
    ended = entry.get("phase") in ("succeeded", "failed")
    gone = {**entry, "state": WorkerState.GONE.value}
    return gone if ended else {**gone, "phase": PHASE_DELETED}
