"""What is known of a worker before it was measured: of itself, or of others that had its place.

A place is a worker's group, node and CPU limit. Workers of an earlier generation at the same place were as fast, so the
first plan of the next one need not begin with equal shares. Nor need one in which workers join others that train.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.likeness import with_relapse_caution
from heterotrain_operator.core.batching.policies import POLICIES, Seat, Split
from heterotrain_operator.core.batching.retries import due_at_once
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction import Predictor, predictor_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.step_time import same_limit
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker, key_of
from heterotrain_operator.core.stragglers.evidence import Evidence

NOTICED_SLOWNESS = 1.25
"""Times the expected seconds from which a difference is no noise of so few steps."""

MOST_SLOWNESS = 16.0
"""Times the expected seconds that are believed at most: what is measured later says more."""


def slowed(known: RememberedWorker, metrics: WorkerMetrics | None, predictor: Predictor) -> RememberedWorker:
    """What is known of a worker that is no member yet, with what its warm-up has shown: an expectation, until it is
    measured.
    """
    ratio = slowness(known.batch_cost, metrics, predictor)
    return known if ratio == 1 else known._replace(batch_cost=known.batch_cost.scaled(ratio).with_predicted(1))


def slowness(cost: BatchCost, metrics: WorkerMetrics | None, predictor: Predictor) -> float:
    """By how many times a worker's steps take longer than is expected of it, as its warm-up has shown; 1 where that has
    shown nothing.

    A few steps alone say little: the optimizer's step is not in them, nobody else's traffic disturbs them, and on one
    machine they run before the CPU limit is set. All of that makes them shorter. So a worker that warmed up faster than
    was expected begins as expected, and one that was clearly slower at every batch begins with as much less.
    """
    if metrics is None or metrics.plan_version > 0 or not metrics.warm_up:
        return 1.0
    prediction = predictor.predict(cost, 0, None)
    if prediction is None:
        return 1.0
    expected = [(seconds, prediction.line.at(batch)) for batch, seconds in metrics.warm_up]
    ratio = min((seconds / each for seconds, each in expected if each > 0), default=1.0)
    return min(ratio, MOST_SLOWNESS) if ratio >= NOTICED_SLOWNESS else 1.0


PLACES = 2**24 - 1
"""Numbers of places: a job has few, and two with the same number cost a worse first split."""

LOOKED_AT = 64
"""Peers of whom one with the same limit is sought: a group's workers have few limits, and there may be thousands."""


NO_PLANS = Batching()


def place_of(worker: WorkerSeen) -> int:
    """A number for the worker's group, node and CPU limit; 0 where nobody says what node it has."""
    if not worker.node:
        return 0
    name = f"{worker.group}/{worker.node}/{worker.cpu_limit or 0:g}"
    return 1 + zlib.crc32(name.encode(errors="replace")) % PLACES


class Prior:
    """What is known of the members of the plan before, by name, for those that come after them.

    A worker of whom something is known can be asked for by its group and place, or by its group alone. All of it is as
    of a committed step; `batching` is what their plans have come to.
    """

    def __init__(
        self,
        before: Plan | None,
        known: Mapping[str, RememberedWorker],
        step: int = 0,
        batching: Batching = NO_PLANS,
    ) -> None:
        self.step, self.batching, self._known = step, batching, known
        self._peers: dict[str, list[str]] = {}
        self._at_place: dict[tuple[str, int], str] = {}
        for member in before.members if before is not None else ():
            if member.name in known and self._is_measured(member.name):
                self._peers.setdefault(member.group, []).append(member.name)
                self._at_place.setdefault((member.group, known[member.name].place), member.name)

    def of(self, worker: WorkerSeen) -> RememberedWorker | None:
        """What is known of a worker of this name: of itself, if it has that UID, or of its predecessor."""
        return self._known.get(worker.name)

    def known(self, name: str) -> RememberedWorker:
        """What is known of a member of the plan before; it must be one that `source` or `at_place` has named."""
        return self._known[name]

    def stayed(self, worker: WorkerSeen) -> bool:
        """Whether a worker of this name is known, at the place that this one has as far as that is known."""
        known = self._known.get(worker.name)
        return known is not None and (0 in (known.place, place_of(worker)) or known.place == place_of(worker))

    def at_place(self, worker: WorkerSeen) -> str | None:
        """Who of the worker's group was at its place, and was measured there; None if nobody was, or it is unknown."""
        place = place_of(worker)
        return self._at_place.get((worker.group, place)) if place > 0 else None

    def source(self, worker: WorkerSeen) -> str | None:
        """Whose knowledge says most of this worker: that of its name where it stayed, of who was at its place, of one
        with its group and limit, or of its group, rather that of its name each time; None if nobody's does.
        """
        own, limit = self._known.get(worker.name), worker.cpu_limit or 0.0
        if own is not None and own.batch_cost.sum_w > 0 and self.stayed(worker):
            return worker.name
        there = self.at_place(worker)
        if there is not None:
            return there
        others = self._peers.get(worker.group, ())
        mine = own is not None and own.batch_cost.sum_w > 0 and bool(others)
        candidates = (worker.name, *others[:LOOKED_AT]) if mine else others[:LOOKED_AT]
        alike = (name for name in candidates if same_limit(self._known[name].step_time.cpu_limit, limit))
        return next(alike, next(iter(candidates), None))

    def slowest(self, batch: int, predictor: Predictor) -> str | None:
        """Who takes longest for that batch, of the first that are known: of one of whom nothing is known, it is safe to
        expect no more. None if nobody was measured.
        """
        measured = [name for peers in self._peers.values() for name in peers[:LOOKED_AT]]
        lines = [(predictor.predict(self._known[name].batch_cost, 0, None), name) for name in measured]
        times = [(prediction.line.at(max(batch, 1)), name) for prediction, name in lines if prediction is not None]
        return max(times)[1] if times else None

    def _is_measured(self, name: str) -> bool:
        return self._known[name].batch_cost.sum_w > 0

    def cost_of(self, name: str, cpu_limit: float | None, predictor: Predictor) -> BatchCost:
        """The cost of a batch that was known of a worker, as expected under this CPU limit."""
        known = self._known[name]
        old = known.step_time.cpu_limit
        if cpu_limit is None or old <= 0 or not 0 < cpu_limit < math.inf:
            return known.batch_cost
        return known.batch_cost.scaled(predictor.factor_of_limits(old, cpu_limit))


def inherited(worker: WorkerSeen, prior: Prior) -> RememberedWorker:
    """What is remembered of a worker that begins a generation.

    One that was a member already, by its UID, keeps what is known of it. A new one inherits what its predecessor of
    the same name has left, if that was at the same place, as far as places are known. At another place its memory is
    as large, but its speed is that of the worker that was there, or else its predecessor's: a prediction, until it is
    measured.
    """
    place, key = place_of(worker), key_of(worker.uid)
    known = prior.of(worker)
    there = prior.at_place(worker)
    if known is not None and prior.stayed(worker):
        return known._replace(place=place, key=key, evidence=known.evidence.restarted())
    if there is not None and (known is None or known.key != key):
        source = prior.known(there)
        rest = known or RememberedWorker(memory_use=source.memory_use, throughput_cap=source.throughput_cap.unwatched())
        return due_at_once(rest)._replace(
            step_time=source.step_time,
            batch_cost=source.batch_cost.with_predicted(1),
            evidence=Evidence(),
            relapses=source.relapses,
            place=place,
            key=key,
        )
    if known is None:
        return RememberedWorker(place=place, key=key)
    return due_at_once(known)._replace(
        batch_cost=known.batch_cost.with_predicted(1), evidence=Evidence(), relapses=Relapses(), place=place, key=key
    )


def first_split(
    job: Job, before: Plan | None, workers: Sequence[WorkerSeen], prior: Prior, seats: list[Seat]
) -> Split | None:
    """The batches that the job's policy chooses by what is known of every worker's place; None where the workers and
    their places are as they were, the policy has a first split of its own, or nothing is known of some worker.

    `prior` is of the members of the plan `before`; `seats` are those of `workers`, with the batches that the first plan
    would have otherwise.
    """
    if before is None or (len(before.members) == len(workers) and all(map(prior.stayed, workers))):
        return None
    return _by_what_is_known(job, workers, prior, seats, slowest=False)


def changed_split(job: Job, workers: Sequence[WorkerSeen], prior: Prior, seats: list[Seat]) -> Split | None:
    """The same where some of the workers train and others join them. Of one whose like nobody was, as much is expected
    as of the slowest that is known.
    """
    return _by_what_is_known(job, workers, prior, seats, slowest=True)


def _by_what_is_known(
    job: Job, workers: Sequence[WorkerSeen], prior: Prior, seats: list[Seat], *, slowest: bool
) -> Split | None:
    policy = POLICIES.get(job.policy)
    if policy is None or policy.first is not None or policy.internal or job.dry_run:
        return None
    predictor = predictor_of(job)
    informed, sources = [], []
    for worker, seat in zip(workers, seats, strict=True):
        source = prior.source(worker)
        if source is None and slowest:
            source = prior.slowest(seat.batch, predictor)
        if source is None:
            return None
        cost = prior.cost_of(source, worker.cpu_limit, predictor)
        slow = slowness(cost, worker.metrics, predictor)
        cost = cost.scaled(slow) if slow > 1 else cost
        estimate = predictor.expected(cost, seat.batch, float(max(job.interval, 1)))
        if estimate is None and not (slowest and seat.batch == 0):
            return None
        memory = prior.known(source)._replace(batch_cost=cost)
        if source not in (worker.name, prior.at_place(worker)):
            memory = memory._replace(relapses=Relapses())  # which are those of another place
        informed.append(seat._replace(estimate=estimate, memory=memory))
        how = f", {slow:.3g} times as slow" if slow > 1 else ""
        sources += [f"{worker.name} as {source} was{how}"] if source != worker.name or how else []
    likely = with_relapse_caution(informed, prior.step, job.interval)[0] if policy.weighs_noise else informed
    try:
        proposal = policy.propose(job, likely, prior.batching)
    except ValueError:
        return None
    batches = proposal.batches or tuple(seat.batch for seat in seats)
    return Split(batches, f"by what is known of their places ({listed(sources) or 'their own'}): {proposal.reason}")
