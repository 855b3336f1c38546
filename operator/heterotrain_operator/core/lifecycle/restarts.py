"""What a worker's end means: all start again from the checkpoint, later each time, and not for ever.

All of them, because the trainers re-join only at their start; one plan, one generation, one set of processes. And not
at all where the next try is sure to end in the same way, since it costs as much as one that is not.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from heterotrain_operator.core.facts import Facts, ended, failed, listed, vanished
from heterotrain_operator.core.lifecycle import hopeless
from heterotrain_operator.core.model import Decision, Event, Job, JobPhase, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE, decision, ending
from heterotrain_operator.core.prediction.memory_limit import after_out_of_memory
from heterotrain_operator.core.state import Memory

GREATEST_DELAY_SECONDS = 60.0
"""Longest wait before workers are created anew."""

STEADY_SECONDS = 600.0
"""After so long a generation has outlived what interrupted the ones before it, and the next interruption is a new one.
Source: the kubelet's, for containers that crash.
"""

EVIDENCE_SECONDS = 90.0
"""So long it may take until somebody shows who asked a worker to stop. A node that shuts down is `NotReady` only after
`node-monitor-grace-period`, 50 s, and whatever it takes to notice that.
"""

DESCRIBED = 3
"""Workers' ends that a message tells before it only counts them."""

SIGNAL_EXIT_BASE = 128
"""Exit codes above this tell a signal, by the convention of shells and container runtimes."""


def how_it_ended(worker: WorkerSeen) -> str:
    """One worker's end in words: its name, exit code or signal, and last words."""
    code = worker.exit_code
    if code is None and worker.node_lost:
        how = "is on a node that does not answer"
    elif code is None:
        how = "failed without an exit code" if ended(worker) else "is taken away"
    elif (name := _signal_name(code)) is not None:
        how = f"was killed by {name}"
    elif code == 0 and not worker.finished:
        how = "exited with code 0 before the job's last step"
    else:
        how = f"exited with code {code}"
    if worker.disrupted and ended(worker):
        how += " (disrupted from outside)"
    words = worker.message.strip()
    return f"{worker.name} {how}: {words}" if words else f"{worker.name} {how}"


def how_it_left(worker: WorkerSeen) -> str:
    """The same of one that is not there any more."""
    if ended(worker):
        return how_it_ended(worker)
    return f"{worker.name} was deleted: {worker.message}" if worker.message else f"{worker.name} was deleted"


def delay_seconds(restarts: int) -> float:
    """Wait before the workers of the n-th restart, whosever fault, are created: 0, 1, 2, 4, ... s, at most a minute."""
    if restarts <= 1:
        return 0.0
    return min(2.0 ** min(restarts - 2, 10), GREATEST_DELAY_SECONDS)


def after_fatal(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory] | None:
    """A worker said at its end that no other try may be made: the job has failed, whatever else ended, whosever fault
    that was, and whatever restarts are left. None if no worker did.
    """
    gone = [worker for worker in facts.departed.values() if failed(worker)]
    ends = [how_it_left(worker) for worker in (*facts.failed, *gone) if worker.fatal]
    if not ends:
        return None
    return ending(job, facts, memory, now, outcome="Failed", code="WorkerFailedForGood", message=_told(ends))


def after_failures(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """Workers ended that should not have: start all again, unless no restart can help.

    It counts as a restart unless any worker was, or is being, taken away, or has vanished: what the others ended of
    is then a consequence, and may show before the cause does.
    """
    taken = tuple(worker for worker in facts.live if _external(worker))
    failures = (*facts.failed, *taken)
    memory, smaller = after_out_of_memory(job, facts, memory)
    causes = sorted(failures, key=_unlikeliness)
    message = _told([how_it_ended(worker) for worker in causes])
    if smaller:
        message = f"{message}; {smaller}"
    if gone := vanished(facts):
        message = f"{_departures(facts, gone)}; {message}"
    external = bool(gone) or _external(causes[0])
    if not external and causes[0].asked_to_stop:
        reason = f"{message}; waiting {EVIDENCE_SECONDS:g} s for a sign of who asked"
        waiting = _waited(job, facts, memory, now, EVIDENCE_SECONDS, "AskedToStop", reason)
        if waiting is not None:
            return waiting
    if not external:
        raised = _script_error_step(failures)
        certain = _never_joined(facts, memory) or _script_failed(job, memory, raised, message)
        certain = certain or _no_other_end(job, facts, memory)
        if certain is not None:
            code, why = certain
            return ending(job, facts, memory, now, outcome="Failed", code=code, message=why)
        if hopeless.may_be_all(facts, memory):
            reason = f"{message}; waiting whether the others end alike"
            waiting = _waited(job, facts, memory, now, hopeless.WITNESS_SECONDS, "WorkerFailed", reason)
            if waiting is not None:
                return waiting
        if raised is not None:
            memory = replace(memory, script_error_step=max(raised, memory.progress_step))
    code = "WorkerDisrupted" if external else "WorkerFailed"
    return restart(job, facts, memory, now, code=code, message=message, counts=not external)


def after_departures(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory]:
    """Members of the plan are not there any more: start all anew. Workers do not remove themselves, so it does not
    count.
    """
    gone = vanished(facts)
    code = "WorkerDisrupted" if all(name in facts.departed for name in gone) else "WorkerVanished"
    return restart(job, facts, memory, now, code=code, message=_departures(facts, gone), counts=False)


def restart(
    job: Job, facts: Facts, memory: Memory, now: float, *, code: str, message: str, counts: bool
) -> tuple[Decision, Memory]:
    """Delete all workers, to be created anew after a delay; beyond `backoff_limit` the job fails instead."""
    message = message[:LONGEST_MESSAGE]
    cause = Event("Warning" if counts else "Normal", code, message)
    if counts and memory.restarts >= job.backoff_limit:
        plural = "" if job.backoff_limit == 1 else "s"
        why = f"{message} (after {memory.restarts} of {job.backoff_limit} restart{plural})"
        final, memory = ending(job, facts, memory, now, outcome="Failed", code="BackoffLimitExceeded", message=why)
        return replace(final, events=(cause, *final.events)), memory
    restarts = memory.restarts + counts
    interruptions = (0 if _was_steady(memory, now) else memory.interruptions) + (not counts)
    delay = delay_seconds(restarts + interruptions)
    number = f"restart {restarts} of {job.backoff_limit}" if counts else "not counted as a restart"
    reason = f"{message}; all workers start anew in {delay:g} s ({number})"
    memory = replace(
        memory,
        restarts=restarts,
        interruptions=interruptions,
        unexplained_at=None,
        generation_at=None,
        draining=True,
        restart_at=now + delay,
        starting_at=now + delay,
        pods_created_at=None,
        reason=code,
        message=message,
    )
    restarting = Event("Normal", "RestartingWorkers", reason)
    return decision(job, "Restarting", code, reason, delete=facts.names, events=(cause, restarting)), memory


def still_draining(job: Job, facts: Facts, memory: Memory, now: float) -> tuple[Decision, Memory] | None:
    """Go on deleting, or wait for the moment to create anew; None once that has come."""
    # A job that was suspended meanwhile begins to wait when it is resumed.
    starting_at = max((since for since in (memory.starting_at, memory.started_at) if since is not None), default=now)
    if facts.names:
        if now - starting_at > job.startup_deadline_seconds:
            why = (
                f"{listed(facts.names)} did not go away within {job.startup_deadline_seconds:g} s of being "
                f"deleted ({memory.message})"
            )
            return ending(job, facts, memory, now, outcome="Failed", code="StartupDeadlineExceeded", message=why)
        reason = f"{memory.message}; waiting for {listed(facts.names)} to go away"
        return decision(job, "Restarting", memory.reason, reason, delete=facts.names), memory
    if memory.restart_at is not None and now < memory.restart_at:
        reason = f"{memory.message}; workers start anew in {memory.restart_at - now:.1f} s"
        return decision(job, "Restarting", memory.reason, reason), memory
    return None


def _departures(facts: Facts, gone: Sequence[str]) -> str:
    """How those that are not there any more left, as far as that was seen."""
    unseen = [name for name in gone if name not in facts.departed]
    told = [how_it_left(facts.departed[name]) for name in gone if name in facts.departed]
    return "; ".join(filter(None, [_told(told), f"{listed(unseen)} vanished" if unseen else ""]))


def _told(descriptions: Sequence[str]) -> str:
    """The first few of them."""
    more = len(descriptions) - DESCRIBED
    return "; ".join(descriptions[:DESCRIBED]) + (f"; and {more} more" if more > 0 else "")


def _unlikeliness(worker: WorkerSeen) -> tuple[bool, bool, bool, bool]:
    """Sorts ends so that the likeliest cause is first: a signal is likelier than leaving in order, that than an exit,
    and of exits the script's own error, since any other may be a survivor's of a broken collective.
    """
    killed = _signal_name(worker.exit_code) is not None and not worker.asked_to_stop
    return not _external(worker), not killed, not worker.asked_to_stop, not worker.script_error


def _waited(  # noqa: PLR0917 - as all of a decision
    job: Job, facts: Facts, memory: Memory, now: float, patience_seconds: float, code: str, reason: str
) -> tuple[Decision, Memory] | None:
    """Do nothing yet about workers that ended; None once the patience since the first of them is over."""
    since = now if memory.unexplained_at is None else memory.unexplained_at
    if now - since >= patience_seconds:
        return None
    phase: JobPhase = "Running" if any(facts.members) else "Restarting" if memory.generation > 0 else "Created"
    return decision(job, phase, code, reason), replace(memory, unexplained_at=since)


def _no_other_end(job: Job, facts: Facts, memory: Memory) -> tuple[str, str] | None:
    """Code and message if workers that have never trained ended as they would at every try."""
    if not hopeless.never_trained(memory):
        return None
    lacking = hopeless.without_device(facts.failed)
    if lacking:
        return "DeviceMissing", lacking
    if not (hopeless.alike(facts.failed, memory) and hopeless.is_proof(job, facts.failed)):
        return None
    who = "the only worker" if len(facts.failed) == 1 else f"all {len(facts.failed)} workers"
    return "WorkersFailedAlike", f"{who} ended in the same way before the first step: {how_it_ended(facts.failed[0])}"


def _never_joined(facts: Facts, memory: Memory) -> tuple[str, str] | None:
    """Code and message if a worker ended well in silence and was no member of a plan, as one is that joins."""
    if facts.plan is None and memory.plan_version > 0:
        return None  # who was a member is not known
    joined = {worker.uid for worker in facts.members if worker is not None}
    silent = [
        f"{worker.name} exited with code 0 and never joined"
        for worker in facts.failed
        if worker.exit_code == 0 and not worker.message.strip() and worker.uid not in joined
    ]
    return ("NeverJoined", f"{_told(silent)}: the script does not call heterotrain.join()") if silent else None


def _script_error_step(failures: Sequence[WorkerSeen]) -> int | None:
    """After how many committed steps the script raised; None if it did not, or may have because of another's end."""
    if any(worker.out_of_memory or _signal_name(worker.exit_code) is not None for worker in failures):
        return None
    return max((worker.step for worker in failures if worker.script_error), default=None)


def _script_failed(job: Job, memory: Memory, step: int | None, message: str) -> tuple[str, str] | None:
    """Code and message if the script's error at that step is one that it would raise again: the steps up to it are the
    same each time, and a fault that passes does so with one restart.
    """
    if step is None:
        return None
    if not job.resumable:
        why = f"the script raised at step {step}, and without spec.checkpoint.path a restart begins at step 0"
    elif step == memory.script_error_step:
        why = f"the script raised the same at step {step} after a restart"
    elif step < memory.script_error_step:
        before = f"no further than before (step {memory.script_error_step})"
        why = f"the script raised at step {step} after a restart, {before}"
    else:
        return None
    return "ScriptFailed", f"{why}: {message}"


def _was_steady(memory: Memory, now: float) -> bool:
    """Whether the generation that ends has trained for so long that what ended the one before is no matter any more."""
    return memory.generation_at is not None and now - memory.generation_at >= STEADY_SECONDS


def _external(worker: WorkerSeen) -> bool:
    return worker.disrupted or worker.node_lost or worker.deleting_since is not None


def _signal_name(exit_code: int | None) -> str | None:
    """The signal that an exit code tells: negative of a child process, 128 and more of a container."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - SIGNAL_EXIT_BASE
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None
