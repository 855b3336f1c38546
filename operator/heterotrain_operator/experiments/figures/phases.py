"""The parts of a trial between changes of the workers' CPU limits; pure.

Figures over a whole trial mix machines of different speeds, and a ceiling holds for one set of limits only. Each part
is therefore measured by itself, against the ceiling of its own limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from heterotrain_operator.experiments.figures.ceiling import Ceilings, ceilings_at
from heterotrain_operator.experiments.figures.history import LimitChange
from heterotrain_operator.experiments.figures.steps import (
    Step,
    adjustments,
    iteration_seconds,
    samples_per_second,
    since_last_adjustment,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """The steps committed under one set of limits. The first of them may have begun under the limits before."""

    label: str
    level: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """One phase in numbers, as `TrialSummary` has them of a whole trial; `first_step` is where it begins."""

    label: str
    level: int
    first_step: int | None
    steps: int
    seconds: float
    samples_per_second: float | None
    adjustments: int
    iteration_seconds: float | None
    ceiling_seconds: float | None
    ceiling_fraction: float | None
    ceiling_fraction_all: float | None


def split(steps: Sequence[Step], changes: Sequence[LimitChange], *, label: str, level: int) -> tuple[Phase, ...]:
    """The phases in order, of which the first has this label and level; one during which no step was committed is
    empty.
    """
    ends = [change.seconds for change in changes]
    kinds = [(label, level), *((change.label, change.level) for change in changes)]
    parts: list[list[Step]] = [[] for _ in kinds]
    for step in steps:
        parts[sum(step.seconds >= end for end in ends)].append(step)
    return tuple(Phase(name, which, tuple(part)) for (name, which), part in zip(kinds, parts, strict=True))


def best_and_taken(steps: Sequence[Step], ceilings: Ceilings) -> tuple[float, float]:
    """Seconds that the ceilings allow for all full steps, each for its own global batch, and seconds that they took."""
    best = taken = 0.0
    for before, after in pairwise(steps):
        if after.number == before.number + 1 and not after.partial:
            ceiling = ceilings.get(sum(after.batches.values()))
            if ceiling is not None:
                best += ceiling.iteration_seconds
                taken += after.seconds - before.seconds
    return best, taken


def fraction_of(phases: Sequence[Phase], levels: Sequence[Ceilings]) -> float | None:
    """The ceilings' time over the time taken, of all full steps of these phases; the iterations during which limits
    changed do not count.
    """
    pairs = [best_and_taken(phase.steps, ceilings_at(levels, phase.level)) for phase in phases]
    taken = sum(seconds for _, seconds in pairs)
    return sum(seconds for seconds, _ in pairs) / taken if taken > 0 else None


def summarize_phase(phase: Phase, levels: Sequence[Ceilings]) -> PhaseSummary:
    """One phase in numbers."""
    steps = phase.steps
    iterations = iteration_seconds(since_last_adjustment(steps))
    iteration = median(iterations) if iterations else None
    ceiling = ceilings_at(levels, phase.level).get(sum(steps[-1].batches.values()) if steps else 0)
    return PhaseSummary(
        label=phase.label,
        level=phase.level,
        first_step=steps[0].number if steps else None,
        steps=len(steps),
        seconds=steps[-1].seconds - steps[0].seconds if steps else 0.0,
        samples_per_second=samples_per_second(steps),
        adjustments=len(adjustments(steps)),
        iteration_seconds=iteration,
        ceiling_seconds=ceiling.iteration_seconds if ceiling else None,
        ceiling_fraction=ceiling.iteration_seconds / iteration if ceiling and iteration else None,
        ceiling_fraction_all=fraction_of([phase], levels),
    )
