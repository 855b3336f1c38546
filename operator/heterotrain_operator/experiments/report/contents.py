"""All that a report shows."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.trials.result import TrialResult


@dataclass(frozen=True, slots=True)
class Facts:
    """What affects the figures besides the job: this machine's CPU cores, and how limits were imposed on
    them.
    """

    cpu_cores: int
    limits: str
    version: str


@dataclass(frozen=True, slots=True)
class ReportContents:
    """All that a report shows. `names` are the workers by rank, `manifest` and `schedule` are the
    files' texts.

    `profiles` are the trials that only measured; they are kept as series, not drawn.
    """

    summary: Summary
    trials: tuple[TrialResult, ...]
    profiles: tuple[TrialResult, ...]
    names: tuple[str, ...]
    manifest: str
    facts: Facts
    schedule: str = ""
