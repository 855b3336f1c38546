"""Stragglers that are replaced while the others train: a newcomer starts beside them, and takes the place when it can.

Nobody waits for it. Until it is warm it is hidden from whatever else is decided, so that it is neither one worker too
many nor a reason to restart when it dies. Then one plan swaps the two. If no newcomer can start, or it shows at its
warm-up that it would gain nothing, the straggler stays and the newcomer goes. Source: Elasticity, section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.core.facts import SETTLE_SECONDS, Facts, ended, worker_name
from heterotrain_operator.core.lifecycle.ends import described_end
from heterotrain_operator.core.lifecycle.following import is_carried_out, stayers
from heterotrain_operator.core.lifecycle.membership import Returning, returning
from heterotrain_operator.core.lifecycle.newcomer_speed import Forecast, forecast
from heterotrain_operator.core.lifecycle.open_slots import new_index
from heterotrain_operator.core.lifecycle.publishing import carried_on
from heterotrain_operator.core.lifecycle.responses import delay_seconds
from heterotrain_operator.core.lifecycle.transitions import step_of
from heterotrain_operator.core.model import Decision, Event, Job, WorkerKey, WorkerSeen, WorkerState
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.remembered.replacements import LONGEST_WHY, MOST_REPLACEMENTS, Replacement
from heterotrain_operator.core.remembered_worker import NOBODY, RememberedWorker, key_of
from heterotrain_operator.core.state import Remembered, members_memory
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.remedies import ENOUGH_INTERVALS
from heterotrain_operator.core.stragglers.verdict import Verdict
from heterotrain_operator.core.stragglers.watch import replacements_left


@dataclass(frozen=True, slots=True)
class Replacing:
    """After a look: what the rest of the decision sees, pods to create and delete, and the stragglers that leave by
    the next plan because their newcomers join with it (`swaps`, each with its newcomer).
    """

    facts: Facts
    memory: Remembered
    create: tuple[WorkerKey, ...] = ()
    delete: tuple[str, ...] = ()
    swaps: tuple[tuple[str, str], ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def leaving(self) -> frozenset[str]:
        """The stragglers that leave."""
        return frozenset(straggler for straggler, _ in self.swaps)

    def only(self, swaps: Sequence[tuple[str, str]]) -> Replacing:
        """With these swaps alone; newcomers of the others stay as they are, and nobody else sees them."""
        others = dict(each for each in self.swaps if each not in swaps)
        # What was predicted for now is no matter to be remembered.
        entries = (
            replace(entry, factor=0.0, samples=0.0) if entry.replaces in others else entry
            for entry in self.memory.remedies.replacing
        )
        return replace(
            self,
            facts=without_workers(self.facts, others.values()),
            memory=_with_entries(self.memory, entries),
            swaps=tuple(swaps),
        )


def planned_swaps(
    job: Job, facts: Facts, memory: Remembered, now: float, standing: Sequence[Verdict], *, settled: bool
) -> Replacing:
    """Go on with replacements and begin others. `standing` are the verdicts, `settled` says that no change of the
    members is under way.
    """
    if not memory.remedies.replacing and not (job.stragglers.action == "Replace" and standing):
        return Replacing(facts, memory)
    by_name = {verdict.worker: verdict for verdict in standing}
    each = _Look(job, facts, memory, now, standing=by_name, settled=settled)
    for entry in memory.remedies.replacing:
        each.go_on(entry)
    each.begin()
    memory = _with_entries(each.memory, each.kept)
    hidden = without_workers(facts, each.newcomers - {newcomer for _, newcomer in each.swaps})
    # Those that go have no group any more, but their names are not free yet.
    hidden = replace(hidden, without_group=(*facts.without_group, *each.delete))
    return Replacing(hidden, memory, tuple(each.create), tuple(each.delete), tuple(each.swaps), tuple(each.events))


def swapped(job: Job, facts: Facts, memory: Remembered, before: Remembered, plan: Plan) -> Remembered:
    """Memory once `plan` leaves stragglers out: what was known of them `before` is kept until the switch."""
    names = {member.name for member in plan.members}
    here = {member.name for member in facts.plan.members} if facts.plan is not None else set[str]()
    replaced = (entry.replaces for entry in memory.remedies.replacing)
    left = {name for name in replaced if name in here and name not in names}
    if not left or facts.plan is None:
        return memory
    known = carried_on(job, before, facts.plan)
    entries = (
        replace(entry, known=known[entry.replaces]) if entry.replaces in left else entry
        for entry in memory.remedies.replacing
    )
    return _with_entries(memory, entries)


def returned(
    job: Job, facts: Facts, memory: Remembered, now: float, back: Sequence[Returning]
) -> tuple[Remembered, tuple[Event, ...]]:
    """After a plan that names stragglers again, since their newcomers failed: each has another one later, or stays."""
    again, events = {each.entry.key: each for each in back}, list[Event]()
    entries: list[Replacement] = []
    for entry in memory.remedies.replacing:
        failed = again.get(entry.key)
        if failed is None:
            entries.append(entry)
        elif entry.tries >= job.backoff_limit:
            memory = _noted_at(memory, now)
            events.append(_stays(entry, f"{failed.why} ({entry.tries + 1} newcomers in its place did not start)"))
        else:
            events.append(Event("Warning", "ReplacementFailed", f"{failed.why}; {entry.replaces} stays for now"))
            # No two newcomers have the same index.
            taken = _with_entries(memory, (*memory.remedies.replacing, *entries))
            entries.append(_next(job, facts, taken, now, entry))
    return _with_entries(memory, entries), tuple(events)


def _next(job: Job, facts: Facts, memory: Remembered, now: float, entry: Replacement) -> Replacement:
    """The same replacement with another newcomer, which is created later."""
    index, tries = new_index(job, facts, memory, entry.group), entry.tries + 1
    return replace(entry, index=index, tries=tries, due_at=now + delay_seconds(tries), created_at=0.0, known=NOBODY)


def _with_entries(memory: Remembered, entries: Iterable[Replacement]) -> Remembered:
    """The memory with these replacements under way."""
    return replace(memory, remedies=replace(memory.remedies, replacing=tuple(entries)))


def _noted_at(memory: Remembered, now: float) -> Remembered:
    """The memory once a replacement began or ended."""
    return replace(memory, remedies=replace(memory.remedies, replaced_at=now))


def newcomer_name(job: Job, entry: Replacement) -> str:
    """The name of the newcomer."""
    return worker_name(job.name, entry.group, entry.index)


def given_up(job: Job, memory: Remembered) -> tuple[Remembered, tuple[str, ...]]:
    """Without any replacement, as where all workers start again; with the names of newcomers that may be there."""
    names = tuple(newcomer_name(job, entry) for entry in memory.remedies.replacing)
    return _with_entries(memory, ()), names


def ended_all(job: Job, facts: Facts, decided: Decision, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """A decision after which nothing can be replaced any more, since the job is over or its members can no longer
    change: newcomers that are no members go, but for pods that a job leaves behind.
    """
    plan, over, events, delete = decided.plan or facts.plan, memory.outcome.is_final, [], list(decided.delete)
    members = {member.name for member in plan.members} if plan is not None else set[str]()
    for entry in memory.remedies.replacing:
        name = newcomer_name(job, entry)
        if name in members and is_carried_out(facts):
            events.append(_replaced(entry, name, facts, memory))
        elif name not in members:
            why = "the job is over" if over else "the members can no longer change while they train"
            events.append(_stays(entry, why))
            delete += [name] if name in facts.names and name not in delete and not over else []
    memory = _noted_at(_with_entries(memory, ()), now)
    return replace(decided, delete=tuple(delete), events=(*decided.events, *events)), memory


def _replaced(entry: Replacement, name: str, facts: Facts, memory: Remembered) -> Event:
    gain = f"; by its warm-up {name} takes {entry.factor:.2g} of that" if entry.factor > 0 else ""
    text = f"{name} trains in place of {entry.replaces} since step {step_of(facts, memory)}: {entry.why}{gain}"
    return Event("Normal", "WorkerReplaced", text)


def _stays(entry: Replacement, why: str) -> Event:
    return Event("Normal", "ReplacementGivenUp", f"{entry.replaces} stays: {why}")


def hidden_from(job: Job, facts: Facts, memory: Remembered) -> Facts:
    """The observation without newcomers that are no members yet."""
    members = {worker.name for worker in facts.members if worker is not None}
    return without_workers(facts, {newcomer_name(job, entry) for entry in memory.remedies.replacing} - members)


def without_workers(facts: Facts, names: Collection[str]) -> Facts:
    """The observation without these workers; what state they are in stays known."""
    if not names:
        return facts

    def without(workers: Sequence[WorkerSeen]) -> tuple[WorkerSeen, ...]:
        return tuple(worker for worker in workers if worker.name not in names)

    return replace(
        facts,
        workers=without(facts.workers),
        live=without(facts.live),
        finished=without(facts.finished),
        failed=without(facts.failed),
        lost=without(facts.lost),
    )


def inheritance(job: Job, memory: Remembered, known: dict[str, RememberedWorker]) -> dict[str, RememberedWorker]:
    """What is expected of newcomers that join, by name: what is known of their stragglers, as fast as the newcomers
    are. It is of the very place that they have, so that no other's knowledge comes before it.
    """
    found = {}
    for entry in memory.remedies.replacing:
        row = known.get(entry.replaces)
        if row is None or entry.factor <= 0:
            continue
        cost = row.batch_cost.scaled(entry.factor).with_predicted(1)
        kept = row.unmeasured()._replace(
            batch_cost=cost, evidence=Evidence(), resource_use=ResourceUse(), key="", left_out=0, place=0
        )
        found[newcomer_name(job, entry)] = kept
    return found


def expected_batches(job: Job, memory: Remembered) -> dict[str, float]:
    """Samples that newcomers would have beside the present ones of the others, by name."""
    return {newcomer_name(job, entry): entry.samples for entry in memory.remedies.replacing if entry.samples > 0}


class _Look:
    """One look at all replacements: what was found so far."""

    def __init__(
        self, job: Job, facts: Facts, memory: Remembered, now: float, *, standing: dict[str, Verdict], settled: bool
    ) -> None:
        self.job, self.facts, self.memory, self.now = job, facts, memory, now
        self.standing, self.settled = standing, settled
        self.pods = {(worker.group, worker.index): worker for worker in facts.workers}
        self.members = {worker.name for worker in facts.members if worker is not None}
        self.there = {key_of(worker.uid): worker for worker in stayers(facts)}
        self.back = {each.entry.key for each in returning(job, facts, memory, now)}
        self.kept: list[Replacement] = []
        self.create: list[WorkerKey] = []
        self.delete: list[str] = []
        self.events: list[Event] = []
        self.swaps: list[tuple[str, str]] = []
        self.newcomers: set[str] = set()

    # --- those that were begun ------------------------------------------------------------------------------------

    def go_on(self, entry: Replacement) -> None:
        """One replacement, from whatever is there to what comes next."""
        assert self.facts.plan is not None
        name, pod = newcomer_name(self.job, entry), self.pods.get((entry.group, entry.index))
        if name in self.members:
            self._switched(entry, name, pod)
            return
        if entry.key in self.back:
            self.kept.append(entry)
            return
        straggler = self.there.get(entry.key)
        if straggler is None:
            # It has ended, or its newcomer did not follow the plan: its place is filled as any other is.
            self.memory = _noted_at(self.memory, self.now)
            return
        if pod is not None:
            self.newcomers.add(name)
        enough = self._reason_to_stop(entry, straggler)
        if enough:
            self._give_up(entry, pod, enough)
        elif pod is None:
            self._awaited(entry, name)
        elif ended(pod) or pod.deleting_since is not None or pod.node_lost:
            self._again(entry, pod, described_end(pod) if ended(pod) else f"{name} is being taken away")
        elif self.facts.states[name] is WorkerState.WARM:
            self._warm(entry, straggler, pod)
        elif not pod.gated and self.now - entry.created_at > self.job.startup_deadline_seconds:
            self._again(entry, pod, f"{name} was not ready within {self.job.startup_deadline_seconds:g} s")
        else:
            self.kept.append(entry)

    def _switched(self, entry: Replacement, name: str, pod: WorkerSeen | None) -> None:
        """The active plan names the newcomer."""
        assert self.facts.plan is not None
        generation = pod.metrics.generation if pod is not None and pod.metrics is not None else 0
        if generation < self.facts.plan.generation:
            self.kept.append(entry)
            return
        self.memory = _noted_at(self.memory, self.now)
        self.events.append(_replaced(entry, name, self.facts, self.memory))

    def _reason_to_stop(self, entry: Replacement, straggler: WorkerSeen) -> str:
        """Why a replacement is of no more use, in words; empty if it is."""
        assert self.facts.plan is not None
        rows = members_memory(self.memory, self.facts.plan)
        named = {row.key for row in rows if row.evidence.named}
        if self.job.stragglers.action != "Replace" or self.job.dry_run:
            return "stragglers of this job are no longer to be replaced"
        if entry.key not in named:
            return f"{straggler.name} is as fast as expected again"
        if entry.tries > self.job.backoff_limit:
            return f"{entry.tries} newcomers in its place did not start"
        return ""

    def _give_up(self, entry: Replacement, pod: WorkerSeen | None, why: str) -> None:
        """The straggler stays, and the newcomer goes."""
        if pod is not None:
            self.delete.append(pod.name)
        self.memory = _noted_at(self.memory, self.now)
        self.events.append(_stays(entry, why))

    def _awaited(self, entry: Replacement, name: str) -> None:
        """The newcomer is not there: it is created when it is due, and counts as one that did not start when it was and
        is still not there.
        """
        if entry.created_at <= 0 and self.now >= entry.due_at:
            self.create.append(WorkerKey(entry.group, entry.index, name))
            self.kept.append(replace(entry, created_at=self.now))
        elif entry.created_at > 0 and self.now - entry.created_at >= SETTLE_SECONDS:
            refused = self.facts.refused.get(name)
            self._again(entry, None, f"{name} could not be created: {refused}" if refused else f"{name} vanished")
        else:
            self.kept.append(entry)

    def _again(self, entry: Replacement, pod: WorkerSeen | None, why: str) -> None:
        """Another newcomer is created later; beyond the backoff limit the straggler stays."""
        tries = entry.tries + 1
        if tries > self.job.backoff_limit:
            self._give_up(replace(entry, tries=tries), pod, f"{why} ({tries} newcomers in its place did not start)")
            return
        if pod is not None:
            self.delete.append(pod.name)
        self.events.append(Event("Warning", "ReplacementFailed", f"{why}; {entry.replaces} stays for now"))
        present = _with_entries(self.memory, (*self.memory.remedies.replacing, *self.kept))
        self.kept.append(_next(self.job, self.facts, present, self.now, entry))

    def _warm(self, entry: Replacement, straggler: WorkerSeen, pod: WorkerSeen) -> None:
        """The newcomer could join: it does if that gains, by what its warm-up has shown."""
        if pod.metrics is not None and pod.metrics.protocol < MEMBERS_MAY_END:
            self._give_up(entry, pod, f"{pod.name} cannot join workers that train, since its library is older")
            return
        if not self.settled:
            self.kept.append(entry)
            return
        verdict, ahead = self.standing.get(straggler.name), None
        if verdict is not None:
            ahead = forecast(self.job, self.facts, self.memory, straggler=straggler, newcomer=pod, verdict=verdict)
        if ahead is None:
            # Right after a plan nothing is measured yet, so that nothing can be predicted.
            if self.now - entry.created_at > self.job.startup_deadline_seconds:
                self._give_up(entry, pod, "it could not be predicted what a replacement gains")
            else:
                self.kept.append(entry)
            return
        if not ahead.gains:
            self._give_up(entry, pod, ahead.words)
            return
        self.swaps.append((straggler.name, pod.name))
        self.kept.append(replace(entry, factor=ahead.factor, samples=ahead.samples))

    # --- others ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the replacements that are due, the slowest straggler first."""
        job, facts = self.job, self.facts
        if job.stragglers.action != "Replace" or job.dry_run or not self.settled or facts.plan is None:
            return
        if any(facts.is_gone(worker) for worker in facts.members if worker is not None):
            return  # the job is about to end, or its places are filled first
        advised = {row.key: row.evidence.advised for row in members_memory(self.memory, facts.plan)}
        under_way = {entry.key for entry in self.kept}
        by_name = {worker.name: key for key, worker in self.there.items()}
        for verdict in sorted(self.standing.values(), key=lambda each: each.slowdown, reverse=True):
            key = by_name.get(verdict.worker)
            if key is None or key in under_way or advised.get(key, 0) < ENOUGH_INTERVALS:
                continue
            if not self._affordable():
                return
            self._begun(verdict, key)

    def _affordable(self) -> bool:
        """Whether the budget and the cooldown allow another one."""
        at = self.memory.remedies.replaced_at
        cooled = at is None or self.now - at >= self.job.stragglers.cooldown_seconds
        return cooled and replacements_left(self.job, self.memory) > 0 and len(self.kept) < MOST_REPLACEMENTS

    def _begun(self, verdict: Verdict, key: str) -> None:
        present = _with_entries(self.memory, (*self.memory.remedies.replacing, *self.kept))
        index = new_index(self.job, self.facts, present, verdict.group)
        why = f"it takes {verdict.slowdown:.2g} times as long as expected"
        entry = Replacement(verdict.group, index, verdict.worker, key, why[:LONGEST_WHY], created_at=self.now)
        name = newcomer_name(self.job, entry)
        self.create.append(WorkerKey(entry.group, index, name))
        self.kept.append(entry)
        self.memory = replace(self.memory, remedies=self.memory.remedies.begun(self.now))
        left = f"{replacements_left(self.job, self.memory)} of {self.job.stragglers.max_replacements} replacements left"
        text = f"creating {name} to replace {verdict.worker}: {why}; {Forecast.of(verdict)}; {left}"
        self.events.append(Event("Normal", "ReplacingStraggler", text))
