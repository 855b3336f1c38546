"""CPU limits that hold for some time, and their changes while a job trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Limits = Mapping[str, float | None]
"""CPU limit of every worker by name, in cores; None: no limit."""


DECLARED = "declared"
"""Label of the limits that the manifest itself states."""


@dataclass(frozen=True, slots=True)
class Level:
    """Limits of all workers that hold for some time; `label` is for people."""

    label: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class LimitChange:
    """CPU limits as they were changed at `seconds` (Unix time), when `step` steps were committed; `level` says which
    of the run's sets of limits hold from then on, `limits` by worker in cores (None: no limit).
    """

    seconds: float
    step: int
    level: int
    label: str
    limits: Mapping[str, float | None]
