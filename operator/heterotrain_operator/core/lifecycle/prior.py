"""What is known of a worker before it was measured: of itself, or of others that had its place.

A place is a worker's group, node and CPU limit. Workers of an earlier generation at the same place were as fast, so the
first plan of the next one need not begin with equal shares.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.policies import POLICIES, Seat, Split
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Job, WorkerSeen
from heterotrain_operator.core.prediction.batch_cost import expected_of
from heterotrain_operator.core.prediction.step_time import GREATEST_FEED_FORWARD
from heterotrain_operator.core.state import WorkerMemory

PLACES = 2**24 - 1
"""Numbers of places: a job has few, and two with the same number cost a worse first split."""

LOOKED_AT = 64
"""Peers of whom one with the same limit is sought: a group's workers have few limits, and there may be thousands."""


def place_of(worker: WorkerSeen) -> int:
    """A number for the worker's group, node and CPU limit; 0 where nobody says what node it has."""
    if not worker.node:
        return 0
    name = f"{worker.group}/{worker.node}/{worker.cpu_limit or 0:g}"
    return 1 + zlib.crc32(name.encode(errors="replace")) % PLACES


def first_split(
    job: Job, before: Plan | None, workers: Sequence[WorkerSeen], known: Mapping[str, WorkerMemory], seats: list[Seat]
) -> Split | None:
    """The batches that the job's policy chooses by what is known of every worker's place; None where the workers and
    their places are as they were, the policy has a first split of its own, or nothing is known of some worker.

    `known` is what is remembered of the members of the plan `before`, by name; `seats` are those of `workers`, with
    the batches that the first plan would have otherwise.
    """
    policy = POLICIES.get(job.policy)
    if before is None or policy is None or policy.first is not None or policy.internal or job.dry_run:
        return None
    if len(before.members) == len(workers) and all(_stayed(worker, known.get(worker.name)) for worker in workers):
        return None
    peers: dict[str, list[str]] = {}
    at_place: dict[tuple[str, int], str] = {}
    for member in before.members:
        if member.name in known and known[member.name].sum_w > 0:
            peers.setdefault(member.group, []).append(member.name)
            at_place.setdefault((member.group, known[member.name].place), member.name)
    informed, told = [], []
    for worker, seat in zip(workers, seats, strict=True):
        source = _source(worker, known, peers, at_place)
        if source is None:
            return None
        memory = _at_limit(known[source], worker.cpu_limit)
        estimate = expected_of(memory, seat.batch, float(max(job.interval, 1)))
        if estimate is None:
            return None
        informed.append(replace(seat, estimate=estimate, memory=memory))
        told += [f"{worker.name} as {source} was"] if source != worker.name else []
    try:
        proposal = policy.propose(job, informed, 0)
    except ValueError:
        return None
    batches = proposal.batches or tuple(seat.batch for seat in seats)
    return Split(batches, f"by what is known of their places ({listed(told) or 'their own'}): {proposal.reason}")


def placed_anew(known: WorkerMemory, worker: WorkerSeen) -> WorkerMemory:
    """What is remembered of a worker, at the place that it has now; at another one its speed is not measured yet."""
    place = place_of(worker)
    moved = known.place > 0 and place != known.place
    return replace(known, place=place, foretold=1 if moved else known.foretold)


def _stayed(worker: WorkerSeen, known: WorkerMemory | None) -> bool:
    return known is not None and (0 in (known.place, place_of(worker)) or known.place == place_of(worker))


def _source(
    worker: WorkerSeen,
    known: Mapping[str, WorkerMemory],
    peers: Mapping[str, Sequence[str]],
    at_place: Mapping[tuple[str, int], str],
) -> str | None:
    """Whose knowledge says most of this worker: its own where it stayed, of who was at its place, of one with its group
    and limit, or of its group, rather its own each time; None if nobody's does.

    `peers` are those of whom something is known, by group, and `at_place` the first of them by group and place.
    """
    place, limit = place_of(worker), worker.cpu_limit or 0.0
    own = known.get(worker.name)
    if own is not None and own.sum_w > 0 and _stayed(worker, own):
        return worker.name
    if place > 0 and (worker.group, place) in at_place:
        return at_place[worker.group, place]
    others = peers.get(worker.group, ())
    mine = own is not None and own.sum_w > 0 and bool(others)
    candidates = (worker.name, *others[:LOOKED_AT]) if mine else others[:LOOKED_AT]
    alike = (name for name in candidates if math.isclose(known[name].cpu_limit, limit, rel_tol=1e-6))
    return next(alike, next(iter(candidates), None))


def _at_limit(known: WorkerMemory, cpu_limit: float | None) -> WorkerMemory:
    """What another CPU limit than the one that was measured lets expect."""
    if cpu_limit is None or known.cpu_limit <= 0 or not 0 < cpu_limit < math.inf:
        return known
    ratio = min(max(known.cpu_limit / cpu_limit, 1 / GREATEST_FEED_FORWARD), GREATEST_FEED_FORWARD)
    return replace(known, speed=known.speed * ratio)
