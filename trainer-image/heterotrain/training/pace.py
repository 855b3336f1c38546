"""How often workers exchange messages: seldom, since every exchange costs CPU time, and often where somebody waits."""

from __future__ import annotations

from heterotrain.state.replica_watch import MOST_STEPS

INTERVAL_SECONDS = 1.0

URGENT_SECONDS = 0.2
"""While members are about to change, for which three exchanges are needed, and in the first steps of a plan."""

FIRST_STEPS = 10
"""Steps of a plan in which the next one is urgent: two or three of them may have shown that batches are far off."""


class Pace:
    """After how many steps the next exchange is due; what the leader says counts for all."""

    def __init__(self) -> None:
        self._version = -1
        self._first_step = self._step = 0

    def at(self, step: int, plan_version: int) -> None:
        """This step, of all that the job ever takes, begins under this plan."""
        if plan_version != self._version:
            self._version, self._first_step = plan_version, step
        self._step = step

    def steps(self, step_seconds: float, *, changing: bool) -> int:
        """Between the exchange of the step that begins and the next one. `step_seconds` is how long a step takes, 0 if
        unknown; `changing`: members are about to change."""
        if step_seconds <= 0:
            return 1
        urgent = changing or self._step - self._first_step < FIRST_STEPS
        return min(MOST_STEPS, max(1, round((URGENT_SECONDS if urgent else INTERVAL_SECONDS) / step_seconds)))
