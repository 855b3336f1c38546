"""What came of a run, as numbers; pure, so that the table, the report and `--json` all say the same.

Every figure comes from the workers' own records of their steps (see `series`), none from the command line's
clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling
from heterotrain_operator.experiments.figures.history import WELL, Target, TrialHistory
from heterotrain_operator.experiments.figures.levels import LevelSummary, Measurements, summarize_level
from heterotrain_operator.experiments.figures.limits import DECLARED, Level
from heterotrain_operator.experiments.figures.profile import Profile
from heterotrain_operator.experiments.figures.speedup import Speedup, speedups
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary, summarize_trial

_KEYS = {"trials": "arms"}
"""Keys of the JSON document that keep their former names, since other programs read them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run. `profile` and `ceilings` are those of the first of `levels`, which are empty where limits stay."""

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

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it: finite numbers, null where a figure is unknown."""
        document: dict[str, Any] = _finite(asdict(self))
        return {_KEYS.get(name, name): value for name, value in document.items()}


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
) -> Summary:
    """The whole run in numbers.

    `names` are the workers by rank; `bounds` each one's least and most samples per step; `profiled` the
    steps of the profile before and (if it came to that) after the trials; `limits` says how CPU limits were
    imposed, `levels` what they were in the run's course; `least` are the fewest samples that workers reported to need.
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
        warnings=(*_by_level(known, doubts), *(trial.fault for trial in summaries if trial.fault)),
    )


def _by_level(levels: Sequence[Level], doubts: Sequence[Sequence[str]]) -> list[str]:
    """The doubts about all levels; each names its level if there are several."""
    if len(levels) == 1:
        return list(doubts[0])
    return [f"limits {level.label}: {doubt}" for level, own in zip(levels, doubts, strict=True) for doubt in own]
