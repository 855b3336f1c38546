"""What came of a run, as numbers; pure, so that the table, the report and `--json` all say the same.

Every figure comes from the workers' own records of their steps (see `series`), none from the command line's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from heterotrain_operator.core.batching.bounds import bounded_below
from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling, Profile, ceiling_of, profile_of
from heterotrain_operator.experiments.figures.history import DECLARED, WELL, Level, Neighbours, Target, TrialHistory
from heterotrain_operator.experiments.figures.phases import split
from heterotrain_operator.experiments.figures.steps import Step
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary, summarize_trial
from heterotrain_operator.experiments.figures.verdict import Circumstances, verdict_on


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


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster, one figure per round: their median, the least and the greatest."""

    median: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """The job's own policy over another, over `rounds` rounds.

    `samples_per_second` compares whole trials, `iteration` the median iterations after the last adjustments.
    """

    policy: str
    over: str
    rounds: int
    samples_per_second: Ratio | None
    iteration: Ratio | None


def speedups(trials: Sequence[TrialSummary]) -> tuple[Speedup, ...]:
    """How many times faster the first trial's policy was than each other, round by round."""
    if not trials:
        return ()
    own = trials[0].policy
    ours = {trial.round: trial for trial in trials if trial.policy == own}
    found = []
    for other in dict.fromkeys(trial.policy for trial in trials if trial.policy != own):
        pairs = [(ours[trial.round], trial) for trial in trials if trial.policy == other and trial.round in ours]
        found.append(
            Speedup(
                policy=own,
                over=other,
                rounds=len(pairs),
                samples_per_second=_ratio([(a.samples_per_second, b.samples_per_second) for a, b in pairs]),
                iteration=_ratio([(b.iteration_seconds, a.iteration_seconds) for a, b in pairs]),
            )
        )
    return tuple(found)


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Ratio | None:
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


KEYS = {"trials": "arms"}
"""Keys of the JSON document that keep their former names, since other programs read them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. `verdict` is what a user can make of it where it ended well.

    `profile` and `ceilings` are those of the first of `levels`, which are empty where limits stay. `provenance` is
    where the figures come from.
    """

    job: str
    phase: str
    message: str
    limits: str
    trials: tuple[TrialSummary, ...]
    speedup: tuple[Speedup, ...]
    profile: Profile | None
    ceilings: tuple[MeasuredCeiling, ...]
    levels: tuple[LevelSummary, ...]
    warnings: tuple[str, ...]
    verdict: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it: finite numbers, null where a figure is unknown."""
        document: dict[str, Any] = _finite(asdict(self))
        return {KEYS.get(name, name): value for name, value in document.items()}


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def summarize(
    job: str,
    trials: Sequence[TrialHistory],
    names: Sequence[str],
    *,
    bounds: Mapping[str, tuple[int, int]],
    profiled: Sequence[TrialHistory] = (),
    target: Target | None = None,
    limits: str = "",
    levels: Sequence[Level] = (),
    least: Mapping[str, int] | None = None,
    circumstances: Circumstances | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Summary:
    """The whole run in numbers.

    `names` are the workers by rank; `bounds` each one's least and most samples per step; `profiled` the
    steps of the profile before and (if it came to that) after the trials; `limits` says how CPU limits were
    imposed, `levels` what they were in the run's course; `least` are the fewest samples that workers reported to need.
    `circumstances` are what the verdict on the first trial needs, if there is to be one.
    """
    known = tuple(levels) or (Level(DECLARED, {}),)
    measurements = Measurements(trials, profiled, bounds, least or {})
    found, doubts = zip(*(summarize_level(*each, names, measurements) for each in enumerate(known)), strict=True)
    by_level = [{ceiling.global_batch: ceiling for ceiling in level.ceilings} for level in found]
    summaries = tuple(summarize_trial(trial, names, by_level, target, known[trial.level].label) for trial in trials)
    ended = [trial for trial in (*profiled, *trials) if trial.phase not in WELL]
    return Summary(
        job=job,
        phase=ended[0].phase if ended else "Succeeded",
        message=ended[0].message if ended else "",
        limits=limits,
        trials=summaries,
        speedup=speedups(summaries),
        profile=found[0].profile,
        ceilings=found[0].ceilings,
        levels=found if any(trial.changes for trial in trials) else (),
        provenance=provenance or {},
        verdict=""
        if ended or not trials or circumstances is None
        else verdict_on(summaries[0], trials[0].steps, circumstances),
        warnings=(*_by_level(known, doubts), *(trial.fault for trial in summaries if trial.fault)),
    )


def _by_level(levels: Sequence[Level], doubts: Sequence[Sequence[str]]) -> list[str]:
    """The doubts about all levels; each names its level if there are several."""
    if len(levels) == 1:
        return list(doubts[0])
    return [f"limits {level.label}: {doubt}" for level, own in zip(levels, doubts, strict=True) for doubt in own]
