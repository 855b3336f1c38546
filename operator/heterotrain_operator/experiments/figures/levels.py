"""What was possible under each set of CPU limits; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterotrain_operator.core.batching.bounds import bounded_below
from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling, ceiling_of
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.limits import Level, Neighbours
from heterotrain_operator.experiments.figures.phases import split
from heterotrain_operator.experiments.figures.profile import Profile, profile_of
from heterotrain_operator.experiments.figures.steps import Step


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One set of CPU limits (by worker, in cores), with the workers' neighbours, and what was possible under it;
    `profile` is None if it was not measured.
    """

    label: str
    limits: Mapping[str, float | None]
    profile: Profile | None
    ceilings: tuple[MeasuredCeiling, ...]
    neighbours: Neighbours


@dataclass(frozen=True, slots=True)
class Measurements:
    """What ceilings are measured on: the trials, the profiles before and after them, and each worker's least and most
    samples per step. `least` are the fewest samples that workers reported to need; they raise the lower bounds of
    ceilings as they do those of plans.
    """

    trials: Sequence[TrialHistory]
    profiled: Sequence[TrialHistory]
    bounds: Mapping[str, tuple[int, int]]
    least: Mapping[str, int]

    def steps_under(self, level: int) -> list[Step]:
        """The steps of all trials under one set of CPU limits."""
        parts = [part for each in self.trials for part in split(each.steps, each.changes, label="", level=each.level)]
        return [step for part in parts if part.level == level for step in part.steps]

    def bounds_for(self, global_batch: int) -> dict[str, tuple[int, int]]:
        """The bounds of every worker for steps of so many samples."""
        least = [self.least.get(name, 0) for name in self.bounds]
        return dict(zip(self.bounds, bounded_below(global_batch, tuple(self.bounds.values()), least), strict=True))


def summarize_level(
    index: int, level: Level, names: Sequence[str], measurements: Measurements
) -> tuple[LevelSummary, tuple[str, ...]]:
    """What was possible under the level of this index, with a ceiling for each global batch in the order of their
    sizes, and what is doubtful about it.
    """
    profiles = [each.steps for each in measurements.profiled if each.level == index]
    if not profiles:
        return LevelSummary(level.label, level.limits, None, (), level.neighbours), ()
    trained = measurements.steps_under(index)
    try:
        profile = profile_of(names, profiles[0], profiles[1] if len(profiles) > 1 else (), trained)
        sizes = sorted({sum(step.batches.values()) for step in trained if len(step.records) == len(names)})
        ceilings = tuple(ceiling_of(profile, size, measurements.bounds_for(size)) for size in sizes)
    except ValueError as error:
        return LevelSummary(level.label, level.limits, None, (), level.neighbours), (f"no ceiling: {error}",)
    return LevelSummary(level.label, level.limits, profile, ceilings, level.neighbours), profile.warnings
