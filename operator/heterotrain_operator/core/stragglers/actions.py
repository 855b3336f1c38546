"""What each action about stragglers entails: one table, so that a new one is asked everywhere what it is.

What only one of them does, such as starting another worker, stands where it is done.
"""

from __future__ import annotations

from typing import NamedTuple


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
