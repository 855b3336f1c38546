"""Progress of a job: which workers are silent, which hang, and for how long that is tolerated.

A worker that waits in a collective is held up, not hung; whoever is not in one holds the others up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heterotrain.contract import PHASE_FINISHED
from heterotrain_operator.core.facts import Facts, listed
from heterotrain_operator.core.lifecycle.following import STEPPING_PHASES, outsiders
from heterotrain_operator.core.lifecycle.responses import Incident, respond
from heterotrain_operator.core.model import Decision, Event, Job, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS
from heterotrain_operator.core.remembered.job import Progress, Resumed
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered

States = Mapping[str, WorkerState]
"""Of the members, by name."""

SLOW_STEPS = 20
"""Slow steps (about the 99th percentile) without progress before a worker counts as hung."""

WAY_OUT = 'long work between steps belongs inside `with session.pause("..."):`'
"""What a script can do so that it does not count as hung."""

NORMAL_99TH = 2.33
"""Standard deviations above the mean of the 99th percentile of a normal distribution."""


def observed(facts: Facts, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> Remembered:
    """Remember the newest committed step, whether any was committed since the workers started, pauses, the time of a
    slow step, and since when each silent worker has been silent. A newcomer that has not joined yet counts as no pause.
    """
    states, coming = facts.states, outsiders(facts, memory)
    read = [(m.name, m.metrics) for m in members if m.metrics is not None and states[m.name] is not WorkerState.GONE]
    readable = [metrics for _, metrics in read]
    server = facts.server.metrics if facts.server is not None else None
    all_read = readable if server is None else [*readable, server]
    step = max((metrics.step for metrics in all_read), default=-1)
    pausing = any(metrics.phase not in STEPPING_PHASES for name, metrics in read if name not in coming)
    pausing = pausing or (server is not None and server.phase not in STEPPING_PHASES)
    slow = max((_slow_step_seconds(metrics) for metrics in readable), default=0.0)
    before = memory.progress
    progress_at = before.progress_at if before.progress_at is not None else now
    advanced_at = before.advanced_at if before.advanced_at is not None else now
    if step > before.progress_step:
        progress_at = advanced_at = now
    elif before.between_steps != pausing:
        # A pause has its own time, and was no lack of progress; the next step gets its whole time.
        progress_at = now
    # Before its first step a worker reads the checkpoint, which says how far the job has come, in a declared pause.
    advanced = step > before.progress_step >= 0 and not before.between_steps
    measured = any(metrics.steps >= 1 and metrics.generation == memory.generation for metrics in readable)
    after = Progress(
        progress_step=max(step, before.progress_step),
        progress_at=progress_at,
        advanced_at=advanced_at,
        between_steps=pausing,
        stepped=before.stepped or advanced or measured,
        slow_step_seconds=slow or before.slow_step_seconds,
    )
    return replace(memory, progress=after, workers=_with_silences(members, states, memory, now))


def taken_over(members: Sequence[WorkerSeen], memory: Remembered) -> tuple[Remembered, Event | None]:
    """Remember, and report once, that training has gone on from what an earlier job of this name left."""
    found = [m.metrics for m in members if m.metrics is not None and m.metrics.resumed_step is not None]
    if not found or found[0].resumed_step is None or memory.resumed.resumed_step >= 0:
        return memory, None
    step, uid = found[0].resumed_step, found[0].resumed_from
    whose = f"of the UID {uid}" if uid else "which does not say its UID"
    message = (
        f"training goes on at step {step}, from a checkpoint of an earlier job {whose}; to begin again under this "
        "name, set spec.checkpoint.resume: Never"
    )
    return replace(memory, resumed=Resumed(step, uid)), Event("Normal", "ResumedFromEarlierJob", message)


def all_silent(members: Sequence[WorkerSeen], states: States) -> str:
    """That of several running workers not one can be read, in words; empty otherwise.

    Metrics are served beside the training, so all at once fall silent when the way to them is cut, not when
    they hang.
    """
    alive = [worker for worker in members if states[worker.name] is not WorkerState.GONE]
    if len(alive) < 2 or any(worker.metrics is not None for worker in alive):
        return ""
    return f"metrics of none of the {len(alive)} workers can be read"


def held(members: Sequence[WorkerSeen], states: States, memory: Remembered, now: float) -> Remembered:
    """Memory of a time in which progress could not be seen: that time counts against no worker."""
    unseen = replace(memory.progress, progress_at=now, advanced_at=now)
    return replace(memory, progress=unseen, workers=_with_silences(members, states, memory, now))


def silent(job: Job, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> str:
    """Which workers have stopped answering, in words; empty if all answer."""
    names = _silent_for_long(job, members, memory, now)
    quiet = [
        f"{worker.name} ({now - known.silent_since:.0f} s)"
        for worker, known in zip(members, memory.workers, strict=True)
        if worker.name in names
    ]
    return f"metrics cannot be read of {listed(quiet)}" if quiet else ""


def _silent_for_long(job: Job, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> set[str]:
    return {
        worker.name
        for worker, known in zip(members, memory.workers, strict=True)
        if known.silent_since > 0 and now - known.silent_since >= job.heartbeat_timeout_seconds
    }


@dataclass(frozen=True, slots=True)
class Hang:
    """Who hangs and for how long, in words; and, by name, those that are seen to: they have answered nothing for long
    while others do, or say that they train and wait for nobody. Others may still answer a request to end.
    """

    message: str
    seen: tuple[str, ...]


def hung(job: Job, facts: Facts, members: Sequence[WorkerSeen], memory: Remembered, now: float) -> Hang | None:
    """Who hangs; None while the patience lasts. A newcomer that has not joined yet holds nobody up.

    Patience without a committed step is `max(progress_timeout, 20 * (mean + 2.33 std) of the step)`; in a declared
    pause, and for the first step of workers that started, in which much is compiled and loaded, it is the startup
    deadline if that is longer; and pauses altogether cannot stretch it beyond their sum.
    """
    known = memory.progress
    if known.progress_at is None or known.advanced_at is None:
        return None
    patience = max(job.progress_timeout_seconds, SLOW_STEPS * known.slow_step_seconds)
    longest = max(patience, job.startup_deadline_seconds)
    limit = longest if known.between_steps or not known.stepped else patience
    idle, stalled = now - known.progress_at, now - known.advanced_at
    if idle <= limit and stalled <= patience + longest:
        return None
    coming = outsiders(facts, memory)
    alive = [worker for worker in members if facts.states[worker.name] is not WorkerState.GONE]
    alive = [worker for worker in alive if worker.name not in coming] or alive
    # Its parameter server waits for updates while workers compute; those who wait for it are held up.
    culprits = [worker for worker in (*alive, facts.server) if worker is not None and _holds_up(worker)]
    named = [_last_known(worker) for worker in culprits or alive]
    waited = f"no step was committed for {stalled:.0f} s (patience {limit:.0f} s)"
    message = f"{waited}: {listed(named)} {'hangs' if len(named) == 1 else 'hang'}; {WAY_OUT}"
    quiet = _silent_for_long(job, members, memory, now) if any(each.metrics is not None for each in alive) else set()
    seen = [
        each.name
        for each in culprits
        if (each.name in quiet if each.metrics is None else each.metrics.phase in STEPPING_PHASES)
    ]
    return Hang(message, tuple(seen))


def _holds_up(worker: WorkerSeen) -> bool:
    metrics = worker.metrics
    return metrics is None or not (metrics.in_collective or metrics.phase == PHASE_FINISHED)


def _last_known(worker: WorkerSeen) -> str:
    if worker.metrics is None:
        return f"{worker.name} (metrics unreadable)"
    return f"{worker.name} ({worker.metrics.phase or 'phase unknown'}, step {worker.metrics.step})"


def _with_silences(
    members: Sequence[WorkerSeen], states: States, memory: Remembered, now: float
) -> tuple[RememberedWorker, ...]:
    each = zip(members, memory.workers, strict=True)
    return tuple([_with_silence(seen, states, known, now) for seen, known in each])


def _with_silence(worker: WorkerSeen, states: States, known: RememberedWorker, now: float) -> RememberedWorker:
    if worker.metrics is not None or states[worker.name] is WorkerState.GONE:
        return known._replace(silent_since=0.0) if known.silent_since else known
    return known if known.silent_since > 0 else known._replace(silent_since=now)


def _slow_step_seconds(metrics: WorkerMetrics) -> float:
    """About the 99th percentile of this worker's step; 0 if its counters do not show it."""
    if not metrics.steps >= 1 or not math.isfinite(metrics.steps):
        return 0.0
    steps, own = metrics.steps, metrics.own_seconds
    mean = (own + metrics.wait_seconds) / steps
    own /= steps
    spread = metrics.own_seconds_squared / steps - own * own
    if not (0 < mean <= ABSURD_SECONDS and math.isfinite(spread)):
        return 0.0
    slow = mean + NORMAL_99TH * math.sqrt(spread) if spread > 0 else mean
    return slow if slow < ABSURD_SECONDS else ABSURD_SECONDS


def after_hang(
    job: Job, facts: Facts, members: Sequence[WorkerSeen], memory: Remembered, now: float
) -> tuple[Decision, Remembered] | None:
    """What is done about members of which some hang; None if none does, or nothing is done about it."""
    hang = hung(job, facts, members, memory, now)
    if hang is None:
        return None
    response = respond(job, facts, memory, now, incident=Incident.WORKER_HUNG, message=hang.message)
    if response is None:
        return None
    decided, memory = response
    return replace(decided, short_grace=hang.seen), memory
