"""Who trains together while others come and go: wait for it, and what then holds: those that stay never stop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from e2e.api import ApiError
from e2e.history import History
from e2e.jobs import START_SECONDS, JobOnCluster
from e2e.waiting import wait_for
from heterotrain import worker_metrics as table
from heterotrain.contract import Member, StepRecord

REPLACED_SECONDS = 240.0
"""Until another worker trains in the place of one that is lost; a node counts as lost only after a while."""


def index_of(member: Member) -> int:
    """The index in a member's name."""
    return int(member.name.rpartition("-")[2])


def wait_for_members(changed: JobOnCluster, count: int, seconds: float = START_SECONDS) -> None:
    """Wait until so many workers train in one generation, as they say."""

    def train() -> bool:
        plan = changed.plan
        if len(plan.members) != count:
            return False
        try:
            generations = {
                changed.metrics(each.group, index_of(each)).get(table.GENERATION.name) for each in plan.members
            }
        except ApiError:
            return False  # one of them has just gone
        return generations == {float(plan.generation)}

    wait_for(train, seconds, f"{count} members of job {changed.name} to train together")


def wait_for_successor(struck: JobOnCluster, group: str, count: int = 2) -> int:
    """Wait until another worker trains in the place of the first one of a group, so that `count` do. Returns its
    index."""
    lost = struck.pod_name(group)

    def named() -> int | None:
        found = [each for each in struck.plan.members if each.group == group and each.name != lost]
        return index_of(found[0]) if found else None

    index = wait_for(named, REPLACED_SECONDS, f"a plan with another worker than {lost}")
    wait_for_members(struck, count, REPLACED_SECONDS)
    struck.wait_for_step(struck.step() + 5)
    return index


def assert_no_step_lost(records: Sequence[StepRecord]) -> None:
    """A worker that stayed did every step, and none twice."""
    assert records
    assert all(later.step == sooner.step + 1 for sooner, later in pairwise(records)), "a step was lost or repeated"


def assert_only_replaced(struck: JobOnCluster, history: History, *stayed: str) -> None:
    """The job never stopped, no worker of the groups that `stayed` lost a step, and nobody started again: whoever was
    lost has a successor of another name."""
    assert [phase for phase in history.phases if phase != "Created"] == ["Running"]
    assert struck.status["restarts"] == 0
    assert set(history.pods_made().values()) == {1}
    for group in stayed:
        assert_no_step_lost(struck.records(group))


def uids(struck: JobOnCluster) -> dict[str, str]:
    """UIDs of its pods by name; a pod that starts again in its place has another one."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in struck.pods()}


def without(found: dict[str, str], *names: str) -> dict[str, str]:
    """The others."""
    return {name: uid for name, uid in found.items() if name not in names}
