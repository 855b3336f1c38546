"""The mean training loss of an epoch over all samples, as a script alone would add it up.

Each worker adds up the losses of its own samples. The sums travel with the exchanges that there are; what is left of
them at the epoch's end, before a checkpoint and before members leave goes in a sum of its own. What a worker that fails
has not sent by then is missing in the sum of losses, and in that of samples too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from heterotrain.peers import EPOCH_FIGURES


class EpochLoss:
    """One worker's side of it; all that is known is the same on all workers."""

    def __init__(self) -> None:
        self.last = math.nan  # the mean of the newest epoch that has ended
        # In the epoch under way, of all workers and what this one has not sent: the sum of losses, and what divides it.
        self._known = (0.0, 0.0)
        self._unsent = (0.0, 0.0)

    def add(self, losses: float, weight: float) -> None:
        """The sum of losses over this worker's part of a committed step, and over how many samples, or counts."""
        self._unsent = (self._unsent[0] + losses, self._unsent[1] + weight)

    def send(self) -> tuple[float, float]:
        """What this worker adds to a sum over all workers, whose result is received."""
        unsent, self._unsent = self._unsent, (0.0, 0.0)
        return unsent

    def receive(self, losses: float, weight: float) -> None:
        """What all workers have sent."""
        self._known = (self._known[0] + losses, self._known[1] + weight)

    def end(self) -> None:
        """The epoch has ended, and everything of it has been received."""
        losses, weight = self._known
        self.last = losses / weight if weight else math.nan
        self._known = (0.0, 0.0)

    def facts(self) -> list[float]:
        """For checkpoints, and for workers that take over a state."""
        return [*self._known, self.last]

    def take_over(self, facts: Sequence[float]) -> None:
        """Go on from facts that `are_facts`."""
        losses, weight, self.last = facts
        self._known = (losses, weight)


def are_facts(value: Any) -> bool:
    """Whether a value is what `EpochLoss.facts` returns; earlier versions kept none."""
    return (
        isinstance(value, list)
        and len(value) == EPOCH_FIGURES
        and all(isinstance(each, (int, float)) for each in value)
    )
