"""The global training loss, one step late: what a worker contributes to it, what all know of it, and the target.

A step's loss is known only after its forward, so it travels in the next step's control collective.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

from heterotrain.control import Signals


class Losses:
    """All ranks add the same global losses in the same order, so they reach the target at the same step."""

    def __init__(self, target: float | None, every_steps: int) -> None:
        """`target` is reached once the mean over `every_steps` steps is at most that; None: never."""
        self.target_reached = False
        self._target = target
        self._recent: deque[float] = deque(maxlen=every_steps)
        self._running: torch.Tensor | None = None
        self._committed: tuple[float, float] = (0.0, 0.0)  # contribution, and the share of samples it stands for

    def begin(self) -> None:
        """A step begins, or begins again."""
        self._running = None

    def add(self, weighted: torch.Tensor) -> None:
        """A part of this worker's contribution to the running step's global loss."""
        part = weighted.detach()
        self._running = part if self._running is None else self._running + part

    def commit(self, share: float) -> float | None:
        """The running step is committed; `share` is this worker's part of its samples. Its contribution, if any."""
        if not share:
            self._committed = (0.0, 0.0)
            return None
        loss = math.nan if self._running is None else float(self._running)
        self._committed = (loss, share)
        return loss if math.isfinite(loss) else None

    def signals(self) -> tuple[float, float, float]:
        """`loss`, `loss_weight` and `nonfinite` for the next control collective."""
        loss, share = self._committed
        finite = math.isfinite(loss)
        return (loss, share, 0.0) if finite else (0.0, 0.0, 1.0)

    def hear(self, signals: Signals) -> float | None:
        """The previous step's global loss from the sums over all ranks, if any rank knew its part."""
        if signals.loss_weight <= 0:
            return None
        loss = signals.loss / signals.loss_weight
        self._recent.append(loss)
        if self._target is not None and len(self._recent) == self._recent.maxlen:
            self.target_reached = sum(self._recent) / len(self._recent) <= self._target
        return loss

    def known(self) -> list[float]:
        """The recent global losses, for a rank that missed one."""
        return list(self._recent)

    def take_over(self, known: Sequence[float], target_reached: bool) -> None:
        """Know what another rank knows."""
        self._recent.clear()
        self._recent.extend(known)
        self.target_reached = target_reached

    def forget_contribution(self) -> None:
        """This worker did not commit the previous step itself; others stand for it."""
        self._committed = (0.0, 0.0)
