"""The change of members that is under way, if there is one; the same on all members at every boundary between steps.

Members learn of it by an exchange, make the new groups beside training, say so in the exchanges that follow, and go
over all at the same boundary: the one after the exchange in which the leader says so. Groups that one of them could not
make are made again by all, under the next number that the leader says. They do not wait for an epoch's end, also where
the plan's batch sizes would (`Plan.apply_at`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from heterotrain.contract import Plan
from heterotrain.groups.control import Signals
from heterotrain.groups.succession import Succession

_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 10.0  # until groups that could not be made are tried again


class Transition:
    """One worker's side of it."""

    def __init__(self) -> None:
        self.prepare: Callable[[Plan], Succession] | None = None
        self.begin: Callable[[Succession, int], None] | None = None
        """Make the groups of a succession, at this try; see `attempt`."""
        self.abandon: Callable[[Succession], None] | None = None
        """All members know that nobody goes over to these groups."""
        self.announce: Callable[[Succession], None] | None = None
        """On the leader, before it says that all go over."""
        self.succession: Succession | None = None
        self.due = False
        """Whether all members go over at this boundary."""
        self.attempt = 0
        """How many times groups were begun to be made, of this plan or another, as the leader has seen; 0 if there is
        no succession."""
        self._begun = 0  # the most that this worker has seen; never less, or a number would be used twice
        self._tries = 0  # of this succession
        self._all_prepared = False
        self._some_refuse = False
        self._again_at: float | None = None  # if some could not make their groups

    @property
    def refused(self) -> str:
        """Why the change under way is impossible; empty if it is not, or if there is none."""
        if self.succession is None:
            return ""
        return self.succession.refused or ("another member cannot follow it" if self._some_refuse else "")

    @property
    def version(self) -> int:
        """That of the plan under way, 0 if there is none."""
        return 0 if self.succession is None else self.succession.plan.version

    @property
    def prepared(self) -> bool:
        """Whether this worker could go over."""
        return self.succession is not None and self.succession.is_ready

    @property
    def failed(self) -> bool:
        """Whether this worker could not make the groups."""
        return self.succession is not None and self.succession.failed and not self.succession.refused

    @property
    def refuses(self) -> bool:
        """Whether this worker never can."""
        return self.succession is not None and bool(self.succession.refused)

    @property
    def may_switch(self) -> bool:
        """Whether all members could have gone over when the newest exchange began."""
        return self._all_prepared and self.prepared

    def next_attempt(self) -> int:
        """On the leader: under which number the members are to make groups; 0 if there are none to make."""
        if self.succession is None:
            return 0
        if not self.attempt or (self._again_at is not None and time.monotonic() >= self._again_at):
            return self._begun + 1
        return self.attempt

    def follow(self, plan: Plan) -> None:
        """All members have this plan, which has other members than the present one."""
        if self.succession is not None and self.succession.plan.generation == plan.generation:
            self.succession.plan = plan  # of the same members, with other batches
            return
        self.give_up("another plan has taken its place")
        assert self.prepare is not None
        self.succession = self.prepare(plan)

    def receive(self, signals: Signals, world_size: int) -> None:
        """What the members said in an exchange that brought no plan."""
        if self.succession is None:
            return
        self._all_prepared = signals.prepared == world_size
        self._some_refuse = signals.refuses > 0
        self.due = signals.switch > 0
        attempt = int(signals.attempt)
        if not attempt:
            if self.attempt:
                self.give_up("the leader cannot follow the plan, or another member")
        elif attempt != self.attempt:
            self._all_prepared, self._again_at = False, None
            if self.abandon is not None and self.attempt:
                self.abandon(self.succession)  # nobody goes over to those of the try before
            self.attempt, self._begun = attempt, max(attempt, self._begun)
            self._tries += 1
            assert self.begin is not None
            self.begin(self.succession, attempt)
        elif signals.failed and self._again_at is None:
            delay = min(_LONGEST_DELAY_SECONDS, _DELAY_SECONDS * 2 ** min(self._tries, 16))
            self._again_at = time.monotonic() + delay

    def postpone(self, why: str) -> None:
        """All members know that the new groups are of no use to one of them, and stay as they are for now."""
        assert self.succession is not None
        self._all_prepared = self.due = False
        if self.abandon is not None:
            self.abandon(self.succession)
        self.succession.fail(why)

    def take(self) -> Succession:
        """The next generation, which becomes the present one."""
        succession, self.succession = self.succession, None
        assert succession is not None
        self._all_prepared = self._some_refuse = self.due = False
        self.attempt, self._tries, self._again_at = 0, 0, None
        return succession

    def give_up(self, why: str) -> None:
        """All members know that the change is given up, and stay as they are."""
        if self.succession is not None and self.abandon is not None:
            self.abandon(self.succession)
        self.drop(why)

    def drop(self, why: str, *, wait: bool = False) -> None:
        """This worker takes no part in the change any more; with `wait` its thread has ended afterwards."""
        if self.succession is not None:
            self.take().close(why, wait=wait)

    def restart(self) -> None:
        """The members have met."""
        self.drop("the members meet again")
