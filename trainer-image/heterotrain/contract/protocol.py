"""Versions of how workers meet. Each has what those before it have; a worker exports its own."""

MEMBERS_STAY = 1
"""Members stay the same until all of them start again."""

MEMBERS_CHANGE = 2
"""While all members live, a plan that continues their generation can let some of them go (not the first) and take in
others."""

MEMBERS_MAY_END = 3
"""Members go on by themselves without any that ends, also the first."""
