"""How many times faster one policy is than another, round by round; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from heterotrain_operator.experiments.figures.trial_summary import TrialSummary


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
