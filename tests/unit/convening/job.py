"""A simulated job: its workers, planned changes of them, those that are asked to leave, and an operator."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster
from heterotrain.groups.convening.worker_state import Rules, listeners
from unit.convening.network import Machine
from unit.convening.training import Trainer, Training


@dataclass
class Change:
    """A planned change under way."""

    roster: Roster
    old: Roster
    announcer: str
    ready: set[str] = field(default_factory=set)
    announced: bool = False
    given_up: bool = False
    fails: bool = False  # one of them cannot make its groups, although all accept it


class Job(Training):
    """The workers of one job."""

    def __init__(
        self, seed: int, size: int, *, last: int | None = None, skips: bool = False, retries: bool = False
    ) -> None:
        """`skips`: the operator's plans skip generations. `retries`: changes that came to nothing are prepared again,
        as they are for as long as the operator has no other plan."""
        super().__init__(seed)
        self.skips = skips
        self.retries = retries
        self.tries: dict[str, int] = {}  # of changes, as each worker has seen
        self.plan = p.PlanShown(0, ())  # the newest
        self.plan_number = Number(1, 0)  # of the attempt whose members have gone over to it
        self.last = last
        self.change: Change | None = None  # the newest
        self.generation = 1
        self.operator_blocked: set[str] = set()
        self.interventions = 0
        self.rules = Rules(split=lambda members: "a plan")
        members = tuple(f"w{index}" for index in range(size))
        for uid in members:
            self.join(uid)
        plan = self._plan(members, starts=True)
        for uid in members:
            self.trainers[uid].has_state = True
            self.after(self.random.uniform(0, 0.5), lambda uid=uid: self.give(self.machines[uid], plan))

    def join(self, uid: str) -> None:
        self.trainers[uid] = Trainer(pace=self.random.choice((0.3, 0.5, 1.0, 2.5)))
        self.add(uid, self.rules)

    def end(self, uid: str) -> None:
        """A process ends, and its kernel closes all that it had open."""
        self.kill(self.machines[uid])
        self.cut_sockets(self.machines[uid])

    def hold(self, machine: Machine, seconds: float) -> None:
        """Its interpreter is held for so long: it does nothing, and the process beside it says that it runs."""
        self.stop(machine)
        until = self.now + seconds

        def vouch() -> None:
            if not machine.runs or not machine.stopped or self.now >= until:
                return
            event = p.Vouched(machine.uid)
            for other in [self.machines[uid] for uid in listeners(machine.state)]:
                uid = other.uid
                self.travel(machine.uid, uid, lambda other=other, event=event: self.give(other, event), self.delay())
            self.after(1.0, vouch)

        self.after(2.5, vouch)
        self.after(seconds, lambda: self.go_on(machine))

    def ask_to_leave(self, uid: str, grace_seconds: float | None) -> None:
        """SIGTERM, and SIGKILL if it has not ended by then; None: a machine that waits for it."""
        self.log(f"{uid} is asked to leave")
        self.give(self.machines[uid], p.Leaving())
        if grace_seconds is not None:
            self.after(grace_seconds, lambda: self.end(uid) if self.machines[uid].runs else None)

    # --- planned changes ----------------------------------------------------------------------------------------

    def begin_change(self, joiners: int, leavers: int, *, leaving: str | None = None) -> None:
        """The first member prepares another generation with all others, and perhaps without the one that leaves."""
        old = next(
            (
                trainer.roster
                for uid, trainer in self.trainers.items()
                if trainer.roster is not None and trainer.roster.members[0] == uid and self.machines[uid].runs
            ),
            None,
        )
        if old is None or (self.change is not None and not self.change.given_up and self.change.old == old):
            return  # one at a time
        if self.retries and self._try_again(old):
            return
        self.generation += self.random.randint(1, 3) if self.skips else 1
        staying = [uid for uid in old.members if uid != leaving]
        for _ in range(min(leavers, len(staying) - 1)):
            staying.remove(self.random.choice(staying[1:] if self.random.random() < 0.7 else staying))
        new = self._newcomers(joiners)
        if not staying and not new:
            return
        members = (*staying, *new)
        self._begin_to_make(members, old, self._plan(members))

    def _try_again(self, old: Roster) -> bool:
        """The change before this one once more, perhaps by the members of another attempt."""
        members = self.change.roster.members if self.change is not None else ()
        is_newest = self.plan.members == members and all(self.machines[uid].runs for uid in members)
        is_of_them = not {uid for uid in members if self.trainers[uid].has_state} - set(old.members)
        if not is_newest or not is_of_them or members == old.members or self.random.random() < 0.3:
            return False
        self._begin_to_make(members, old, self.plan)
        return True

    def _begin_to_make(self, members: tuple[str, ...], old: Roster, plan: p.PlanShown) -> None:
        """All members of an attempt see at the same boundary which try it is, as the first of them says."""
        tries = self.tries.get(old.members[0], 0) + 1
        self.tries |= {uid: max(tries, self.tries.get(uid, 0)) for uid in old.members}
        roster = Roster(Number.of_change(plan.generation, old.number, tries), members, old.members[0])
        self.change = change = Change(roster, old, old.members[0])
        change.fails = self.retries and self.faulty and self.random.random() < 0.5
        self.log(f"preparing {roster}")
        everyone = tuple(dict.fromkeys((*old.members, *roster.members)))
        self.plan_number = roster.number
        for uid in everyone:
            if self.random.random() < 0.7:
                self.after(self.random.uniform(0, 1), lambda uid=uid: self.give(self.machines[uid], plan))
            self.after(self.random.uniform(0, 1.5), lambda uid=uid: self._prepare(change, self.machines[uid]))
        until = (1.5, 2.0) if change.fails else (3.0, 6.0)
        self.after(self.random.uniform(*until), lambda: self._give_up(change, everyone))

    def _newcomers(self, count: int) -> list[str]:
        """Processes that have not trained: some that wait since another change, and new ones."""
        idle = [
            uid
            for uid, machine in self.machines.items()
            if machine.runs and not self.trainers[uid].has_state and machine.state.standing.formed is None
        ]
        if self.random.random() < 0.5:
            idle = []
        fresh = [f"j{self.generation}{index}" for index in range(count - len(idle[:count]))]
        for uid in fresh:
            self.join(uid)
        return [*idle[:count], *fresh]

    def _prepare(self, change: Change, machine: Machine) -> None:
        def prepare() -> None:
            if change.given_up:
                return
            is_new = machine.uid not in change.old.members
            self.give(machine, p.Prepared(change.roster, None if is_new else change.old.number))
            if change.roster in machine.state.standing.pending:
                self.after(self.delay(), lambda: change.ready.add(machine.uid))

        self.on(machine, prepare)

    def _give_up(self, change: Change, everyone: tuple[str, ...]) -> None:
        leader = self.machines[change.announcer]
        if change.announced or not leader.runs or leader.stopped:
            return
        change.given_up = True
        for uid in everyone:
            delay = 0 if uid == change.announcer else self.delay()
            if uid in change.old.members:  # nobody tells those who only join
                self.after(delay, lambda uid=uid: self.give(self.machines[uid], p.Abandoned(change.roster.number)))
        if change.fails:
            self.after(self.random.uniform(0.1, 2), lambda: self.begin_change(1, 0))

    def switch_of(self, machine: Machine, trainer: Trainer) -> Roster | None:
        change = self.change
        if (
            change is None
            or change.announcer != machine.uid
            or change.old != trainer.roster
            or trainer.index == -1
            or change.given_up
            or change.fails
            or change.ready != {*change.roster.members, *change.old.members}
        ):
            return None
        if not change.announced:
            change.announced = True
            self.announced.add(change.roster)
            self.give(machine, p.Announced(change.roster.number))
        return change.roster

    # --- the operator -------------------------------------------------------------------------------------------

    def _plan(self, members: tuple[str, ...], *, starts: bool = False) -> p.PlanShown:
        """The next plan; it evicts those seen ended, if that leaves nobody who might train elsewhere."""
        unsure = {uid for uid, machine in self.machines.items() if machine.runs or uid in self.operator_blocked}
        ended = frozenset(self.machines) - unsure if unsure <= set(members) else frozenset()
        ended = ended or self._seen_ended(members, unsure)
        self.plan = p.PlanShown(self.generation, members, starts, ended)
        return self.plan

    def _seen_ended(self, members: tuple[str, ...], unsure: set[str]) -> frozenset[str]:
        """By what the real operator knows, which remembers no members but those of its newest plan."""
        left = set(self.plan.members) - set(members)
        rosters = [self.trainers[uid].roster for uid in unsure & set(self.plan.members) - self.operator_blocked]
        is_followed = any(roster is not None and roster.number >= self.plan_number for roster in rosters)
        if left & unsure or not (is_followed or self.plan.evicted):
            return frozenset()
        return frozenset(left) if is_followed else self.plan.evicted | left

    def operate(self) -> None:
        """Once nothing has trained for long: say who has ended, if everybody is accounted for."""
        self.after(1.0, self.operate)
        if self.now - self.last_commit < 15 or self.is_over:
            return
        running = [machine for machine in self.machines.values() if machine.runs]
        if any(machine.stopped or machine.uid in self.operator_blocked for machine in running) or not running:
            return
        self.last_commit = self.now  # patience for this plan
        self.interventions += 1
        self.generation += 1
        members = [machine.uid for machine in running]
        if self.skips and self.random.random() < 0.5:  # as the real one, which names who has trained, and stays
            members = [uid for uid in members if uid in self.plan.members] or members
        plan = self._plan(tuple(members))
        self.plan_number = Number(self.generation, 0)
        self.log(f"operator: {plan}")
        for machine in running:
            self.after(self.delay(), lambda machine=machine: self.give(machine, plan))


def job_of(size: int) -> Job:
    """A job without faults that has trained for a while."""
    job = Job(3, size)
    job.faulty = False
    job.run(30)
    return job
