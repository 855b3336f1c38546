"""The end of a job, from its last step on: whose ends make it a success, and how long they may take.

The leader does what one worker alone does after the loop: it saves the model, exports it, tests it. So a job succeeds
when its leader has ended with exit code 0, and every other member has, or was let go: it left, was taken away, or the
others had gone on without it. Nobody starts again after the last step, since that work would be done twice, or, where
it is a part of the loop, never. It has a limit of its own instead.

Who led is known from last words alone: a leader that is lost in training is no obstacle to the next one's success, and
one that is lost a moment later, when the others have finished, has left its work undone. A worker writes its last words
when its last step is committed, so that they speak for it even if it is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from heterotrain.contract import EXIT_PREEMPTED, MEMBERS_MAY_END, PHASE_FINISHED
from heterotrain_operator.core.facts import Facts, ended, failed, listed
from heterotrain_operator.core.lifecycle.ends import described_departure, has_left, is_external
from heterotrain_operator.core.lifecycle.following import has_trained, outsiders
from heterotrain_operator.core.model import Decision, Job, WorkerSeen
from heterotrain_operator.core.outcomes import ending
from heterotrain_operator.core.state import Remembered

FAILED_AFTER_TRAINING = "FailedAfterTraining"
"""Why a job has failed whose last step is committed."""


def noted(facts: Facts, memory: Remembered, now: float) -> Remembered:
    """The memory in which it is known since when the last step is committed, and whether the leader has ended well."""
    before = memory.finish
    past = [worker for worker in _everybody(facts, memory) if is_past(worker)]
    if not past and not before.ending:
        return memory
    steps = [worker.step if ended(worker) or worker.metrics is None else worker.metrics.step for worker in past]
    finish = replace(
        before,
        finished_at=now if before.finished_at is None else before.finished_at,
        last_step=max([before.last_step, *steps]),
        ending=before.ending or _leader_has_finished(facts, memory, past),
    )
    return memory if finish == before else replace(memory, finish=finish)


def is_past(worker: WorkerSeen) -> bool:
    """Whether a worker shows that it has committed the job's last step."""
    if ended(worker):
        return worker.finished
    return worker.metrics is not None and worker.metrics.phase == PHASE_FINISHED


def is_committed(memory: Remembered) -> bool:
    """Whether the job's last step is committed, of the memory that `noted` has given."""
    return memory.finish.finished_at is not None


def judged(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
    """The end of a job whose last step is committed; None if it is not, or as long as its script runs and may."""
    finish = memory.finish
    if finish.finished_at is None:
        return None
    everybody = _everybody(facts, memory)
    failures = [worker for worker in everybody if _failed_afterwards(facts, memory, worker)]
    led = [worker for worker in failures if worker.leader]
    if led or (failures and finish.ending):  # who leads may do its work to the end, whatever becomes of the others
        [worker, *_] = led or failures
        return _failed(job, facts, memory, now, (worker.name, described_departure(worker)))
    running = awaited(facts, memory)
    lost: list[str] = []
    if facts.server is not None and finish.ending and now - finish.finished_at > job.progress_timeout_seconds:
        # Who had lost the server before its end looks for one that will not come.
        lost = [worker.name for worker in everybody if worker.name in running and not is_past(worker)]
        running = [name for name in running if name not in lost]
    if running and now - finish.finished_at > job.finish_deadline_seconds:
        message = (
            f"training finished at step {finish.last_step}, but the script did not end within "
            f"{job.finish_deadline_seconds:g} s (runPolicy.finishDeadlineSeconds) on {listed(running)}"
        )
        return ending(job, facts, memory, now, outcome="Failed", code="FinishDeadlineExceeded", message=message)
    if running:
        return None
    if not finish.ending:  # whoever led is among those that were lost
        return _failed(job, facts, memory, now, next(_lost(facts), None))
    done = len(facts.finished)
    who = "the only worker" if done == 1 else f"all {done} workers"
    before = [worker for worker in facts.failed if not worker.finished and not _was_let_go(worker)]
    if before or lost:  # perhaps so near to the end that nothing has been said of it
        who = f"{done} of {done + len(before) + len(lost)} workers"
    said = [*map(described_departure, before), *(f"{name} had lost the parameter server" for name in lost)]
    message = "; ".join([f"{who} finished the job's last step", *said])
    return ending(job, facts, memory, now, outcome="Succeeded", code="JobSucceeded", message=message)


def awaited(facts: Facts, memory: Remembered) -> list[str]:
    """Members, by name, whose ends the job waits for, once its last step is committed: not those that were to join and
    are too late, nor, once the leader has ended well, those on nodes that do not answer.
    """
    coming = outsiders(facts, memory)
    there = [worker for worker in facts.members if worker is not None] or [*facts.live]
    there += [] if facts.server is None else [facts.server]
    return [
        worker.name
        for worker in there
        if not ended(worker)
        and not (worker.node_lost and memory.finish.ending)
        and not (worker.name in coming and not has_trained(worker))
        and not (worker is not facts.server and worker.metrics is not None and not has_trained(worker))
    ]


def _everybody(facts: Facts, memory: Remembered) -> list[WorkerSeen]:
    """All workers of this generation, as they are or were seen last."""
    # What is known of members that are gone may be that of an earlier generation, if none of them is there.
    departed = facts.departed.values() if any(facts.members) or is_committed(memory) else ()
    return [*facts.everybody, *departed]


def _leader_has_finished(facts: Facts, memory: Remembered, past: Iterable[WorkerSeen]) -> bool:
    """Whether whoever led has ended with exit code 0. Workers of a library that does not say who led are judged by
    their ranks: the first one led that had not left before.
    """
    well = [worker for worker in past if ended(worker) and not failed(worker)]
    if any(worker.leader is not None for worker in past):
        return any(worker.leader for worker in well)
    coming, names = outsiders(facts, memory), {worker.name for worker in well}
    there = (worker for worker in facts.members if worker is None or not _was_let_go(worker))
    first = next((worker for worker in there if worker is None or worker.name not in coming), None)
    return first is not None and first.name in names


def _was_let_go(worker: WorkerSeen) -> bool:
    return has_left(worker) or worker.asked_to_stop


def _failed_afterwards(facts: Facts, memory: Remembered, worker: WorkerSeen) -> bool:
    """Whether a worker has ended badly that was needed: after the last step, or before it where members go on without
    none. Who led is needed whatever ended it; others may be taken away, or asked to stop.
    """
    if not ended(worker) or not failed(worker):
        return False
    if worker.finished and worker.leader:
        return True
    if is_external(worker) or _was_let_go(worker) or worker.name in outsiders(facts, memory):
        return False
    if worker.finished or worker.step >= memory.finish.last_step > 0:
        return worker.exit_code != EXIT_PREEMPTED
    members = {member.uid for member in facts.plan.members} if facts.plan is not None else set()
    return worker.uid in members and not _goes_on(facts, memory)


def _goes_on(facts: Facts, memory: Remembered) -> bool:
    """Whether members go on without one that ends; known from the plan, too, if the memory is lost."""
    return memory.protocol >= MEMBERS_MAY_END or (facts.plan is not None and facts.plan.continues > 0)


def _lost(facts: Facts) -> Iterator[tuple[str, str]]:
    """The members that have not ended well, by rank, and how they ended, in words; before them the server."""
    if facts.server is not None and failed(facts.server):
        yield facts.server.name, described_departure(facts.server)
    if facts.plan is None or not any(facts.members):
        yield from ((worker.name, described_departure(worker)) for worker in facts.failed)
        return
    for member, worker in zip(facts.plan.members, facts.members, strict=True):
        there = worker if worker is not None else facts.departed.get(member.name)
        if there is None:
            yield member.name, f"{member.name} vanished"
        elif failed(there) or not ended(there):
            yield member.name, described_departure(there)


def _failed(
    job: Job, facts: Facts, memory: Remembered, now: float, end: tuple[str, str] | None
) -> tuple[Decision, Remembered]:
    """The job has failed after its last step, by the `end` of a worker: its name, and a description that begins with
    it; None if that is not known.
    """
    why = "nobody is known to have led the job to the end of its script"
    if end is not None:
        name, how = end
        why = f"the script failed afterwards on {name}: it{how.removeprefix(name)}"
    message = f"training finished at step {memory.finish.last_step}, but {why}"
    return ending(job, facts, memory, now, outcome="Failed", code=FAILED_AFTER_TRAINING, message=message)
