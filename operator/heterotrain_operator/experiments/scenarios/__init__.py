"""Scenarios of the simulated backend: small files that users write, and what they mean.

What the command line needs before it reads one is here, without the arrays of a simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_INTERVALS = 100_000
MAX_SEEDS = 1_000


@dataclass(frozen=True, slots=True)
class Changes:
    """What the command line has instead of the file's own; None: the file's."""

    policies: tuple[str, ...] = ()
    seed: int | None = None
    seeds: int | None = None
    intervals: int | None = None
