"""Close workers' windows: what steps since the last decision say of their own time, their speed and their memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from heterotrain.contract import Plan
from heterotrain_operator.core.batching.asking import windows_kept
from heterotrain_operator.core.batching.looking_ahead import Lesson, studied
from heterotrain_operator.core.batching.quorum import with_few_steps
from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import groups_on_cpu
from heterotrain_operator.core.model import Event, Job, WorkerMetrics
from heterotrain_operator.core.prediction import Predictor, predictor_of
from heterotrain_operator.core.prediction.causes import held_back, remembered, shows_another_speed, window_closed
from heterotrain_operator.core.prediction.jumps import (
    ASIDE_DEVIATIONS,
    JUMP_DEVIATIONS,
    Moved,
    Pair,
    caution_of,
    is_another_speed,
    moved,
    share_of,
    shared_by_moved,
    shared_change,
    side_of,
    surprise_of,
)
from heterotrain_operator.core.prediction.memory_model import with_peak
from heterotrain_operator.core.prediction.relapses import LASTS, TURN
from heterotrain_operator.core.prediction.resource_use import ResourceUse, spent_in, uncounted
from heterotrain_operator.core.prediction.roughness import (
    DRIFT_HISTORY,
    FIRST,
    TREND,
    WINDOWS,
    Roughness,
    error_of_averages,
    history_of,
    persistence_after,
    roughness_after,
    trend_after,
)
from heterotrain_operator.core.prediction.series import window_seen
from heterotrain_operator.core.prediction.step_time import (
    EXPECTED,
    JUMPED,
    MEASURED,
    NO_LESS,
    NO_MORE,
    Estimate,
    StepTime,
    after_window,
    counted,
    window_of,
)
from heterotrain_operator.core.remembered.batching import Promises
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered

PINNED_WINDOWS = 3
"""Windows of a plan after which what changes is the worker's speed, and not what was learned of the batch's cost."""


class _Taken(NamedTuple):
    """A window and the estimate with it, the estimate or expectation `before`, and whether the worker's speed jumped.

    `aside` is the side of a window that is not in the estimate, since only the next one can tell whether it is noise or
    another speed. `surprise` is None where there is nothing to compare the window with; `trend` is the worker's own, in
    hundredths, and `drifts` whether it shows that the speed changes under the active plan, whose batch stays. `use` is
    what is remembered of its use of the CPU then, and `why` says why it jumped; empty if nobody can say. Where it is
    `held_otherwise` than before, how its windows varied till then says nothing of the next ones. By `shared` times its
    steps take longer since most workers' do.
    """

    window: Estimate
    before: Estimate | None
    estimate: Estimate
    jumped: bool
    aside: int
    surprise: float | None
    trend: float
    drifts: bool
    use: ResourceUse
    why: str
    held_otherwise: bool
    shared: float

    @property
    def turn(self) -> float:
        """By what factor its steps take longer since its speed jumped; 1 where it did not."""
        if not self.jumped or self.before is None:
            return 1.0
        return self.estimate.mean_seconds / self.before.mean_seconds


def measured(
    job: Job, plan: Plan, metrics: Sequence[WorkerMetrics | None], memory: Remembered, *, early: bool
) -> tuple[Remembered, list[Estimate | None], list[str], tuple[Event, ...]]:
    """Close everybody's window: estimates followed, windows by rank, remarks on what was ignored or jumped, and what is
    worth telling of predictors.
    """
    persistence = memory.roughness.persistence
    # Roughness is that of long averages, and one window is less uncertain; but of many workers one may differ far.
    excess = max(error_of_averages(persistence), 1.0) / caution_of(len(plan.members))
    known, history = memory.workers, history_of(persistence)
    predictor, on_cpu, kept = predictor_of(job), groups_on_cpu(job), windows_kept(job)
    found = [
        window_of(worker.step_time, counters) if counters is not None and member.batch_size > 0 else None
        for member, counters, worker in zip(plan.members, metrics, known, strict=True)
    ]
    if early:
        found = with_few_steps(found, known)
    shared = _shared(plan, known, found)
    taken = [
        _taken(
            predictor,
            worker,
            counters,
            window,
            history=history,
            excess=excess,
            shared=shared,
            on_cpu=member.group in on_cpu,
        )
        if isinstance(window, Estimate) and counters is not None
        else None
        for member, counters, worker, window in zip(plan.members, metrics, known, found, strict=True)
    ]
    memory, rough = _with_surprises(memory, taken)
    first = any(each is not None and worker.step_time.is_expected for worker, each in zip(known, taken, strict=True))
    if shared != 1 and not first:  # what a plan's first windows share, the plan may have made
        memory = replace(memory, promises=memory.promises.scaled(shared))
    if shared != 1:
        memory = replace(memory, whole_steps=memory.whole_steps.restarted())
    turned = sum([each is not None and each.turn >= TURN for each in taken])
    workers: list[RememberedWorker] = []
    remarks: list[str] = []
    lessons: list[Lesson] = []
    for rank, (member, counters, worker, each) in enumerate(zip(plan.members, metrics, known, taken, strict=True)):
        if each is not None and counters is not None:
            after = _after_window(predictor, member.batch_size, counters, worker, each, rough=rough.get(rank))
            if kept:
                limit = worker.step_time.cpu_limit or counters.cpu_limit
                newest = window_seen(worker.resource_use, counters, each.window, member.batch_size, limit)
                after = after._replace(series=worker.series.followed_by(newest, kept))
                if predictor.ahead is not None:
                    lessons.append(Lesson(member.group, worker, newest, each.estimate))
            if each.turn >= TURN:
                after = after._replace(relapses=after.relapses._replace(together=turned))
            elif after.relapses.together:
                step, interval = memory.progress.progress_step, job.interval
                after = _after_turn(predictor, member.batch_size, after, each, step=step, interval=interval)
            workers.append(after)
            if (each.jumped or each.why) and each.before is not None:
                was, now = duration(each.before.mean_seconds), duration(each.window.mean_seconds)
                remarks.append(f"{member.name} went from {was} to {now}{each.why and f': {each.why}'}")
        elif counters is not None:
            workers.append(_without_window(counters, worker))
            if isinstance(fault := found[rank], str):
                remarks.append(f"ignored the window of {member.name}: {fault}")
        else:
            workers.append(worker)
    turn = max(memory.progress.progress_step, 0) // max(job.interval, 1)
    learned, events = studied(predictor, memory.learned, lessons, turn)
    memory = replace(memory, learned=learned) if lessons else memory
    if any(each is not None and each.jumped for each in taken):
        memory = replace(memory, promises=Promises(), whole_steps=memory.whole_steps.restarted())
    # Of a window in which the speed jumped, the steps at the new one tell how slow a worker is.
    windows = [each and (each.estimate if each.jumped else each.window) for each in taken]
    return replace(memory, workers=tuple(workers)), windows, remarks, events


def _shared(plan: Plan, workers: Sequence[RememberedWorker], found: Sequence[Estimate | str | None]) -> float:
    """By how many times longer most workers' steps take than in their windows before; 1 where nothing shows it. Those
    count whose limit and batch are what they were, or nearly, if they are half of all: a few that noise slows alike
    would else move what is expected of everybody. If they are not, those whose batches were moved show it together.
    """
    alike: list[Pair] = []
    moves: list[Moved] = []
    for member, worker, window in zip(plan.members, workers, found, strict=True):
        known, before = worker.step_time, worker.step_time.before
        if before is None or not isinstance(window, Estimate) or known.limit_change:
            continue
        if not known.basis & EXPECTED or known.basis & (NO_MORE | NO_LESS):
            alike.append((before, window))
        elif known.batch_before > 0:
            moves.append(moved(member.batch_size / known.batch_before, before, window))
    working = sum(member.batch_size > 0 for member in plan.members)
    if 2 * len(alike) >= working:
        return shared_change(alike)
    return shared_by_moved(moves, alike)


def _taken(
    predictor: Predictor,
    worker: RememberedWorker,
    counters: WorkerMetrics,
    window: Estimate,
    *,
    history: float,
    excess: float,
    shared: float,
    on_cpu: bool,
) -> _Taken:
    known, before = worker.step_time, worker.step_time.before
    shared = share_of(before, window, shared) if before is not None and not known.limit_change else 1.0
    present = before if before is None or shared == 1 else before.scaled(shared)
    is_measured = not known.basis & EXPECTED
    is_at_new_batch = present is None or (not is_measured and not is_another_speed(known.basis, present, window))
    surprise, trend, drifts = None, known.trend / 100, False
    if present is not None and is_measured and not known.limit_change:
        surprise = surprise_of(present, window)
        trend = trend_after(trend, surprise / math.sqrt(present.inflation))
        drifts = abs(trend) > TREND
        if drifts:
            history, surprise = DRIFT_HISTORY, None  # what drifts is no noise
    use, limit = worker.resource_use, known.cpu_limit
    held = held_back(spent_in(use, counters, window), window, limit) if on_cpu else 0.0
    held_otherwise = (
        before is not None
        and not known.limit_change
        and shows_another_speed(
            use,
            held,
            ratio=window.mean_seconds / before.mean_seconds,
            cpu_limit=limit,
            threads=counters.computing_threads,
            at_new_batch=is_at_new_batch,
        )
    )
    deviations = JUMP_DEVIATIONS / excess
    side = 0
    if present is not None and is_measured and not known.limit_change and not held_otherwise:
        side = side_of(present, window, ASIDE_DEVIATIONS / excess)
    again = known.basis & side > 0
    estimate, differs = predictor.follow(present, window, history, 0.0 if held_otherwise or again else deviations)
    aside = 0 if differs or again else side
    if aside and present is not None:
        estimate = present
    # What all slows may have a cause that every worker's counters name.
    stands_out = differs or (
        shared != 1 and before is not None and predictor.follow(before, window, history, deviations)[1]
    )
    after, why = window_closed(
        use,
        counters,
        window,
        before=before,
        jumped=stands_out,
        at_new_batch=is_at_new_batch,
        on_cpu=on_cpu,
        held_otherwise=held_otherwise,
        cpu_limit=limit,
    )
    # A plan's first window that differs shows the cost of another batch, unless what it spent shows another speed.
    jumped = differs and (bool(why) or not is_at_new_batch)
    use = remembered(use, after, held, jumped=jumped or (stands_out and not is_at_new_batch))
    if differs:
        trend = 0.0
    if differs or held_otherwise:
        surprise = None  # what is explained is no noise
    held_otherwise = held_otherwise and jumped
    return _Taken(
        window, before, estimate, jumped, aside, surprise, 100 * trend, drifts, use, why, held_otherwise, shared
    )


def _with_surprises(
    memory: Remembered, taken: Sequence[_Taken | None]
) -> tuple[Remembered, dict[int, tuple[float, float]]]:
    """What these windows, by rank, say of how rough windows are: the memory with what they have in common, and by rank
    the roughness and the surprise of workers, as their own times have them.
    """
    known: list[StepTime] = []
    surprises: dict[int, float] = {}
    for rank, (worker, each) in enumerate(zip(memory.workers, taken, strict=True)):
        if each is not None and each.surprise is not None:
            known.append(worker.step_time)
            surprises[rank] = each.surprise
    if not surprises:
        return memory, {}
    newest = list(surprises.values())
    windows, before = memory.roughness.windows, [each.surprise / 10 for each in known]
    persistence = persistence_after(memory.roughness.persistence, windows, newest, before)
    rough = roughness_after([each.roughness / 100 for each in known], persistence, windows, newest)
    memory = replace(memory, roughness=Roughness(min(windows + 1, WINDOWS), persistence))
    return memory, {
        rank: (100 * roughness, 10 * surprise)
        for (rank, surprise), roughness in zip(surprises.items(), rough, strict=True)
    }


def _after_window(
    predictor: Predictor,
    batch: int,
    counters: WorkerMetrics,
    worker: RememberedWorker,
    taken: _Taken,
    *,
    rough: tuple[float, float] | None,
) -> RememberedWorker:
    """The worker after a window. `rough` is None of one that had nothing to compare the window with."""
    time, cost, cap = worker.step_time, worker.batch_cost, worker.throughput_cap
    window, estimate, before = taken.window, taken.estimate, taken.before
    pinned = rough is not None and before is not None and before.steps >= PINNED_WINDOWS * window.steps
    if before is not None and (taken.jumped or pinned or taken.drifts):
        cost = cost.scaled(estimate.mean_seconds / before.mean_seconds)
    elif taken.shared != 1:
        cost = cost.scaled(taken.shared)
    if taken.jumped or taken.shared != 1:
        cap = cap.unwatched()
    if time.limit_change:
        time = after_window(time, before or predictor.expected(worker.batch_cost, batch, window.steps), window)
    if taken.held_otherwise:
        time = time._replace(roughness=min(time.roughness, 100 * FIRST))
    basis = JUMPED if taken.jumped else MEASURED + taken.aside
    time = counted(time, counters, estimate, rough, basis, trend=taken.trend)
    return worker.measured(time, cost, with_peak(worker.memory_use, counters), cap, taken.use)


def _after_turn(
    predictor: Predictor, batch: int, worker: RememberedWorker, taken: _Taken, *, step: int, interval: int
) -> RememberedWorker:
    """A worker that had turned slow in the window before this one, which shows whether that lasts."""
    known, before = worker.relapses, taken.before
    if before is None or taken.window.mean_seconds < LASTS * before.mean_seconds:
        return worker._replace(relapses=known._replace(together=0))
    slow_seconds = known.slow_at(predictor, worker.batch_cost, batch, taken.estimate)
    lasted = known.lasted(taken.estimate, batch, slow_seconds, step=max(step, 0), interval=interval)
    return worker._replace(relapses=lasted)


def _without_window(counters: WorkerMetrics, worker: RememberedWorker) -> RememberedWorker:
    """A worker whose steps say nothing of its own time; the next window begins here."""
    return worker._replace(
        step_time=counted(worker.step_time, counters),
        memory_use=with_peak(worker.memory_use, counters),
        resource_use=uncounted(worker.resource_use, counters),
    )
