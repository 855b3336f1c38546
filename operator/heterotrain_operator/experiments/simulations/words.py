"""What a comparison of simulated runs says in words, once for the terminal and the report."""

from __future__ import annotations

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.simulations.comparison import Comparison, PolicyFigures, Spread
from heterotrain_operator.experiments.simulations.result import CLOSE, SETTLING_INTERVALS

SIMULATED = "Simulated: no figure here was measured on a machine."

HEADINGS = (
    "step over best",
    f"after {SETTLING_INTERVALS} intervals",
    "plans per 100",
    f"to within {CLOSE:.0%}",
    "first move",
    "job",
)
"""The headings of `figures`."""

MEANING = (
    "Step over best: time of all steps over that of the best split under the same noise. Plans per 100: changes of "
    f"the batches per 100 control intervals, after the first {SETTLING_INTERVALS}. To within {CLOSE:.0%}: control "
    "intervals until one came so close to the best split."
)


LEAST_IDLE_SECONDS = 0.05
"""Seconds between steps that are worth a word."""


def lead(found: Comparison) -> str:
    """What was simulated."""
    seeds = len({run.seed for run in found.runs})
    workers = f"{found.workers:,} {'worker' if found.workers == 1 else 'workers'}"
    return (
        f"{found.scenario}: {workers}, global batch {found.global_batch:,}, {found.intervals:,} control intervals of "
        f"{found.interval_steps} steps{f', {seeds} seeds' if seeds > 1 else ''}"
    )


def figures(policy: PolicyFigures) -> tuple[str, ...]:
    """The figures of one policy."""
    return (
        _spread(policy.ratio, 3),
        _spread(policy.settled_ratio, 3),
        _spread(policy.plans_per_100_intervals, 1),
        _within(policy),
        _spread(policy.steps_to_first_move, 0),
        ", ".join(
            phase.lower() if count == policy.runs else f"{count} {phase.lower()}"
            for phase, count in policy.ended.items()
        ),
    )


def standstill(policy: PolicyFigures) -> str:
    """What ends of workers have cost one policy, in words; empty if no time passed between steps."""
    steps, again, idle = policy.steps, policy.repeated_steps, policy.idle_seconds
    if steps is None or again is None or idle is None or idle.greatest < LEAST_IDLE_SECONDS:
        return ""
    once = f"of which {_spread(again, 0)} were executed before" if again.greatest else "every sample once"
    return f"{_spread(steps, 0)} steps, {once}, and {_spread(idle, 1)} s between steps"


def _within(policy: PolicyFigures) -> str:
    if policy.never_within == policy.runs:
        return "never"
    never = f" ({policy.never_within} of {policy.runs} never)" if policy.never_within else ""
    return _spread(policy.intervals_to_within, 1) + never


def _spread(spread: Spread | None, digits: int) -> str:
    """A mean, and where runs differ the least and the greatest."""
    if spread is None:
        return wording.UNKNOWN
    mean, least, greatest = (f"{value:.{digits}f}" for value in (spread.mean, spread.least, spread.greatest))
    return mean if least == greatest else f"{mean} ({least} to {greatest})"
