"""How far the workers wanted have found places (`lifecycle/placement.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED


@dataclass(frozen=True, slots=True)
class Placing:
    """So many tries to place all workers (`placements`) were given up. Since `half_placed_at` only some have places, at
    most `most_placed`.
    """

    placements: int = 0
    half_placed_at: Annotated[float | None, MEASURED] = None
    most_placed: Annotated[int, MEASURED] = 0

    def watched(self, held: int, wanted: int, now: float) -> Placing:
        """With since when some of the workers wanted hold places, or a quota, and others find none; the time starts
        again with each one more that finds one.
        """
        if not 0 < held < wanted:
            return Placing(self.placements)
        if self.half_placed_at is None or held > self.most_placed:
            return Placing(self.placements, now, held)
        return self
