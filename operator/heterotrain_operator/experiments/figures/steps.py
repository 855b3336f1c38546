"""Figures over the steps of a job: times between commits, balance, losses; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from heterotrain.contract import EvaluationRecord, StepRecord

BALANCED_WITHIN = 0.10
"""Own times that differ by at most this fraction of the longest count as balanced."""


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step. `seconds` is the leader's moment of commitment (Unix time); `records` is by
    worker.
    """

    number: int
    seconds: float
    records: Mapping[str, StepRecord]

    @property
    def marked(self) -> bool:
        """True if any worker found the step unfit for measuring."""
        return any(record.mark for record in self.records.values())

    @property
    def partial(self) -> bool:
        """True if the step held fewer samples than usual: the last one of an epoch.

        Where the data set has fewer than the global batch all steps do, and workers mark none of them.
        """
        return self.marked and self.samples < sum(record.batch for record in self.records.values())

    @property
    def samples(self) -> int:
        """Samples trained in this step, over all workers."""
        return sum(record.samples for record in self.records.values())

    @property
    def batches(self) -> dict[str, int]:
        """The plan's batch size of every worker, in samples."""
        return {name: record.batch for name, record in self.records.items()}

    @property
    def loss(self) -> float | None:
        """Mean loss over the global batch: the sum of the workers' shares; None if it is unknown or not
        finite.
        """
        shares = [record.loss for record in self.records.values() if record.loss is not None]
        return math.fsum(shares) if shares and all(map(math.isfinite, shares)) else None

    @property
    def spread(self) -> float | None:
        """(longest - shortest) / longest own time of the workers that had samples; None if none had any. It is that of
        one step, with all of its noise; the job's imbalance is what decisions say of a whole plan."""
        own = [record.own for record in self.records.values() if record.samples > 0]
        longest = max(own, default=0.0)
        return (longest - min(own)) / longest if longest > 0 else None

    @property
    def allreduce_seconds(self) -> float:
        """The least wait of any worker: the last to arrive waits for the reduction alone."""
        return min(record.wait for record in self.records.values())


def iteration_seconds(steps: Sequence[Step]) -> tuple[float, ...]:
    """Seconds from one commit to the next, where both steps follow each other and neither is marked."""
    return tuple(
        after.seconds - before.seconds
        for before, after in pairwise(steps)
        if after.number == before.number + 1 and not before.marked and not after.marked
    )


def since_last_adjustment(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps at the end that were all trained with the same batches."""
    return steps[adjustments(steps)[-1] :] if adjustments(steps) else steps


def adjustments(steps: Sequence[Step]) -> list[int]:
    """The places of steps that a worker took with another batch than its step before."""
    # Not every step has every worker: a killed one's last record may be missing, and some take steps of their own.
    batches: dict[str, int] = {}
    found = []
    for index, step in enumerate(steps):
        if any(batches.get(name, batch) != batch for name, batch in step.batches.items()):
            found.append(index)
        batches |= step.batches
    return found


def balanced(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The unmarked steps whose own times are balanced to within BALANCED_WITHIN."""
    return tuple(
        step for step in steps if not step.marked and step.spread is not None and step.spread <= BALANCED_WITHIN
    )


def mean_loss(steps: Sequence[Step], count: int) -> float | None:
    """Mean of the global loss over the last `count` steps that have one."""
    losses = [loss for step in steps[-count:] if (loss := step.loss) is not None]
    return fmean(losses) if losses else None


def seconds_to_target(steps: Sequence[Step], target_loss: float | None, every_steps: int) -> float | None:
    """Seconds from the first commit until the mean loss of the last `every_steps` steps was at most the
    target.

    The trainers look at it after every step, once there are so many. None if there is no target or it was
    not reached.
    """
    if target_loss is None:
        return None
    for count in range(every_steps, len(steps) + 1):
        mean = mean_loss(steps[count - every_steps : count], every_steps)
        if mean is not None and mean <= target_loss:
            return steps[count - 1].seconds - steps[0].seconds
    return None


def seconds_to_metric(
    steps: Sequence[Step], evaluations: Iterable[EvaluationRecord], metric: str, reaches: Callable[[float], bool]
) -> float | None:
    """Seconds from the first commit until an evaluation's metric was one that `reaches` the target; None if
    none was.
    """
    times = [each.time for each in evaluations if metric in each.metrics and reaches(each.metrics[metric])]
    return min(times) - steps[0].seconds if times and steps else None


def samples_per_second(steps: Sequence[Step]) -> float | None:
    """From the first to the last commit; the first step's own samples were trained before."""
    seconds = steps[-1].seconds - steps[0].seconds if steps else 0.0
    return sum(step.samples for step in steps[1:]) / seconds if seconds > 0 else None
