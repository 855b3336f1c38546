"""The plans that a worker knows: the active one, the one announced for later, and what the leader has found.

Only the leader looks at its volume; the others get the bytes from it, so no rank waits for its own volume.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from heterotrain.contract import Member, Plan, PlanError, parse_plan
from heterotrain.data.split import Split
from heterotrain.job.planfile import PlanFile
from heterotrain.job.worker import Worker
from heterotrain.peers import Facts, PeerError

_POLL_SECONDS = 0.05


def mean_batch(plan: Plan) -> int:
    """Samples of one worker's batch, in the mean of those that have any."""
    batches = [each for each in plan.batch_sizes if each]
    return max(1, round(sum(batches) / len(batches))) if batches else 1


def served_view(plan: Plan, *, at_once: bool = False) -> Plan:
    """The plan of an asynchronous job as its server's own parts see it: of one worker, itself, whose steps are the
    updates of others, one by one. `at_once`: it is followed at the next step, whatever it says itself."""
    assert plan.server is not None
    own = Member(plan.server.name, plan.server.uid, plan.server.address, "", mean_batch(plan))
    return Plan(plan.version, plan.generation, "step" if at_once else plan.apply_at, (own,), holds=plan.holds)


class Plans:
    """All ranks hold the same active plan at the same step."""

    def __init__(self, active: Plan | None, file: PlanFile | None) -> None:
        """A run alone has a plan and no file; a job has a file, and no plan at first."""
        self.rank = 0
        self.is_served = False
        """Whether this is a worker of an asynchronous job, which its server leads."""
        self.published: Plan | None = None
        """On such a server: the plan that it gives samples by. Its active one is that of a job of itself alone."""
        self.announced: Plan | None = None  # on the leader: what the running step's control collective announces
        self._active = active
        self._split = None if active is None else Split.of(active)
        self._pending: Plan | None = None
        self.successor: Plan | None = None
        """The plan with other members that all ranks have received, and prepare for."""
        self._file = file

    @classmethod
    def alone(cls, batch_size: int) -> Plans:
        """Those of a run alone."""
        return cls(Plan(0, 0, "step", (Member("alone", "", "", "", batch_size),)), None)

    @property
    def known(self) -> bool:
        """Whether there is an active plan."""
        return self._active is not None

    @property
    def active(self) -> Plan:
        """The plan that the running step follows; there is one from the start of the training."""
        assert self._active is not None
        return self._active

    @property
    def split(self) -> Split:
        """How the active plan splits steps."""
        split = self._split
        if split is None or split.plan is not self._active:
            split = self._split = Split.of(self.active)
        return split

    @property
    def leads(self) -> bool:
        """Whether this worker does what one alone is to do."""
        return self.rank == 0 and not self.is_served

    @property
    def step_size(self) -> int:
        """Samples of a full step; of an asynchronous one, which is one worker's, in the mean."""
        return mean_batch(self.active) if self.is_served else self.split.global_batch_size

    @property
    def world_size(self) -> int:
        """Workers that train."""
        return len((self.published or self.active).members)

    @property
    def batch_size(self) -> int:
        """This worker's samples per full step."""
        return self.active.members[self.rank].batch_size

    def await_first(self, worker: Worker, check_stop: Callable[[], None]) -> Plan:
        """Wait until a plan holds this very worker, and take it; `check_stop` may raise to give up."""
        assert self._file is not None
        while True:
            check_stop()
            plan = self._file.newest()
            rank = plan.rank_of(worker.name, worker.uid) if plan else None
            if plan is not None and rank is not None:
                self._active, self.rank = plan, rank
                return plan
            time.sleep(_POLL_SECONDS)

    def show_others(self) -> Plan | None:
        """Until `hide_others`, the script sees the job by the plan that is in the volume, in which this worker need not
        be. None if there is none."""
        assert self._file is not None
        self._active = self._file.newest()
        return self._active

    def hide_others(self) -> None:
        """From here on this worker has no plan yet."""
        self._active = None

    def look(self) -> tuple[int, int]:
        """Look for a newer plan to announce, at the beginning of a step: its version and length, zeros if there is
        none."""
        self.announced = None
        if self._file is not None and self.rank == 0:
            self.announced = self._file.newest(self.successor or self._pending or self._active)
        return (self.announced.version, len(self.document())) if self.announced else (0, 0)

    def document(self) -> bytes:
        """The plan that the leader announced, as it sends it; empty on the other ranks, which receive it."""
        return self.announced.to_json().encode() if self.announced else b""

    def receive(self, document: bytes) -> None:
        """Take the announced plan, which all ranks have now. Raises PeerError if the document is no plan."""
        try:
            plan = parse_plan(document)
        except PlanError as error:
            raise PeerError(f"the leader announces a plan that cannot be followed: {error}") from error
        if plan.generation == self.active.generation:
            self._pending = plan
        else:
            self.successor = plan

    @property
    def is_left_out(self) -> bool:
        """Whether the plan that is to come goes on without this worker."""
        own = self.active.members[self.rank]
        return self.successor is not None and self.successor.rank_of(own.name, own.uid) is None

    def refuse_successor(self) -> None:
        """On the leader: the successor is impossible, and is not announced again."""
        assert self.successor is not None and self._file is not None
        self._file.refuse(self.successor.version)
        self.successor = None

    def adopt(self, successor: Plan, rank: int) -> None:
        """The members of a plan with other members train by it from here on."""
        self._active, self.rank = successor, rank
        self._pending = self.successor = None

    def propose(self, plan: Plan) -> None:
        """On a server: this plan is to be the active one from the boundary on that it waits for."""
        self._pending = plan

    def reform(self, plan: Plan, rank: int) -> None:
        """The members of an attempt are those of this plan. It is followed if they are others than before; if not,
        what this worker knows of plans may be newer."""
        if [member.uid for member in plan.members] != [member.uid for member in self.active.members]:
            self.adopt(plan, rank)

    def in_volume(self) -> Plan | None:
        """The newest plan in this worker's own volume, whomever it names; None if there is none."""
        return None if self._file is None else self._file.newest()

    @property
    def news(self) -> Plan | None:
        """The plan in this worker's own volume, if it is of a later generation than the active one; else None.

        Whoever follows a plan learns nothing from one of the same generation, whoever sent that one.
        """
        found = self.in_volume()
        return found if found is not None and found.generation > self.active.generation else None

    @property
    def overtaken(self) -> bool:
        """Whether there is a newer plan for other members than those whom this worker, which does not train yet, waits
        for."""
        found = self.in_volume()
        return found is not None and found.version > self.active.version and found.generation != self.active.generation

    def take_due(self, epoch_begins: bool) -> Plan | None:
        """The announced plan becomes the active one, if this boundary is the one that it waits for."""
        plan = self._pending
        if plan is None or not (plan.apply_at == "step" or epoch_begins):
            return None
        self._pending, self._active = None, plan
        return plan

    def facts(self) -> dict[str, str]:
        """The plans that this rank knows, for ranks that may have missed an announcement."""
        return {"plan": self.active.to_json(), "pending": self._pending.to_json() if self._pending else ""}

    def take_over(self, facts: Facts) -> None:
        """Take over what another rank knows."""
        self._active, self._pending, self.successor = facts.plan, facts.pending, None
