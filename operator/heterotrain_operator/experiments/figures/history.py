"""One trial as it happened."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.contract import TRAINING_LOSS, EvaluationRecord
from heterotrain_operator.experiments.figures.faults import FaultRecord
from heterotrain_operator.experiments.figures.limits import LimitChange
from heterotrain_operator.experiments.figures.steps import Step

WELL = ("Succeeded", "Running")
"""Phases in which a trial may end well; a profile is stopped while it runs."""


@dataclass(frozen=True, slots=True)
class TrialHistory:
    """One run of the job under one policy, as it happened. `round` counts from 1.

    `adjustments` is the number of plans that changed a batch; `message` says how the trial ended. `level` is the set of
    CPU limits that it began with, `changes` are those after. `faults` are those that users put on workers.
    """

    policy: str
    round: int
    steps: tuple[Step, ...]
    adjustments: int
    phase: str
    message: str = ""
    restarts: int = 0
    level: int = 0
    changes: tuple[LimitChange, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    faults: tuple[FaultRecord, ...] = ()

    @property
    def title(self) -> str:
        """For people: the policy, and the round from the second on."""
        return self.policy if self.round == 1 else f"{self.policy} (round {self.round})"


@dataclass(frozen=True, slots=True)
class Target:
    """What ends the job: the metric, taken every `every_steps` steps, is at least (`mode` Max) or at most
    (Min) `value`.
    """

    value: float
    every_steps: int
    metric: str = TRAINING_LOSS
    mode: str = "Min"

    def reaches(self, value: float) -> bool:
        """Whether this value ends the job."""
        return value >= self.value if self.mode == "Max" else value <= self.value
