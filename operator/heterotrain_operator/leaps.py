"""Leaps of the wall clock: corrected by hand or by a time server, or while a machine slept.

What is remembered are moments of the wall clock, which other processes can go on from; but how long nothing has
happened is what a clock says that never leaps.
"""

from __future__ import annotations

from collections.abc import Callable

LEAST_SECONDS = 5.0
"""A smaller step is none: time servers turn clocks by little and little, and no patience here is shorter."""


class Leaps:
    """By how much the wall clock has leapt that is not made up for yet."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        """`clock` gives Unix seconds, `monotonic` seconds that never leap."""
        self._clock, self._monotonic = clock, monotonic
        self._leapt, self._last = 0.0, clock() - monotonic()

    def seconds(self) -> float:
        """To be added to moments that are remembered; below zero if the clock was set back."""
        offset = self._clock() - self._monotonic()
        if abs(offset - self._last) >= LEAST_SECONDS:
            self._leapt += offset - self._last
        self._last = offset
        return self._leapt

    def made_up(self, seconds: float) -> None:
        """So much of it is made up for."""
        self._leapt -= seconds
