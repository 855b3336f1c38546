"""How far training has come, and since when it has not come further (`lifecycle/progress.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heterotrain_operator.core.fields import MEASURED, Kept


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest committed step that was seen is `progress_step`. Progress is due since `progress_at`, which pauses
    move (`between_steps`: there is one), and no step was committed since `advanced_at`. `stepped`: this generation of
    workers has committed a step. A slow step takes `slow_step_seconds`.
    """

    progress_step: Annotated[int, MEASURED] = -1
    progress_at: Annotated[float | None, MEASURED] = None
    advanced_at: Annotated[float | None, MEASURED] = None
    between_steps: Annotated[bool, MEASURED] = False
    stepped: Annotated[bool, MEASURED] = False
    slow_step_seconds: Annotated[float, Kept(measured=True, digits=None)] = 0.0
