"""The global training loss: what a worker contributes to it, what all workers know of it, and the target.

A loss is known only after forward, so the workers' contributions travel with the next exchange.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import torch

from heterotrain.groups.control import Signals
from heterotrain.state.epoch_loss import EpochLoss


class Losses:
    """All ranks receive the same global losses in the same order, so they reach the target at the same step."""

    def __init__(
        self, reaches_target: Callable[[float], bool], every_steps: int, epoch: EpochLoss | None = None
    ) -> None:
        """`reaches_target` judges the mean over at least `every_steps` steps."""
        self.target_reached = False
        self.epoch = EpochLoss() if epoch is None else epoch
        self._reaches_target = reaches_target
        self._every_steps = every_steps
        self._recent: deque[tuple[float, float]] = deque()  # sums of global losses, and of how many steps
        self._running: torch.Tensor | None = None
        self._unsent = (0.0, 0.0, 0.0)  # contribution, the share of samples it stands for, losses that are no number

    def begin(self) -> None:
        """A step begins, or begins again."""
        self._running = None

    def add(self, weighted: torch.Tensor) -> None:
        """A part of this worker's contribution to the running step's global loss."""
        part = weighted.detach()
        self._running = part if self._running is None else self._running + part

    def scale(self, factor: float) -> None:
        """Multiply what was added so far in the running step."""
        self._running = None if self._running is None else self._running * factor

    def commit(self, factor: float = 1.0) -> torch.Tensor | None:
        """The running step is committed. Returns what was added in it, times `factor`, to be booked later."""
        return self._running if self._running is None or factor == 1 else self._running * factor

    def book(self, committed: torch.Tensor | None, share: float) -> float | None:
        """A committed step's contribution as a number, if it is one; `share` is this worker's part of the step's
        samples."""
        if not share:
            return None
        loss = math.nan if committed is None else float(committed)
        total, weight, nonfinite = self._unsent
        if not math.isfinite(loss):
            self._unsent = (total, weight, nonfinite + 1)
            return None
        self._unsent = (total + loss, weight + share, nonfinite)
        return loss

    def signals(self) -> tuple[float, float, float]:
        """`loss`, `loss_weight` and `nonfinite` for an exchange, which sends them."""
        unsent, self._unsent = self._unsent, (0.0, 0.0, 0.0)
        return unsent

    def alone(self) -> Signals:
        """What a worker without others knows of its newest step."""
        loss, weight, nonfinite = self.signals()
        return Signals(loss=loss, loss_weight=weight, nonfinite=nonfinite)

    def receive(self, signals: Signals) -> float | None:
        """The mean global loss of the steps that an exchange covers; None if no rank knew its part."""
        if signals.loss_weight <= 0:
            return None
        self._recent.append((signals.loss, signals.loss_weight))
        while sum(steps for _, steps in self._recent) - self._recent[0][1] >= self._every_steps:
            self._recent.popleft()
        losses, steps = (sum(column) for column in zip(*self._recent, strict=True))
        # shares of samples are fractions, so a whole number of steps is reached but for rounding
        if steps > self._every_steps - 1e-6:
            self.target_reached = self._reaches_target(losses / steps)
        return signals.loss / signals.loss_weight

    def known(self) -> list[tuple[float, float]]:
        """The recent global losses, for a rank that missed some."""
        return list(self._recent)

    def take_over(self, known: Sequence[Sequence[float]], target_reached: bool) -> None:
        """Take over what another rank knows, and forget what only some ranks could still send."""
        self._recent = deque((losses, steps) for losses, steps in known)
        self._unsent = (0.0, 0.0, 0.0)
        self.target_reached = target_reached
