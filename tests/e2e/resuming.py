"""When the workers of a job start again: wait for it, and what then holds: they begin at the newest checkpoint,
and lose nothing else.
"""

from __future__ import annotations

from e2e.history import History
from e2e.jobs import JobOnCluster
from e2e.waiting import wait_for
from heterotrain.contract import StepRecord

RESTART_SECONDS = 240.0


def wait_for_generation(restarted: JobOnCluster, history: History, generation: int) -> None:
    """Wait until the job trains again, under a plan of a generation, for some steps."""
    wait_for(
        lambda: any(plan.generation >= generation for plan in history.plans.values()),
        RESTART_SECONDS,
        f"generation {generation} of job {restarted.name}",
    )
    restarted.wait_for_phase("Running")
    reached = restarted.wait_for_step(1)
    restarted.wait_for_step(reached + 5)


def steps_of_newest_generation(job: JobOnCluster, history: History, group: str) -> tuple[StepRecord, StepRecord]:
    """A worker's last step before its workers started again, and its first one after."""
    newest = max(plan.generation for plan in history.plans.values())
    versions = {version for version, plan in history.plans.items() if plan.generation == newest}
    records = job.records(group)
    # The job trains on meanwhile, under plans that may be later than those of the history.
    first = next((at for at, record in enumerate(records) if record.version in versions), None)
    assert first is not None, f"worker {job.pod_name(group)} does not train again"
    assert first > 0, f"worker {job.pod_name(group)} did not train before it started again"
    return records[first - 1], records[first]


def assert_resumed_from_checkpoint(job: JobOnCluster, history: History) -> None:
    """All workers begin their newest start at one step, that of the newest checkpoint, which is not 0."""
    firsts = set()
    lasts = set()
    for group in {member.group for member in job.plan.members}:
        before, after = steps_of_newest_generation(job, history, group)
        firsts.add(after.step)
        lasts.add(before.step)
    assert len(firsts) == 1, f"workers began again at steps {firsts}"
    (first,) = firsts
    assert first > 0
    assert f"step-{first:010d}.pt" in job.files.names(f"{job.namespace}/{job.name}")
    # No more was done twice than what lay beyond the newest checkpoint.
    assert max(lasts) - first < job_interval(job), f"after steps {sorted(lasts)} again from step {first}"


def job_interval(job: JobOnCluster) -> int:
    """Steps between two of the job's checkpoints."""
    document = job.document()
    assert document is not None
    every: int = document["spec"]["checkpoint"]["everySteps"]
    return every
