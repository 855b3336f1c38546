"""What is said of a worker that is slow by fault, its evidence and what would help, with gain and cost; and what each
action about stragglers entails: one table, so that a new one is asked everywhere what it is.

What only one action does, such as starting another worker, stands where it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Grounds(StrEnum):
    """What a straggler was compared with."""

    ITSELF = "SlowerThanItself"  # with the speed that it showed when it was healthy
    LEAST_BATCH = "TooSlowAtLeastBatch"  # with the others, at the fewest samples that it may have
    GROUP = "SlowerThanMedian"  # with the median of all, as the paper has it


class Remedy(StrEnum):
    """What would help best. Rebalancing comes first: only what it cannot repair is worth a replacement."""

    REBALANCE = "Rebalance"
    REPLACE = "Replace"
    REMOVE = "Remove"
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class Outlooks:
    """Own seconds of a whole step as it is, with the batches rebalanced, and after that with a healthy replacement or
    without the worker (None: the others could not hold its samples); and what a replacement costs, in seconds of the
    job.
    """

    as_it_is: float
    rebalanced: float
    replaced: float
    removed: float | None
    replacement_seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """What a replacement would have to keep to: how many are left, and the seconds between two."""

    replacements_left: int
    cooldown_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One straggler. `slowdown` is its own time over the expected one, `since_step` the committed step by which that
    began. `cause` is what slows it (`NAMES` of `core/prediction/resource_use.py`), empty where nobody can say;
    `throttled` and `waiting` are the seconds per step in which its limit held it back, or it waited for a CPU; None
    where the kernel does not say. `outlooks` is None where too little is known of the others, or where it is not
    `weighed` what would help, since enough others are slower. `replacement_pays`: a replacement gains more than it
    costs, whether or not the batches could be balanced better first. `hindrance` says why what the job wants to be done
    about stragglers cannot be done; empty if it can.
    """

    worker: str
    group: str
    grounds: Grounds
    slowdown: float
    since_step: int
    cause: str
    throttled: float | None
    waiting: float | None
    remedy: Remedy
    outlooks: Outlooks | None
    budget: Budget
    replacement_pays: bool = False
    hindrance: str = ""
    weighed: bool = True


class Action(NamedTuple):
    """`judges`: workers are compared with what is expected of them, and stragglers are named. `hastens`: once one is
    named, its batch is lowered without waiting for as much evidence as otherwise. `changes_members`: something beyond
    the batches is done, which needs members that change while they train.
    """

    judges: bool = False
    hastens: bool = False
    changes_members: bool = False


ACTIONS = {
    "Ignore": Action(),
    "Report": Action(judges=True),
    "Rebalance": Action(judges=True, hastens=True),
    "Replace": Action(judges=True, hastens=True, changes_members=True),
    "Remove": Action(judges=True, hastens=True, changes_members=True),
}
"""By the names of `stragglers.action` in a manifest."""
