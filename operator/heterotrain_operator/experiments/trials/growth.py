"""Workers that users add to the groups of a running job, and take back: as an edit of `replicas` does in a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from heterotrain_operator.core.model import Job

MOST_ADDED = 64
"""Workers that a job may have beyond those of its manifest."""


@dataclass(frozen=True, slots=True)
class Addition:
    """One worker more in a group; `until` by the monotonic clock, None: until it is taken back."""

    group: str
    until: float | None


class Growth:
    """The workers that one job is to have beyond those of its manifest. Which of a group's workers leaves when one is
    taken back is decided as it is whenever `replicas` falls.
    """

    def __init__(self, job: Job, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._job, self._monotonic = job, monotonic
        self._added: list[Addition] = []

    def wanted(self) -> Job:
        """The job with the replicas that are wanted now."""
        more = Counter(each.group for each in self._added)
        if not more:
            return self._job
        groups = (replace(group, replicas=group.replicas + more[group.name]) for group in self._job.groups)
        return replace(self._job, groups=tuple(groups))

    def group_of(self, name: str) -> str | None:
        """The group that is called so, or whose worker is, with or without the job's name before it; None if the job
        has none."""
        groups = {group.name for group in self._job.groups}
        bare = name.removeprefix(f"{self._job.name}-")
        words = (name, bare, *(each.rpartition("-")[0] for each in (name, bare) if each.rpartition("-")[2].isdecimal()))
        return next((each for each in words if each in groups), None)

    def add(self, group: str, seconds: float | None) -> bool:
        """One worker more, for so long (None: until it is taken back). Returns whether there may be more."""
        if len(self._added) >= MOST_ADDED:
            return False
        self._added.append(Addition(group, None if seconds is None else self._monotonic() + seconds))
        return True

    def take_back(self, group: str) -> bool:
        """Want one of the workers less that a group got last. Returns whether there was one."""
        last = next((each for each in reversed(self._added) if each.group == group), None)
        if last is None:
            return False
        self._added.remove(last)
        return True

    def tend(self) -> tuple[str, ...]:
        """Take back what is due. Returns the group of each."""
        now = self._monotonic()
        due = [each for each in self._added if each.until is not None and now >= each.until]
        self._added = [each for each in self._added if each not in due]
        return tuple(each.group for each in due)

    def added(self) -> Counter[str]:
        """How many workers more each group has."""
        return Counter(each.group for each in self._added)
