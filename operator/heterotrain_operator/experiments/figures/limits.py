"""CPU limits that hold for some time, and their changes while a job trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Limits = Mapping[str, float | None]
"""CPU limit of every worker by name, in cores; None: no limit."""


Neighbours = Mapping[str, int]
"""Busy processes inside the limits of workers, by name; those that have none are not named."""


DECLARED = "declared"
"""Label of the limits that the manifest itself states."""


@dataclass(frozen=True, slots=True)
class Level:
    """Limits of all workers, and their neighbours, that hold for some time; `label` is for people."""

    label: str
    limits: Limits
    neighbours: Neighbours = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """CPU limits and neighbours as they were changed at `seconds` (Unix time), when `step` steps were committed;
    `level` says which of the run's levels holds from then on, `limits` by worker in cores (None: no limit).
    """

    seconds: float
    step: int
    level: int
    label: str
    limits: Mapping[str, float | None]
    neighbours: Neighbours = field(default_factory=dict)
