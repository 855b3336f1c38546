"""One trial as it happened: its steps, the CPU limits that changed, and the faults that were put on workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heterotrain.contract import TRAINING_LOSS, EvaluationRecord
from heterotrain_operator.core.model import SizePoint
from heterotrain_operator.experiments.figures.steps import Step

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


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """What was done to a worker at `seconds` (Unix time), when `step` steps were committed: `act` is a fault, such as
    `stop`, or what takes one back, such as `continue`; `lasts_seconds` is how long a fault is to last, None: until it
    is taken back.
    """

    seconds: float
    step: int
    worker: str
    act: str
    lasts_seconds: float | None = None


WELL = ("Succeeded", "Running")
"""Phases in which a trial may end well; a profile is stopped while it runs."""


@dataclass(frozen=True, slots=True)
class TrialHistory:
    """One run of the job under one policy, as it happened. `round` counts from 1.

    `adjustments` is the number of plans that changed a batch; `message` says how the trial ended. `level` is the set of
    CPU limits that it began with, `changes` are those after. `faults` are those that users put on workers. `sizes` are
    what scaling has measured. `cost` is that of all pods, None if a group has no price. In an `asynchronous` job each
    step is a worker's update.
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
    sizes: tuple[SizePoint, ...] = ()
    cost: float | None = None
    asynchronous: bool = False

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
