"""Profile the workers: train without an end, until the policy has measured all that it wants to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from heterotrain.contract import Member, Plan
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.base import MAX_STEPS
from heterotrain_operator.core.model import Decision, Job, Seen, WorkerMetrics
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.progress import committed_steps

logger = logging.getLogger(__name__)


PROFILE_STEPS = 20
"""Measured steps, at least, of each plan of the profile: all trials are compared with it, so it must be steadier than
they are."""


UNMEASURED_INTERVALS = 5
"""A profile ends after so many control intervals in which no step was fit for measuring."""


def endless(job: HeteroTrainingJob) -> HeteroTrainingJob:
    """The same job without a target and without checkpoints. Its workers do not end either: it is stopped once it has
    been measured. Scripts see as many steps as ever.
    """
    training = job.spec.training.model_copy(update={"target": None})
    checkpoint = job.spec.checkpoint.model_copy(update={"every_steps": MAX_STEPS})
    spec = job.spec.model_copy(update={"training": training, "checkpoint": checkpoint})
    return job.model_copy(update={"spec": spec})


def measured(job: Job) -> Callable[[Seen, Decision], bool]:
    """Whether the profile is complete: the policy keeps the active plan, and every worker is measured under it.

    It is also complete when nothing can be measured under that plan, as if its steps took more samples than the data
    has.
    """
    began: dict[int, int] = {}  # by version, at how many committed steps it was first followed by all

    def done(seen: Seen, decision: Decision) -> bool:
        plan = seen.plan
        if plan is None or decision.plan is not None or decision.phase != "Running":
            return False
        metrics = {worker.name: worker.metrics for worker in seen.workers}
        if _all_follow(metrics.values(), plan):
            step = committed_steps(seen)
            followed_for = step - began.setdefault(plan.version, step)
            if followed_for >= UNMEASURED_INTERVALS * job.interval and not any(m and m.steps for m in metrics.values()):
                logger.warning(
                    "the profile ends early: of %d steps with batches %s none was fit for measuring",
                    followed_for,
                    wording.batches(plan.batch_sizes),
                )
                return True
        return all(_is_measured(metrics.get(member.name), member, plan, job.interval) for member in plan.members)

    return done


def _all_follow(metrics: Iterable[WorkerMetrics | None], plan: Plan) -> bool:
    return all(known is not None and known.plan_version == plan.version for known in metrics)


def _is_measured(metrics: WorkerMetrics | None, member: Member, plan: Plan, least_steps: int) -> bool:
    """Whether a worker has measured enough steps under the plan; one without samples has nothing to measure."""
    if metrics is None or metrics.plan_version != plan.version:
        return False
    return metrics.steps >= least_steps or member.batch_size == 0
