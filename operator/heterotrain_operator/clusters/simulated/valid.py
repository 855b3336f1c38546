"""Checks of a scenario's numbers: a fault is a ValueError that names the field and what was found."""

from __future__ import annotations

import math


def at_least(least: float, **values: float) -> None:
    """Every value, given by the name of its field, is a finite number of at least `least`."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name}: expected a number of at least {least:g}, found {value}")


def above(bound: float, **values: float) -> None:
    """Every value, given by the name of its field, is a finite number above `bound`."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > bound):
            raise ValueError(f"{name}: expected a number above {bound:g}, found {value}")


def within(low: float, high: float, **values: float) -> None:
    """Every value, given by the name of its field, is a number from `low` to `high`."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, found {value}")


def not_before(begin: int, until: int | None) -> None:
    """What begins at one step ends at a later one, or never."""
    if begin < 0:
        raise ValueError(f"begin: expected a step of at least 0, found {begin}")
    if until is not None and until <= begin:
        raise ValueError(f"until: expected a step after {begin}, with which it begins, found {until}")
