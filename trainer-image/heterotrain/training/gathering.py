"""How a worker makes groups with others: at the start, after a failure, and beside training where members change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from heterotrain.contract import Member, Plan, parse_plan
from heterotrain.data import likeness
from heterotrain.groups.assembly import Assembly, MembershipError
from heterotrain.groups.convening.protocol import Form
from heterotrain.groups.convening.roster import Roster
from heterotrain.groups.convening.worker_state import FOREVER_SECONDS, PROOF_SHARE, Rules
from heterotrain.groups.generation import GROUP_SECONDS
from heterotrain.groups.making import DEVICE, Maker, Making, Traits
from heterotrain.groups.peering.board_store import BoardStore
from heterotrain.groups.peering.messages import Begins, Prepare
from heterotrain.groups.succession import Preparation, Succession
from heterotrain.job.plans import Plans

log = logging.getLogger(__name__)

KIND = "kind"
"""Of machine, among a member's traits."""

_POLL_SECONDS = 0.02
_MEETS_PER_SECOND = 50
_IF_MEANT = (
    "; random data that are made before join() need a seed; where samples differ by what is not trained on, such as a "
    "path, leave that out of them, or set prepare(..., compare_samples=False)"
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """How this worker meets the others.

    `job` is the UID of the job, `spare_port` is the port of its own metrics server, `backend` is what
    carries gradients, and by the `secret` the workers know one another. `elastic`: members go on without those that
    end, or that are silent for `silence_seconds`; one whose interpreter is held for `held_seconds` is silent, too.
    `is_asked_to_stop` says whether this worker has to stop; `check_stop` raises if it has.
    """

    job: str
    spare_port: int
    backend: str
    elastic: bool
    silence_seconds: float
    held_seconds: float
    check_stop: Callable[[], None]
    is_asked_to_stop: Callable[[], bool]
    secret: str | None


class Gathering:
    """One worker's way to the groups of its job, from its first plan to its end.

    The `assembly` knows who is there. `has_met`, which the owner sets, says whether this worker has ever come to the
    same state as others; until then it joins those that a plan says to train already.
    """

    def __init__(self, meeting: Meeting, plans: Plans, traits: Mapping[str, str]) -> None:
        """Listen for the others. `traits` are what must be alike on all members, and the kind of device and machine.
        Raises OSError if this worker's port cannot be had."""
        self.has_met = False
        self._meeting = meeting
        self._plans = plans
        self.assembly = self._assemble(meeting, plans.active.members[plans.rank])
        self._begun_with = 0  # a generation that is to continue another one, in which nobody has ever trained
        self._looked = self.assembly.woke()  # into the volume, for what has happened while this worker was away
        self._maker = Maker(traits, self._check_alike, meeting.spare_port, meeting.backend, meeting.is_asked_to_stop)

    @property
    def joins(self) -> bool:
        """Whether the members of the active plan train already, and this worker does not. Its first member trains if
        anybody does, so nobody does if that is this very worker, or if it says so."""
        plan = self._plans.active
        is_first_to_train = self._plans.rank == 0 or self._begun_with == plan.generation
        return plan.continues > 0 and not self.has_met and not is_first_to_train

    def begin(self) -> None:
        """The active plan names this worker, which trains under none yet."""
        self.assembly.begin(self._plans.active, starts=not self.joins)

    def make(self, deadline_seconds: float) -> Making:
        """Meet the others, and make the groups of the next attempt, as often as it takes. Raises MembershipError if
        those who are needed do not come in time, ValueError if members are not alike."""
        assembly = self.assembly
        deadline = time.monotonic() + deadline_seconds
        making: Making | None = None
        while making is None:
            if self.joins:
                found = assembly.await_offer(self._plans.active, deadline, self._meeting.check_stop)
            else:
                found = assembly.await_form(deadline, self._look_around)
            if isinstance(found, Begins):
                self._begun_with = found.generation
                self.begin()
            else:
                making = self._join_in(found) if isinstance(found, Prepare) else self._make(*found)
        return making

    def may_commit(self) -> bool:
        """Whether this worker is a member of an attempt in which it may commit a step, or write a checkpoint, now; see
        `Assembly.may_commit`."""
        woke = self.assembly.woke()
        if woke > self._looked:
            self._looked = woke
            self._read_volume()
        return self.assembly.may_commit()

    def _look_around(self) -> None:
        """While the members meet again."""
        self._meeting.check_stop()
        if self.has_met:
            self._read_volume()

    def _read_volume(self) -> None:
        """The operator may have said in whose place others train, or who goes on, when no peer can."""
        plan = self._plans.news if self._meeting.elastic else None
        if plan is not None:
            self.assembly.read(plan)

    def _assemble(self, meeting: Meeting, own: Member) -> Assembly:
        silence = meeting.silence_seconds if meeting.elastic else FOREVER_SECONDS
        workers = len(self._plans.active.members)
        rules = Rules(
            self._plan_of,
            silence_seconds=silence,
            proof_seconds=PROOF_SHARE * silence,
            # Who needs all waits as long as it takes; in a meeting each beat costs the convener work for all members.
            beat_seconds=min(1.0, silence / 5) if meeting.elastic else max(1.0, workers / _MEETS_PER_SECOND),
            late_seconds=min(1.0, silence / 5),
            all_needed=not meeting.elastic,
        )
        held_seconds = meeting.held_seconds if meeting.elastic else None
        return Assembly(meeting.job, own, rules, meeting.secret, held_seconds=held_seconds)

    def _plan_of(self, uids: tuple[str, ...]) -> str:
        """The plan of these members, as a document; they are of the active plan, or of the one that is prepared."""
        plans = [self._plans.active]
        if self._plans.successor is not None:
            plans.append(self._plans.successor)
        for plan in plans:
            known = {member.uid: member for member in plan.members}
            if set(uids) <= known.keys():
                return resplit(plan, [known[uid] for uid in uids]).to_json()
        known = {member.uid: member for plan in reversed(plans) for member in plan.members}
        members = [known.get(uid) or self.assembly.member(uid) for uid in uids]
        return resplit(plans[0], [member for member in members if member is not None]).to_json()

    def _make(self, form: Form, convener: str) -> Making | None:
        """Make the groups of an attempt that is formed; None if that failed."""
        assembly, maker = self.assembly, self._maker
        plan, number = parse_plan(form.plan), form.roster.number
        assembly.know(plan)
        rank = form.roster.members.index(assembly.own.uid)
        if [member.uid for member in plan.members] != list(form.roster.members):
            raise MembershipError(f"the plan of attempt {number} is of other members than the attempt")
        making = maker.begin(plan, number, rank)
        try:
            store = assembly.store(number, len(plan.members), convener, GROUP_SECONDS)

            def cut(why: str) -> None:
                assembly.close_store(store, why)
                making.generation.break_up(why)

            assembly.cut_with(cut)
            making.generation.on_leave = partial(assembly.close_store, store, "its groups are released")
            self._aside(partial(making.meet_and_make, store), cut)
        except (RuntimeError, OSError) as error:
            log.warning("attempt %s to form the group failed, trying again: %s", number, error)
            making.generation.break_up(str(error))
            making.generation.leave()
            assembly.making_failed(number)
            return None
        assembly.made(number)
        self._plans.reform(plan, rank)
        return making

    def _join_in(self, offer: Prepare) -> Making | None:
        """As a joiner, make groups under this number, and wait until the others come over to them; None if that
        failed, or they do not come."""
        assembly, maker, meeting = self.assembly, self._maker, self._meeting
        preparation = Preparation(assembly, maker, self._plans.active, self._plans.rank, offer.announcer)
        held: list[tuple[BoardStore, Making]] = []

        def cut(why: str) -> None:
            for store, making in held[-1:]:
                assembly.close_store(store, why)
                making.generation.break_up(why)

        assembly.cut_with(cut)
        try:
            made: Making = self._aside(
                lambda: preparation.make(offer.number, lambda store, making: held.append((store, making))), cut
            )
            made.generation.sum(torch.ones(1)).wait(look=meeting.check_stop)
        except MembershipError:
            raise
        except (RuntimeError, OSError) as error:
            log.warning("generation %d is not there yet: %s", self._plans.active.generation, error)
            return None
        else:
            held.clear()
            return made
        finally:
            cut("a joiner has given these groups up")
            for _, making in held:
                making.generation.leave()

    def _aside(self, call: Callable[[], Any], cut: Callable[[str], None]) -> Any:
        """Return or raise what a call does that may take long. It runs in a thread of its own, for a signal is only
        handled between the main thread's instructions."""
        asking = BackgroundCall(call)
        try:
            while not asking.done.wait(_POLL_SECONDS):
                self._meeting.check_stop()
        except BaseException as error:
            cut(str(error))
            # A thread that comes back from torch while the interpreter ends would take the process down.
            asking.done.wait(GROUP_SECONDS)
            raise
        return asking.result()

    # --- beside training ------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, refused: str) -> Succession:
        """The groups of a plan with other members, none of which are made yet; `refused` if they never will be."""
        assembly, maker, active = self.assembly, self._maker, self._plans.active
        assembly.know(plan)
        own = active.members[self._plans.rank]
        rank = plan.rank_of(own.name, own.uid)
        if refused:
            return Succession(plan, rank, None, refused)
        announcer, within = active.members[0].uid, assembly.number
        preparation = None if rank is None else Preparation(assembly, maker, plan, rank, announcer, within)
        return Succession(plan, rank, preparation)

    def begin_to_make(self, succession: Succession, attempt: int) -> None:
        """Make its groups, at this try of all that the leader has seen. Raises RuntimeError if the present attempt has
        ended."""
        assembly, plan = self.assembly, succession.plan
        number = assembly.number_of_change(plan.generation, attempt)
        uids, announcer = tuple(member.uid for member in plan.members), self._plans.active.members[0].uid
        if plan.members[0].uid == assembly.own.uid:
            assembly.keep_board(number, uids)
            assembly.offer(Prepare(plan.generation, number, announcer))
        if succession.rank is None:
            assembly.prepared(Roster(number, uids, announcer), assembly.number)
        succession.begin(number)

    def announce(self, succession: Succession) -> None:
        """On the leader, before it says that all go over."""
        if succession.number is not None:
            self.assembly.announced(succession.number)

    def abandon(self, succession: Succession) -> None:
        """All members know that nobody goes over to these groups."""
        if succession.number is not None:
            self.assembly.offer(None)
            self.assembly.abandoned(succession.number)

    def _check_alike(self, plan: Plan, everybodys: Sequence[Traits]) -> None:
        """Raises ValueError if the workers' scripts have made different things; on a joiner, if its own has made
        something else than the leader's."""
        first = everybodys[0]
        own = self._plans.rank if plan.continues > 0 and not self.has_met else None
        for rank, (member, theirs) in enumerate(zip(plan.members, everybodys, strict=True)):
            if own is not None and rank != own:
                continue
            for trait in (name for name in self._maker.traits if name not in (DEVICE, KIND)):
                # A library from before that trait does not say which it is.
                found, wanted = theirs.get(trait, "unsaid"), first.get(trait, "unsaid")
                is_sample = trait.startswith(f"{likeness.SAMPLE} ")
                if is_sample:
                    differs = likeness.differ(found, wanted, exact=theirs.get(KIND) == first.get(KIND))
                else:
                    differs = found != wanted
                if differs:
                    raise ValueError(
                        f"{member.name} has another {trait} than {plan.leader} ({found} and {wanted}); all workers "
                        "must run the same script on the same data, with the same version of this library"
                        f"{_IF_MEANT if is_sample else ''}"
                    )


def resplit(plan: Plan, members: Sequence[Member]) -> Plan:
    """The plan with these members instead, each with a batch as many times as large as it was, in whole samples.

    Members whose batches are all 0 get equal ones. A member computes no more samples at once than before: the rest
    takes further passes. Who has ended is the operator's word alone, and not handed on.
    """
    if tuple(members) == plan.members:
        return plan
    total = plan.global_batch_size
    weights = [member.batch_size for member in members]
    if not any(weights):
        weights = [1] * len(members)
    shares = zip(members, _proportional(weights, total), strict=True)
    return replace(plan, members=tuple(_with_batch(*each) for each in shares), evicted=())


def _with_batch(member: Member, batch_size: int) -> Member:
    at_once = member.micro_batch_size or member.batch_size
    passes = 0 < at_once < batch_size
    return replace(member, batch_size=batch_size, micro_batch_size=at_once if passes else 0)


def _proportional(weights: Sequence[int], total: int) -> list[int]:
    """Whole numbers of this sum, by the method of largest remainders; of equal remainders the first."""
    whole = sum(weights)
    parts = [weight * total // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(weights[place] * total % whole))
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return parts


EXPECTED: tuple[type[Exception], ...] = (RuntimeError, OSError, ValueError)
"""What such a call may raise; anything else is a mistake in this library, and is shown by the thread."""


class BackgroundCall(threading.Thread):
    """Begins with the call at once; `done` is set when it has ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="heterotrain-aside", daemon=True)
        self.done = threading.Event()
        self._call = call
        self._returned: Any = None
        self._error: Exception | None = RuntimeError("a call beside the main thread had no end")
        self.start()

    def run(self) -> None:
        """Keep what the call returns or raises."""
        try:
            self._returned = self._call()
            self._error = None
        except EXPECTED as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> Any:
        """What the call returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._returned
