"""What changes of the members cost (`lifecycle/transitions.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from heterotrain_operator.core.columns import BASELINE_DIGITS
from heterotrain_operator.core.fields import MAX_COUNT, MEASURED, Kept


@dataclass(frozen=True, slots=True)
class Transitions:
    """A change of the kind `switching` (empty: none is under way) was published at `switching_at`, when
    `switching_step` steps were committed that took `switching_seconds` each. Changes have stood still for
    `transition_seconds` in the mean, `idle_seconds` in all, and so many of them were `swaps`, `joins` and `leaves`.
    """

    switching: Annotated[str, MEASURED] = ""
    switching_at: Annotated[float | None, MEASURED] = None
    switching_step: Annotated[int, MEASURED] = -1
    switching_seconds: Annotated[float, MEASURED] = 0.0
    transition_seconds: Annotated[float, MEASURED] = 0.0
    idle_seconds: Annotated[float, Kept(measured=True, digits=BASELINE_DIGITS)] = 0.0
    swaps: Annotated[int, MEASURED] = 0
    joins: Annotated[int, MEASURED] = 0
    leaves: Annotated[int, MEASURED] = 0

    def settled(self) -> Transitions:
        """With no change under way."""
        return replace(self, switching="", switching_at=None)

    def counted(self) -> Transitions:
        """With the change that was under way counted, and none any more."""
        return replace(
            self.settled(),
            swaps=min(self.swaps + (self.switching == "swap"), MAX_COUNT),
            joins=min(self.joins + (self.switching == "join"), MAX_COUNT),
            leaves=min(self.leaves + (self.switching == "leave"), MAX_COUNT),
        )
