"""The interpreter's search for cycles of garbage, made rare.

It walks over all that lives whenever 700 more objects do. A look at a thousand workers makes more values than that by a
hundred times, none of which is part of a cycle: searching was a fifth of a decision and a quarter of a simulation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""More objects that live after which cycles are searched among those; with four times as many, a simulation was as
fast."""

ROUNDS = 2
"""Searches after which those that have outlived them are searched, too. With Python's 10, cycles that were in use at
the first search, such as a cancelled task's, live for half an hour in an operator of 200 jobs, which grows meanwhile.
All that lives is searched only when a quarter more has outlived both, whatever this says."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for cycles of garbage seldom, as long as this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, ROUNDS, ROUNDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
