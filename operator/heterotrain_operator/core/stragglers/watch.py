"""Watching a job's workers for stragglers: evidence once per interval, verdicts whenever they are asked for, and both
in words and numbers, for the condition, events and the command line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.core.batching.asking import seats_of
from heterotrain_operator.core.batching.policies import Seat
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import Condition, Event, Job, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction import predictor_of
from heterotrain_operator.core.prediction.resource_use import NAMES, Cause, name_of
from heterotrain_operator.core.prediction.step_time import Estimate, same_limit
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered, is_of
from heterotrain_operator.core.stragglers import expected_time
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.expected_time import GREATEST_LEVEL
from heterotrain_operator.core.stragglers.healthy_time import Limits, resized
from heterotrain_operator.core.stragglers.remedies import (
    LEAST_ELASTIC_GAIN,
    LEAST_SWAP_GAIN,
    advised,
    best_remedy,
    outlooks,
    replacement_pays,
)
from heterotrain_operator.core.stragglers.rule import MEDIAN_THROUGHPUT, Finding, Interval, Reading, Rule
from heterotrain_operator.core.stragglers.verdict import ACTIONS, Budget, Grounds, Outlooks, Remedy, Verdict

RULES: dict[str, Rule] = {
    "ExpectedTime": expected_time.RULE,
    "MedianThroughput": MEDIAN_THROUGHPUT,
}


ASSUMED_RESTART_SECONDS = 60.0
"""Standstill for a replacement by which all workers start again, where this job's own start was not measured;
checkpoint-restarts took 73-81 s in the paper on elasticity."""

ASSUMED_TRANSITION_SECONDS = 1.0
"""Standstill for one that joins while the others train, where no such change was measured: three times what
`hack/bench/transition.py` measures for 10 million parameters, for models are larger and networks slower. (Elasticity,
table 1, has up to 6.8 s for its own way of adding a worker.)"""

MOST_WEIGHED = 8
"""Stragglers, the slowest ones, of which it is worked out what would help: more than a job may have replaced in a
while. Half of all workers may be slow, and each takes two splits among all of them, which is 10 ms for 1,000."""

GREATEST_RESTART_SECONDS = 3600.0
"""A start that took longer waited for its place, and says little about the next one."""


def watched(
    job: Job,
    plan: Plan,
    members: Sequence[WorkerSeen],
    seats: Sequence[Seat],
    memory: Remembered,
    *,
    before: Sequence[RememberedWorker],
) -> tuple[Remembered, tuple[Event, ...]]:
    """The memory with the evidence of an interval (`seats` with its windows, by rank; empty: none has ended), and
    events about verdicts that begin or end. `before` is what was remembered of the members before this look, with their
    former CPU limits.
    """
    if not ACTIONS[job.stragglers.action].judges:
        return memory, ()
    memory = _at_new_limits(job, before, memory)
    if not seats:
        return memory, ()
    rule = RULES[job.stragglers.rule]
    readings = [_reading(seat, seat.window, known.evidence) for seat, known in zip(seats, memory.workers, strict=True)]
    step = max((seen.metrics.step for seen in members if seen.metrics is not None), default=0)
    judged = rule.judge(job.stragglers, Interval(max(job.interval, 1), step, memory.remedies.judged), readings)
    workers = tuple(known.with_evidence(evidence) for known, evidence in zip(memory.workers, judged, strict=True))
    was, now = (
        {member.name for member, known in zip(plan.members, each, strict=True) if known.evidence.named}
        for each in (memory.workers, workers)
    )
    memory = replace(memory, workers=workers, remedies=replace(memory.remedies, judged=memory.remedies.judged + 1))
    if ACTIONS[job.stragglers.action].changes_members:
        memory = advised(job, plan, memory, verdicts(job, plan, members, memory))
    if was == now:
        return memory, ()
    begun = [verdict for verdict in verdicts(job, plan, members, memory) if verdict.worker not in was]
    events = [Event("Warning", "StragglerDetected", sentence(verdict)) for verdict in begun]
    over = [member.name for member in plan.members if member.name in was - now]
    if over:
        text = f"{listed(over)} {'is' if len(over) == 1 else 'are'} as fast as expected again"
        events.append(Event("Normal", "StragglerRecovered", text))
    return memory, tuple(events)


def verdicts(
    job: Job, plan: Plan | None, members: Sequence[WorkerSeen | None], memory: Remembered
) -> tuple[Verdict, ...]:
    """The verdicts that stand about the members of the plan, which are given by rank; None is not there."""
    if not ACTIONS[job.stragglers.action].judges or plan is None or not is_of(memory, plan):
        return ()
    ranks = [rank for rank, known in enumerate(memory.workers) if known.evidence.named]
    if not ranks or len(members) != len(plan.members):
        return ()
    if not {member.group for member in plan.members} <= {group.name for group in job.groups}:
        return ()  # the job was edited, and these members are about to go
    seats = seats_of(job, plan, memory.workers, [None] * len(plan.members))
    readings = [_reading(seat, seat.estimate, seat.memory.evidence) for seat in seats]
    found = RULES[job.stragglers.rule].find(readings)
    settings = job.stragglers
    budget = Budget(replacements_left(job, memory), settings.cooldown_seconds)
    hindrance = _hindrance(job, memory)
    least_gain = LEAST_ELASTIC_GAIN if memory.protocol >= MEMBERS_MAY_END else LEAST_SWAP_GAIN
    # Until one is measured under a new plan, it is as slow as it was on average.
    findings = {
        rank: found[rank]
        or Finding(math.exp(min(seats[rank].memory.evidence.level / 1000, GREATEST_LEVEL)), Grounds.ITSELF)
        for rank in ranks
    }
    weighed = sorted(ranks, key=lambda rank: (-findings[rank].slowdown, rank))[:MOST_WEIGHED]
    slowdowns = {rank: max(findings[rank].slowdown, 1.0) for rank in weighed}
    foreseen = outlooks(seats, slowdowns, replacement_seconds(memory))
    said = []
    for rank, finding in findings.items():
        seat, seen, ahead = seats[rank], members[rank], foreseen.get(rank)
        metrics = seen.metrics if seen is not None else None
        steps_left = _steps_left(metrics)
        said.append(
            Verdict(
                worker=seat.name,
                group=seat.group.name,
                grounds=finding.grounds,
                slowdown=finding.slowdown,
                since_step=max(seat.memory.evidence.since_step - 1, 0),
                cause=name_of(seat.memory.resource_use.cause),
                throttled=_per_step(metrics.cpu_throttled_seconds if metrics else None, metrics),
                waiting=_per_step(metrics.cpu_wait_seconds if metrics else None, metrics),
                remedy=best_remedy(ahead, steps_left, least_swap_gain=least_gain),
                outlooks=ahead,
                weighed=rank in slowdowns,
                budget=budget,
                replacement_pays=replacement_pays(ahead, steps_left, least_swap_gain=least_gain),
                hindrance=hindrance,
            )
        )
    return tuple(said)


def condition(job: Job, standing: Sequence[Verdict], *, steered: bool) -> tuple[Condition, ...]:
    """The condition about stragglers; `steered`: the workers are measured under a plan, so something can be said."""
    if not ACTIONS[job.stragglers.action].judges:
        return ()
    if standing:
        return (Condition("StragglersDetected", True, standing[0].grounds.value, summary(standing)),)
    if not steered:
        return (Condition("StragglersDetected", False, "NotTraining", "no worker is being measured"),)
    return (Condition("StragglersDetected", False, "AsFastAsExpected", "every worker is as fast as expected of it"),)


def _reading(seat: Seat, window: Estimate | None, evidence: Evidence) -> Reading:
    low, high = seat.bounds
    pinned = 0 < seat.batch <= low < high
    return Reading(seat.group.name, seat.group.device, seat.batch, window, seat.line, pinned, evidence)


def _at_new_limits(job: Job, before: Sequence[RememberedWorker], memory: Remembered) -> Remembered:
    """What is healthy, at CPU limits that have changed."""
    factor_of = predictor_of(job).factor_of_limits
    workers: list[RememberedWorker] | None = None
    for rank, (known, now) in enumerate(zip(before, memory.workers, strict=True)):
        old, new = known.step_time.cpu_limit, now.step_time.cpu_limit
        if old == new or old <= 0 or same_limit(old, new):
            continue
        elasticity = 1.0 if known.step_time.limit_change else known.step_time.elasticity
        limits = Limits(old, new, factor_of(old, new), elasticity)
        workers = list(memory.workers) if workers is None else workers
        workers[rank] = now._replace(evidence=resized(job.stragglers, now.evidence, limits))
    return memory if workers is None else replace(memory, workers=tuple(workers))


def replacement_seconds(memory: Remembered) -> float:
    """Standstill of the job for one replacement: of members that change while they train what such changes took, of
    others a whole start.
    """
    if memory.protocol >= MEMBERS_MAY_END:
        return memory.transitions.transition_seconds or ASSUMED_TRANSITION_SECONDS
    if 0 < memory.start.start_seconds <= GREATEST_RESTART_SECONDS:
        return memory.start.start_seconds
    return ASSUMED_RESTART_SECONDS


def _hindrance(job: Job, memory: Remembered) -> str:
    """Why the job's action can be taken on nobody, in words; empty if it can."""
    action = job.stragglers.action
    if not ACTIONS[action].changes_members:
        return ""
    if job.dry_run:
        return "dry run, nothing is done about it"
    if memory.protocol < MEMBERS_MAY_END:
        return "its group cannot change while it trains, so the batches are balanced and nothing else is done"
    if action == "Replace" and replacements_left(job, memory) == 0:
        return "no replacement is left, so the batches are balanced and nothing else is done"
    return ""


def replacements_left(job: Job, memory: Remembered) -> int:
    """How many more replacements may begin."""
    return max(job.stragglers.max_replacements - memory.remedies.replacements, 0)


def _steps_left(metrics: WorkerMetrics | None) -> int | None:
    if metrics is None or metrics.total_steps <= 0:
        return None
    return max(metrics.total_steps - metrics.step, 0)


def _per_step(seconds: float | None, metrics: WorkerMetrics | None) -> float | None:
    if seconds is None or metrics is None or not (0 <= seconds < math.inf and 1 <= metrics.steps < math.inf):
        return None
    return seconds / metrics.steps


_GROUNDS = {
    Grounds.ITSELF: "takes {slowdown} times as long as when it was healthy, at its present batch and CPU limit",
    Grounds.LEAST_BATCH: "takes {slowdown} times as long as the median, though it has the fewest samples it may have",
    Grounds.GROUP: "takes {slowdown} times as long for a sample as the median",
}


def sentence(verdict: Verdict) -> str:
    """One straggler: how slow, since when, what holds it back, and what would help."""
    slow = _GROUNDS[verdict.grounds].format(slowdown=f"{verdict.slowdown:.2g}")
    said = f"{verdict.worker} {slow}, since step {verdict.since_step}; {_cause(verdict)}; {_remedy_of(verdict)}"
    return f"{said}; {verdict.hindrance}" if verdict.hindrance else said


def summary(verdicts: Sequence[Verdict]) -> str:
    """All stragglers in one message: of one, all that is known of it."""
    if len(verdicts) == 1:
        return sentence(verdicts[0])
    slowest = max(verdicts, key=lambda verdict: verdict.slowdown)
    return f"{listed([verdict.worker for verdict in verdicts])}; the slowest: {sentence(slowest)}"


_CAUSES = {
    NAMES[Cause.CPU_LIMIT]: "its CPU limit holds it back for longer, though the limit has not changed",
    NAMES[Cause.NEIGHBOUR]: "it waits for a CPU that others use",
    NAMES[Cause.COMPUTATION]: "its steps take more CPU time",
    NAMES[Cause.SCRIPT]: "it computes no more and waits no longer for a CPU, so it waits for something of its own",
}


def _cause(verdict: Verdict) -> str:
    """What slows it, and the figures behind that as far as the kernel has them."""
    figures = [
        f"{duration(seconds)} of a step {what}"
        for seconds, what in ((verdict.throttled, "throttled"), (verdict.waiting, "waiting for a CPU"))
        if seconds is not None
    ]
    cause = _CAUSES.get(verdict.cause, "what slows it is not known")
    return f"{cause} ({', '.join(figures)})" if figures else cause


def _remedy_of(verdict: Verdict) -> str:
    ahead = verdict.outlooks
    if not verdict.weighed:
        return "what would help is worked out for slower stragglers"
    if ahead is None:
        return "too little is known of the others to say what would help"
    figures = _figures(ahead)
    left = verdict.budget.replacements_left
    return {
        Remedy.REBALANCE: f"rebalancing the batches helps: {figures}",
        Remedy.REPLACE: f"a replacement would help, of which {left} are left: {figures}, "
        f"for about {duration(ahead.replacement_seconds)} of standstill",
        Remedy.REMOVE: f"the others would be faster without it: {figures}",
        Remedy.IGNORE: f"nothing would help enough to repay it: {figures}",
    }[verdict.remedy]


def _figures(ahead: Outlooks) -> str:
    parts = [
        f"a step takes {duration(ahead.as_it_is)}",
        f"{duration(ahead.rebalanced)} rebalanced",
        f"{duration(ahead.replaced)} with a healthy replacement",
    ]
    if ahead.removed is not None:
        parts.append(f"{duration(ahead.removed)} without it")
    return ", ".join(parts)
