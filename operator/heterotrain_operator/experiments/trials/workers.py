"""What a job says of its workers, by their names."""

from __future__ import annotations

from heterotrain_operator.core.facts import bounds_of as group_bounds
from heterotrain_operator.core.facts import missing, survey
from heterotrain_operator.core.model import Job, Seen
from heterotrain_operator.core.split.passes import in_passes


def worker_names(job: Job) -> tuple[str, ...]:
    """Names of the job's workers in the order of their ranks."""
    return tuple(key.name for key in missing(job, survey(job, Seen())))


def limits_of(job: Job) -> dict[str, float | None]:
    """CPU limit of every worker, in cores."""
    names = iter(worker_names(job))
    return {next(names): group.cpu_limit for group in job.groups for _ in range(group.replicas)}


def bounds_of(job: Job) -> dict[str, tuple[int, int]]:
    """Least and most samples per step of every worker."""
    groups = [group for group in job.groups for _ in range(group.replicas)]
    bounds = in_passes(job.global_batch, [group_bounds(job, group) for group in groups])
    return dict(zip(worker_names(job), bounds, strict=True))
