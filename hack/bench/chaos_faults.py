"""Put the faults of a schedule on a running job, each at its moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from chaos_findings import Outcome
from chaos_job import Job, until
from chaos_schedule import PlannedFault

from heterotrain_operator.experiments.control import ControlError, NotRunningError, ask

MORE_DESCRIPTORS = 4
"""The run may have so many more open after the faults than before them."""


def _wait_for(job: Job, planned: PlannedFault, before: frozenset[str]) -> bool:
    """Wait for a fault's moment, as long as it may yet come. `before`: the plan's members at the fault before it."""
    setting = job.setting
    if planned.moment == "calm":
        if not until(job, job.is_calm, setting.calm_seconds):
            return False
    elif planned.moment == "newcomer":
        until(job, job.newcomers, setting.moment_seconds)
    elif planned.moment == "plan":
        until(job, lambda: _members(job) not in (before, frozenset()), setting.moment_seconds)
    time.sleep(planned.after)
    return not job.ended()


def _members(job: Job) -> frozenset[str]:
    plan = job.plan()
    return frozenset() if plan is None else frozenset(member.uid for member in plan.members)


def _victim(job: Job, planned: PlannedFault) -> str | None:
    """The worker that a fault is for."""
    plan = job.plan()
    running = {each["worker"] for each in job.listed()}
    members = [member.name for member in plan.members if member.name in running] if plan is not None else []
    newcomers = job.newcomers() if planned.role == "newcomer" else []
    if newcomers:
        return newcomers[-1]
    if not members:
        return None
    if planned.role == "leader":
        return members[0]
    if planned.role == "newcomer" or len(members) == 1:
        return members[-1]
    followers = members[1:]
    return followers[int(planned.pick * len(followers))]


def _done(job: Job, planned: PlannedFault) -> str:
    """Put a fault on a worker; how that went, in words."""
    worker = _victim(job, planned)
    if worker is None:
        return f"{planned}: nobody is there"
    question: dict[str, Any] = {"do": planned.verb, "worker": worker, "neighbours": 1}
    if planned.lasts is not None:
        question["seconds"] = planned.lasts
    try:
        answer = ask(job.folder / "out", question)
    except (NotRunningError, ControlError) as error:
        return f"{planned}: not done: {error}"
    if planned.verb == "leave" and "error" not in answer:
        job.asked_to_leave(worker)
    answered = answer.get("error") or f"after step {answer['step']}"
    return f"{time.time():.1f} {planned} ({worker}: {answered})"


def disturb(job: Job, faults: Sequence[PlannedFault], outcome: Outcome, *, hurried: bool) -> None:
    """All faults, one after the other, until the job is calm again, or only to the last one if it is `hurried`."""
    if not until(job, job.is_calm, job.setting.calm_seconds):
        outcome.wrong.append("it did not start")
        return
    outcome.started_seconds = time.monotonic()
    opened = job.descriptors()
    before = _members(job)
    for planned in faults:
        if not _wait_for(job, planned, before):
            outcome.wrong.append(f"it ended before {planned}" if job.ended() else f"it did not calm before {planned}")
            return
        before = _members(job)
        outcome.done.append(_done(job, planned))
        job.disturbed()
    if hurried:
        return
    if not until(job, job.is_calm, job.setting.calm_seconds):
        outcome.wrong.append("it did not calm down after the last fault")
    elif job.descriptors() > opened + MORE_DESCRIPTORS:
        outcome.wrong.append(f"the run has {job.descriptors()} descriptors open, at first {opened}")
    outcome.faults_seconds = time.monotonic() - outcome.started_seconds
