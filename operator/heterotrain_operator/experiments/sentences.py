"""What a summary says in words, once for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling
from heterotrain_operator.experiments.figures.phases import PhaseSummary
from heterotrain_operator.experiments.figures.profile import LEAST_SIZES, Profile
from heterotrain_operator.experiments.figures.speedup import Ratio, Speedup
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary
from heterotrain_operator.experiments.wording import UNKNOWN


def metrics_of(trials: Sequence[TrialSummary]) -> tuple[str, ...]:
    """The names of all that was evaluated, in the order in which the scripts reported them."""
    return tuple(dict.fromkeys(name for trial in trials for each in trial.evaluations for name in each.metrics))


def title(trial: TrialSummary, rounds: int) -> str:
    """The trial's name: its policy, and the round where there are several."""
    return f"{trial.policy} {trial.round}" if rounds > 1 else trial.policy


def rounds_of(trials: Sequence[TrialSummary]) -> int:
    """How many rounds were run."""
    return max((trial.round for trial in trials), default=0)


def factor(ratio: Ratio | None) -> str:
    """How many times faster, with the spread over rounds where there is one."""
    if ratio is None:
        return UNKNOWN
    if ratio.least == ratio.greatest:
        return f"{ratio.median:.2f}x"
    return f"{ratio.median:.2f}x (median; {ratio.least:.2f} to {ratio.greatest:.2f})"


def speedup(found: Speedup) -> str:
    """One sentence per compared policy."""
    rounds = f" over {found.rounds} rounds" if found.rounds > 1 else ""
    whole = (
        f"{found.policy} trained {factor(found.samples_per_second)} as many samples per second as {found.over}{rounds}"
    )
    if found.iteration is None:
        return f"{whole}."
    return f"{whole}; after the last adjustment its iterations were {factor(found.iteration)} as fast."


PHASE_FIGURES = ("from step", "steps", "samples/s", "iteration", "adjustments", "of ceiling", "of ceiling, all steps")
"""The headings of `phase_figures`."""


def phase_figures(phase: PhaseSummary) -> tuple[str, ...]:
    """The figures of a phase between changes of CPU limits."""
    return (
        wording.UNKNOWN if phase.first_step is None else str(phase.first_step),
        str(phase.steps),
        wording.rate(phase.samples_per_second),
        wording.seconds(phase.iteration_seconds),
        str(phase.adjustments),
        wording.percent(phase.ceiling_fraction),
        wording.percent(phase.ceiling_fraction_all),
    )


def ceilings(summary: Summary) -> tuple[str, ...]:
    """What the best possible split would have been, in words, one sentence per set of CPU limits and global batch."""
    if summary.levels:
        parts = [(level.profile, level.ceilings, f" under limits {level.label}") for level in summary.levels]
    else:
        parts = [(summary.profile, summary.ceilings, "")]
    return tuple(
        _ceiling(profile, found, under)
        for profile, possible, under in parts
        if profile is not None
        for found in possible
    )


def _ceiling(profile: Profile, found: MeasuredCeiling, under: str) -> str:
    sizes = min(len(worker.points) for worker in profile.workers)
    doubt = f" (only {sizes} sizes for some worker)" if sizes < LEAST_SIZES else ""
    return (
        f"Ceiling for a global batch of {found.global_batch}{under}: {wording.seconds(found.iteration_seconds)} an "
        f"iteration, with batches {wording.batches(found.batches.values())} ({wording.seconds(found.own_seconds)} of "
        f"own time and {wording.seconds(profile.allreduce.seconds)} of all-reduce){doubt}."
    )
