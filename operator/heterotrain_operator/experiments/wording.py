"""How figures are worded for people, once for the terminal and the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heterotrain.contract import Evaluated
from heterotrain_operator.experiments.ceiling import LEAST_SIZES, Ceiling, Profile
from heterotrain_operator.experiments.phases import PhaseSummary
from heterotrain_operator.experiments.summary import Ratio, Speedup, Summary, TrialSummary

MEBIBYTE = 1 << 20
UNKNOWN = "-"
NAMED = 16
"""Workers in one line before it only counts them."""

_AGES = (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1))


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.2g} ms"
    return f"{value:.1f} s" if value < 60 else clock(value)


def clock(value: float) -> str:
    """A duration as minutes and seconds, or hours."""
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(value: float | None) -> str:
    """How long ago, nearly as kubectl writes it: two units while the greater is below ten, else one."""
    if value is None:
        return UNKNOWN
    left = max(round(value), 0)
    for unit, length, smaller, part in _AGES:
        whole, over = divmod(left, length)
        if whole:
            more = f"{over // part}{smaller}" if whole < 10 and over >= part else ""
            return f"{whole}{unit}{more}"
    return f"{left}s"


def percent(value: float | None) -> str:
    """A share."""
    return UNKNOWN if value is None else f"{value:.0%}"


def memory(peak_bytes: float | None, limit_bytes: float | None) -> str:
    """A peak, and of how much, in MiB."""
    if peak_bytes is None:
        return UNKNOWN
    peak = f"{peak_bytes / MEBIBYTE:.0f}"
    return f"{peak} MiB" if limit_bytes is None else f"{peak} of {limit_bytes / MEBIBYTE:.0f} MiB"


def rate(value: float | None) -> str:
    """Samples per second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def loss(value: float | None) -> str:
    """A loss."""
    return UNKNOWN if value is None else f"{value:.4g}"


def evaluated(found: Evaluated) -> str:
    """What was measured last, and when."""
    return f"{' and '.join(f'{name} {loss(value)}' for name, value in found.metrics)} at step {found.step}"


def metrics_of(trials: Sequence[TrialSummary]) -> tuple[str, ...]:
    """The names of all that was evaluated, in the order in which the scripts told them."""
    return tuple(dict.fromkeys(name for trial in trials for each in trial.evaluations for name in each.metrics))


def title(trial: TrialSummary, rounds: int) -> str:
    """The trial's name: its policy, and the round where there are several."""
    return f"{trial.policy} {trial.round}" if rounds > 1 else trial.policy


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
"""What `phase_figures` tells."""


def phase_figures(phase: PhaseSummary) -> tuple[str, ...]:
    """The figures of a phase between changes of CPU limits."""
    return (
        UNKNOWN if phase.first_step is None else str(phase.first_step),
        str(phase.steps),
        rate(phase.samples_per_second),
        seconds(phase.iteration_seconds),
        str(phase.adjustments),
        percent(phase.ceiling_fraction),
        percent(phase.ceiling_fraction_all),
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


def _ceiling(profile: Profile, found: Ceiling, under: str) -> str:
    sizes = min(len(worker.points) for worker in profile.workers)
    doubt = f" (only {sizes} sizes for some worker)" if sizes < LEAST_SIZES else ""
    return (
        f"Ceiling for a global batch of {found.global_batch}{under}: {seconds(found.iteration_seconds)} an iteration, "
        f"with batches {batches(found.batches.values())} ({seconds(found.own_seconds)} of own time and "
        f"{seconds(profile.allreduce.seconds)} of all-reduce){doubt}."
    )


def batches(sizes: Iterable[int]) -> str:
    """Batch sizes by rank."""
    return listed(str(size) for size in sizes)


def listed(words: Iterable[str]) -> str:
    """One word per worker, by rank; of many workers the first ones."""
    known = list(words)
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return " / ".join(known[:NAMED]) + more


def rounds_of(trials: Sequence[TrialSummary]) -> int:
    """How many rounds were run."""
    return max((trial.round for trial in trials), default=0)
