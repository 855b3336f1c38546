"""Random schedules of faults for an elastic job: the same for the same seed and workers; pure.

Faults are close to one another, or meet what an earlier one causes: a newcomer that starts, a plan that is prepared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Moment = Literal["calm", "fault", "newcomer", "plan"]
"""What a fault waits for: all that are wanted train and no fault stands, the fault before it, a worker that is not in
the plan yet, or a plan with other members than at the fault before it."""

Role = Literal["leader", "follower", "newcomer"]
"""Whom it meets: the plan's first member, one of the others, or the youngest worker that is in no plan yet (if there is
none, the plan's last member)."""

LEAVES_A_PLACE = frozenset({"kill", "leave"})
LASTING = frozenset({"stop", "partition", "slow", "starve", "join"})
VERBS = ("kill", "kill", "stop", "stop", "partition", "leave", "leave", "slow", "starve", "join")
"""Drawn from; those that change the members oftener."""

MOST_LOST = 2
"""Members that are taken from a job before it is calm again, at most all but one."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault `after` so many seconds beyond a moment, for the worker in a role; `pick` in [0, 1) says which follower.
    It `lasts` so many seconds; None if it does not last."""

    moment: Moment
    after: float
    verb: str
    role: Role
    pick: float
    lasts: float | None = None

    def __str__(self) -> str:
        lasts = "" if self.lasts is None else f" for {self.lasts:.1f} s"
        return f"{self.verb} {self.role}{lasts}, {self.after:.2f} s after {self.moment}"


HURRY_SHARE, LOADER_SHARE = 0.25, 0.35


@dataclass(frozen=True, slots=True)
class Variant:
    """How a job trains: whether it is `hurried` to its end right after its last fault, so that this meets the end, and
    how many processes of each worker load samples (`loaders`)."""

    hurried: bool = False
    loaders: int = 0


def variant(seed: int) -> Variant:
    """The variant of a seed."""
    draws = random.Random(f"variant {seed}")
    return Variant(hurried=draws.random() < HURRY_SHARE, loaders=int(draws.random() < LOADER_SHARE))


def schedule(seed: int, workers: int, faults: int, heartbeat_timeout: float) -> tuple[PlannedFault, ...]:
    """So many faults for a job of so many workers, of which one at least is left alone until all are there again."""
    draws = random.Random(seed)
    planned: list[PlannedFault] = []
    lost, changes = 0, False
    while len(planned) < faults:
        moment = _moment(draws, first=not planned, changes=changes)
        if moment == "calm":
            lost, changes = 0, False
        role = _role(draws, moment)
        verb = VERBS[int(draws.random() * len(VERBS))]
        lasts = _lasts(draws, verb, heartbeat_timeout)
        takes = verb in LEAVES_A_PLACE or (verb in ("stop", "partition") and (lasts or 0.0) > heartbeat_timeout / 2)
        if takes and role != "newcomer" and lost >= min(MOST_LOST, workers - 1):
            role = "newcomer" if changes else role
            if role != "newcomer":
                continue
        lost += takes and role != "newcomer"
        changes = changes or takes or verb == "join"
        planned.append(PlannedFault(moment, _after(draws, moment), verb, role, draws.random(), lasts))
    return tuple(planned)


def _moment(draws: random.Random, *, first: bool, changes: bool) -> Moment:
    """Of a fault; newcomers and plans come only after what `changes` the members."""
    drawn = draws.random()
    if first or drawn < 0.3:
        return "calm"
    if not changes or drawn < 0.55:
        return "fault"
    return "newcomer" if drawn < 0.8 else "plan"


def _role(draws: random.Random, moment: Moment) -> Role:
    drawn = draws.random()
    if moment in ("newcomer", "plan") and drawn < 0.4:
        return "newcomer"
    return "leader" if drawn < 0.65 else "follower"


def _after(draws: random.Random, moment: Moment) -> float:
    """At once, within a step or so, or a while later: as long as a newcomer takes to start and to warm up."""
    drawn = draws.random()
    longest = {"calm": 1.0, "fault": 6.0, "newcomer": 8.0, "plan": 1.0}[moment]
    if drawn < 0.3:
        return 0.0
    return draws.random() * (0.3 if drawn < 0.65 else longest)


def _lasts(draws: random.Random, verb: str, heartbeat_timeout: float) -> float | None:
    """Half of what may be taken for an end lasts too short a time for that; some that are to join may not be wanted any
    more before they do."""
    if verb not in LASTING:
        return None
    short = draws.random() < 0.5
    if verb == "join":
        return 10 * draws.random() if short else 10 + 10 * draws.random()
    return heartbeat_timeout * ((0.1 + 0.7 * draws.random()) if short else (1.2 + 1.5 * draws.random()))
