"""Versions of how workers meet. Each has what those before it have; a worker exports its own."""

MEMBERS_STAY = 1
"""Members stay the same until all of them start again."""

MEMBERS_MAY_END = 3
"""Members go on by themselves without any that ends, and a plan that continues their generation can let some of them go
and take in others. Workers of level 2 could only do the latter; no release speaks it, and it counts as the one below.
"""
