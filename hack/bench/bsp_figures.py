"""The figures of a benchmark from a run's summary and steps; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bsp_setting import TRIAL_FIGURES

from heterotrain_operator.experiments.figures import phases
from heterotrain_operator.experiments.figures.ceiling import Ceilings, ceilings_at
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.steps import (
    Step,
    mean_loss,
    samples_per_second,
    seconds_to_target,
    since_last_adjustment,
)

LOSS_STEPS = 10
"""Steps whose mean counts as a loss reached: one step's loss is mostly its samples' luck."""


def common_loss(trials: Sequence[Sequence[Step]]) -> float | None:
    """The least loss that every trial has reached, as a mean of LOSS_STEPS steps; None if one has too few."""
    best = []
    for steps in trials:
        means = [mean_loss(steps[end - LOSS_STEPS : end], LOSS_STEPS) for end in range(LOSS_STEPS, len(steps) + 1)]
        known = [mean for mean in means if mean is not None]
        if not known:
            return None
        best.append(min(known))
    return max(best, default=None)


def settled_fraction(trial: TrialHistory, levels: Sequence[Ceilings]) -> float | None:
    """The ceilings' time over the time taken, of all full steps after the last adjustment of each phase; None if that
    is not known.

    Unlike `ceiling_fraction`, which is of the median step, slow steps count in full here.
    """
    best = taken = 0.0
    for phase in phases.split(trial.steps, trial.changes, label="", level=trial.level):
        pair = phases.best_and_taken(since_last_adjustment(phase.steps), ceilings_at(levels, phase.level))
        best, taken = best + pair[0], taken + pair[1]
    return best / taken if taken > 0 else None


def figures(
    summary: Mapping[str, Any],
    trained: Mapping[tuple[str, int], TrialHistory],
    levels: Sequence[Ceilings],
    warm_up_steps: int,
) -> dict[str, Any]:
    """What is kept of a run: per trial its figures, and the ceilings. `trained` are the trials, by policy and round,
    `levels` the ceilings under each level of limits.

    `samples_per_second` leaves out the warm-up; `target_seconds` is the time from the first step until the loss was
    first as low as every trial made it (`target_loss`), warm-up included.
    """
    trials = [(trial, trained[trial["policy"], trial["round"]]) for trial in summary["arms"]]
    target = common_loss([own.steps for _, own in trials])
    return {
        "target_loss": target,
        "arms": [
            {name: trial[name] for name in (*TRIAL_FIGURES, "phases")}
            | {
                "samples_per_second": samples_per_second(own.steps[warm_up_steps:]),
                "ceiling_fraction_settled": settled_fraction(own, levels),
                "target_seconds": seconds_to_target(own.steps, target, LOSS_STEPS),
                "batches": [one["batch"] for one in trial["worker"]],
            }
            for trial, own in trials
        ],
        "ceilings": [
            {"limits": level["label"], "ceilings": level["ceilings"]}
            for level in summary["levels"] or [{"label": "", "ceilings": summary["ceilings"]}]
        ],
    }
