"""What training went on from, if an earlier job of this name left a checkpoint (`lifecycle/progress.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resumed:
    """Training went on from an earlier job's checkpoint, of step `resumed_step` (-1: it did not); that job's UID was
    `resumed_from`, if it is known.
    """

    resumed_step: int = -1
    resumed_from: str = ""
