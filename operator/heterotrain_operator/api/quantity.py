"""Kubernetes quantities, such as 500m cores and 1Gi bytes, as exact numbers."""

from __future__ import annotations

import re
from decimal import Decimal

from heterotrain.foreign import shown

_SUFFIXES = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkKMGTPE]i?)?)", re.ASCII)

_GREATEST = 2**63 - 1
_LONGEST = 64
"""Most characters of a quantity: enough for any number of cores or bytes, and too few to make matching slow."""


def parse_quantity(value: object) -> Decimal:
    """The number that a quantity stands for, in its resource's unit (cores, bytes, pieces).

    Raises ValueError if it is no quantity, or negative: nothing here may be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a quantity such as 500m or 1Gi, found {shown(value)}")
    text = str(value)
    match = None if len(text) > _LONGEST else _QUANTITY.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"must be a quantity such as 500m or 1Gi, found {shown(value)}")
    number = Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]
    if number > _GREATEST:
        raise ValueError(f"must be at most 2**63 - 1, the greatest that Kubernetes counts to, found {shown(value)}")
    if number < 0:
        raise ValueError(f"must not be negative, found {shown(value)}")
    return number
