"""The parameter server's decisions: who may go on, how stale an update is, what is applied, and at which rate; pure.

Sources: training through a parameter server, OmniLearn section III-A2 and Algorithm 2; bounded staleness, Ho et al.,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", section 3; rates that follow a
worker's own batch, OmniLearn section IV-C.

A worker's *clock* counts its updates. The model's *version* counts all of them, and an update's *staleness* is by how
many versions the model has changed since the worker got its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterotrain.asynchronous.ledger import Lease, Ledger, LedgerError

APPLY, DISCARD = "Apply", "Discard"


@dataclass(frozen=True, slots=True)
class Bound:
    """How far workers may be apart, in updates of each (None: without limit), and what becomes of one that is `late`,
    too far behind: those ahead wait for it (Apply), or its update is not applied, and nobody waits (Discard)."""

    max_staleness: int | None = None
    late: str = APPLY

    @property
    def waits(self) -> bool:
        """Whether those ahead wait."""
        return self.max_staleness is not None and self.late == APPLY


@dataclass(frozen=True, slots=True)
class Update:
    """What a worker says with a gradient: for which lease, of which server, computed on which version."""

    worker: str
    incarnation: str
    lease: int
    version: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """An update that is to be applied. `staleness` is in versions."""

    worker: str
    lease: Lease
    staleness: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An update that is not applied, and why. One that is `late` is no fault; the worker waits for its next grant."""

    why: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A worker may compute `lease` on the parameters of `version`, and load `ahead`, which probably is its next one.

    Without a lease the job is over, and these are its final parameters.
    """

    worker: str
    version: int
    lease: Lease | None
    ahead: Lease | None = None


@dataclass(slots=True)
class Standing:
    """How one worker stands, for people: in updates, versions and seconds."""

    batch_size: int
    clock: int
    updates: int = 0
    discarded: int = 0
    staleness: int = 0  # of all its updates together
    waited: float = 0.0
    version: int = 0  # of the parameters that it has
    since: float | None = None  # it has waited for its next grant; None: it computes
    leases: list[Lease] = field(default_factory=list)  # to compute now, and the one ahead


class Service:
    """One life of a job's server. Workers are known by their UIDs; `now` is in seconds of any clock that only grows."""

    def __init__(self, ledger: Ledger, bound: Bound, incarnation: str, version: int = 0) -> None:
        self.ledger = ledger
        self.incarnation = incarnation
        self.version = version
        self.workers: dict[str, Standing] = {}
        self._bound = bound
        self._batches: dict[str, int] = {}
        self._places: dict[str, int] = {}  # in the plan's order
        self._waiting: set[str] = set()  # who waits for a grant: at thousands of workers few do
        # All begin together. Later whoever comes back goes on by itself, unless all are to be at one version.
        self._has_begun = version > 0 and bound.max_staleness != 0
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be applied."""
        return self._is_over or self.ledger.is_over

    # --- who is there ---------------------------------------------------------------------------------------------

    def follow(self, batches: Mapping[str, int]) -> None:
        """The plan's members, in its order, and their samples per update; who computes ends what it has begun."""
        self._batches = dict(batches)
        self._places = {worker: place for place, worker in enumerate(batches)}
        for worker in [worker for worker in self.workers if worker not in batches]:
            self.leave(worker)
        slowest = min(self._clocks(), default=0)
        for worker, standing in self.workers.items():
            if standing.batch_size < 1 <= batches[worker]:
                standing.clock = slowest  # as a joiner's: nobody waits for what it did not compute meanwhile
            standing.batch_size = batches[worker]
            while standing.batch_size < 1 and len(standing.leases) > (standing.since is None):
                self.ledger.give_back(worker, standing.leases.pop().number)  # it would not come to them

    def enter(self, worker: str, now: float) -> None:
        """A worker asks for its first grant, or for parameters again. A joiner starts at the clock of the slowest.

        Raises KeyError if the plan does not name it.
        """
        batch_size = self._batches[worker]
        self.leave(worker)
        bounded = self._bound.max_staleness is not None
        self.workers[worker] = Standing(batch_size, min(self._clocks(), default=0) if bounded else 0, since=now)
        self._waiting.add(worker)

    def leave(self, worker: str) -> None:
        """It has ended, or is silent; what it holds goes out again. Nothing if it is not there."""
        standing = self.workers.pop(worker, None)
        self._waiting.discard(worker)
        for lease in standing.leases if standing else ():
            self.ledger.give_back(worker, lease.number)

    def share_of(self, worker: str, samples: int) -> float:
        """A worker's share of the global batch, above 0 to 1, also where the samples end and its update has fewer;
        those of its update, if the plan gives it fewer by now."""
        return min(1.0, max(samples, self._batches.get(worker, 0)) / sum(self._batches.values()))

    def missing(self) -> list[str]:
        """Members that the others wait for, since nobody has begun yet."""
        if self._has_begun:
            return []
        return [each for each, batch_size in self._batches.items() if batch_size > 0 and each not in self.workers]

    def begin(self) -> None:
        """Those who are there begin without the others, which have had time enough."""
        self._has_begun = True

    def finish(self) -> None:
        """The job is over, whatever is left: it has come to its number of updates, or to its target."""
        self._is_over = True

    # --- what they send -------------------------------------------------------------------------------------------

    def judge(self, update: Update, now: float) -> Accepted | Refused:
        """Whether an update is to be applied. If not the worker waits for another grant, unless it is refused as one
        that nobody owes anything: of another server, or for a lease that it does not hold."""
        if update.incarnation != self.incarnation:
            return Refused("it is for an earlier life of the server")
        standing = self.workers.get(update.worker)
        if standing is None:
            return Refused("it has not entered")
        try:
            lease = self.ledger.find(update.worker, update.lease)
        except LedgerError as error:
            return Refused(str(error))
        if standing.since is not None or lease != standing.leases[0]:
            return Refused(f"lease {update.lease} is not the one to compute now")
        if update.version != standing.version:
            return Refused(f"it was computed on version {update.version}, where {standing.version} was given")
        if self._is_over:
            self._await_grant(update.worker, standing, now)
            return Refused("the job is over", late=True)
        if self._is_too_late(update.worker, standing):
            standing.discarded += 1
            standing.leases.remove(lease)
            self.ledger.give_back(update.worker, update.lease)
            standing.clock = max(self._clocks())  # it goes on beside the fastest
            self._await_grant(update.worker, standing, now)
            return Refused("it is late", late=True)
        return Accepted(update.worker, lease, self.version - update.version)

    def applied(self, accepted: Accepted, now: float) -> None:
        """The model has changed by it, and has another version. Nothing may have happened since it was accepted."""
        standing = self.workers[accepted.worker]
        self.ledger.commit(accepted.worker, accepted.lease.number)
        standing.leases.remove(accepted.lease)
        standing.clock += 1
        standing.updates += 1
        standing.staleness += accepted.staleness
        self._await_grant(accepted.worker, standing, now)
        self.version += 1

    def _await_grant(self, worker: str, standing: Standing, now: float) -> None:
        standing.since = now
        self._waiting.add(worker)

    # --- what they get --------------------------------------------------------------------------------------------

    def grants(self, now: float) -> list[Grant]:
        """The grants of those who may go on now, the slowest first and then in the plan's order; all of one version."""
        ranked = sorted(self._waiting, key=lambda worker: (self.workers[worker].clock, self._places[worker]))
        if self.is_over:
            return [self._granted(worker, now) for worker in ranked]
        if self.missing():
            return []
        free: list[str] = []
        limit = self._limit()
        for worker in ranked:
            standing = self.workers[worker]
            if standing.batch_size > 0 and standing.clock <= limit and self._takes_lease(worker, free):
                free.append(worker)
        for worker in free:
            standing = self.workers[worker]
            ahead = self.ledger.lease(worker, standing.batch_size)
            if ahead is not None:
                standing.leases.append(ahead)
        self._has_begun |= bool(free)
        return [self._granted(worker, now) for worker in free]

    def _granted(self, worker: str, now: float) -> Grant:
        standing = self.workers[worker]
        assert standing.since is not None
        standing.waited += max(0.0, now - standing.since)
        standing.since = None
        self._waiting.remove(worker)
        standing.version = self.version
        if self.is_over:
            return Grant(worker, self.version, None)
        return Grant(worker, self.version, *standing.leases)

    def _limit(self) -> float:
        """Up to which clock workers may go on now."""
        if not self._bound.waits:
            return math.inf
        assert self._bound.max_staleness is not None
        if self._bound.max_staleness > 0:
            return min(self._clocks(), default=0) + self._bound.max_staleness
        # Nobody may compute on another version than the others, so all of them go on together.
        return math.inf if all(each.since is not None for each in self._training()) else -math.inf

    def _takes_lease(self, worker: str, free: Sequence[str]) -> bool:
        """Whether it has one to compute now: its own, a new one, or, where none is left, one that another worker, none
        of the `free` ones, has not begun."""
        standing = self.workers[worker]
        if standing.leases:
            return True
        lease = self.ledger.lease(worker, standing.batch_size)
        if lease is None:
            lease = self._taken_from_another(worker, free)
        if lease is not None:
            standing.leases.append(lease)
        return lease is not None

    def _taken_from_another(self, worker: str, free: Sequence[str]) -> Lease | None:
        """At the job's end a fast worker computes what a slow one would come to later: the slowest's first."""
        others = [
            (standing.clock, name)
            for name, standing in self.workers.items()
            if name not in free and len(standing.leases) > (standing.since is None)
        ]
        if not others:
            return None
        _, slowest = min(others)
        lease = self.workers[slowest].leases.pop()
        self.ledger.give_back(slowest, lease.number)
        return self.ledger.lease(worker, self.workers[worker].batch_size)

    # --- how far they are apart -----------------------------------------------------------------------------------

    def _training(self, without: str = "") -> list[Standing]:
        return [each for name, each in self.workers.items() if each.batch_size > 0 and name != without]

    def _clocks(self, without: str = "") -> list[int]:
        return [each.clock for each in self._training(without)]

    def _is_too_late(self, worker: str, standing: Standing) -> bool:
        bound = self._bound
        if bound.max_staleness is None or bound.late != DISCARD:
            return False
        return max(self._clocks(without=worker), default=0) - standing.clock > bound.max_staleness
