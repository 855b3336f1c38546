"""A random schedule of faults: the same for the same seed, workers and options; pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEAST_GAP, GREATEST_GAP = 0.5, 1.5
"""Bounds of the time between two faults, as shares of what was asked for: so that faults hit every part of a step."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault for a worker, `at` so many seconds after the schedule began."""

    at: float
    fault: str
    worker: str


def random_faults(seed: int, workers: Sequence[str], faults: Sequence[str], every: float) -> Iterator[PlannedFault]:
    """Faults without an end, one after about `every` seconds each, the first included."""
    draws = random.Random(seed)
    at = 0.0
    while True:
        at += every * (LEAST_GAP + (GREATEST_GAP - LEAST_GAP) * draws.random())
        yield PlannedFault(at, faults[int(draws.random() * len(faults))], workers[int(draws.random() * len(workers))])
