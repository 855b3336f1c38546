"""The interpreter's search for cycles of garbage, made rare.

It walks over all that lives whenever 700 more objects do. A look at a thousand workers makes more values than that by a
hundred times, none of which is part of a cycle: searching was a fifth of a decision and a quarter of a simulation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""More objects that live after which cycles are searched. What they can hold meanwhile is a few tens of megabytes at
most; with four times as many, a simulation was as fast."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Search for cycles of garbage seldom, as long as this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
