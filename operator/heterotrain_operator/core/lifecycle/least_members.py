"""With how many members of each group a job may train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.state import Memory


def least_of(group: Group) -> int:
    """Of a group that says nothing of it, any number may train."""
    return group.min_replicas or 0


def too_few(job: Job, facts: Facts, memory: Memory, groups: Iterable[str]) -> str:
    """Which groups of the job have fewer members than they may train with, in words; empty if none has, if members need
    one another, and once members have finished, for nobody joins then who could let the others go on. `groups` names
    that of each member.
    """
    bounded = [group for group in job.groups if group.min_replicas]
    if not bounded or memory.protocol < MEMBERS_MAY_END or memory.following.ending or facts.finished:
        return ""
    counts = Counter(groups)
    return ", ".join(
        f"group {group.name} has {counts[group.name]} of at least {group.min_replicas} workers"
        for group in bounded
        if counts[group.name] < least_of(group)
    )
