"""What the active plan's batches came from, and how often batches were adjusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED, Kept


@dataclass(frozen=True, slots=True)
class Batching:
    """The estimates that chose the batches `rested_on` so many steps, counted as independent ones
    (`batching/rebalance.py`). `gathered`: windows were closed for a decision that waits for workers which were not read
    (`batching/quorum.py`). `stage` counts the plans of the Profile policy, `adjustments` the plans that changed batches
    only. Of the caution that workers' noise calls for (`split/expected.py`), so much is `believed` after splits that
    rested on it.
    """

    rested_on: Annotated[float, MEASURED] = 0.0
    gathered: Annotated[bool, MEASURED] = False
    believed: Annotated[float, Kept(measured=True, most=1.0)] = 1.0
    stage: int = 0
    adjustments: int = 0
