"""What came of a run, as numbers; pure, so that the table, the report and `--json` all say the same.

Every figure comes from the workers' own records of their steps (see `series`), none from the command line's
clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from heterotrain.contract import TRAINING_LOSS, EvaluationRecord
from heterotrain_operator.core.prediction.least_batch import bounded_below
from heterotrain_operator.experiments import phases
from heterotrain_operator.experiments.ceiling import FAULT_ABOVE, Ceiling, Profile, ceiling_of, profile_of
from heterotrain_operator.experiments.phases import Ceilings, LimitChange, PhaseSummary
from heterotrain_operator.experiments.schedule import DECLARED, Level
from heterotrain_operator.experiments.series import (
    Step,
    iteration_seconds,
    last_evaluations,
    mean_loss,
    seconds_to_metric,
    seconds_to_target,
    since_last_adjustment,
)

WELL = ("Succeeded", "Running")
"""Phases in which a trial may end well; a profile is stopped while it runs."""

FINAL_LOSS_STEPS = 10
"""The final loss is the mean over this many last steps: one step's loss is mostly its samples' luck."""


@dataclass(frozen=True, slots=True)
class TrialHistory:
    """One run of the job under one policy, as it happened. `round` counts from 1.

    `adjustments` is the number of plans that changed a batch; `message` says how the trial ended. `level` is the set of
    CPU limits that it began with, `changes` are those after.
    """

    policy: str
    round: int
    steps: tuple[Step, ...]
    adjustments: int
    phase: str
    message: str = ""
    restarts: int = 0
    level: int = 0
    changes: tuple[LimitChange, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()

    @property
    def title(self) -> str:
        """For people: the policy, and the round from the second on."""
        return self.policy if self.round == 1 else f"{self.policy} (round {self.round})"


@dataclass(frozen=True, slots=True)
class Target:
    """What ends the job: the metric, taken every `every_steps` steps, is at least (`mode` Max) or at most
    (Min) `value`.
    """

    value: float
    every_steps: int
    metric: str = TRAINING_LOSS
    mode: str = "Min"

    def reaches(self, value: float) -> bool:
        """Whether this value ends the job."""
        return value >= self.value if self.mode == "Max" else value <= self.value


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """One worker in one trial. `batch` is its final one, in samples; times are means over measured steps, in
    seconds.

    The `settled` times are those since the last adjustment, at `batch`.
    """

    name: str
    batch: int
    samples: int
    own_seconds: float | None
    wait_seconds: float | None
    settled_own_seconds: float | None
    settled_wait_seconds: float | None

    @property
    def wait_share(self) -> float | None:
        """Share of its time that the worker waited since the last adjustment."""
        if self.settled_own_seconds is None or self.settled_wait_seconds is None:
            return None
        total = self.settled_own_seconds + self.settled_wait_seconds
        return self.settled_wait_seconds / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """What the script measured after `step` committed steps, `seconds` after the first of them was."""

    step: int
    seconds: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """One trial in numbers.

    `seconds` runs from the first to the last committed step, so `samples_per_second` counts the samples of
    all steps but the first. `iteration_seconds` is the median since the last adjustment, `settled_at_step`
    the first step of that time. `ceiling_fraction` is the ceiling's iteration over it;
    `ceiling_fraction_all` is the same over all full steps, everything that happened between them included.
    Where CPU limits changed, `phases` are the parts in between, and what holds "since the last adjustment" holds since
    the last change of either.
    """

    policy: str
    round: int
    phase: str
    message: str
    steps: int
    samples: int
    seconds: float
    samples_per_second: float | None
    final_loss: float | None
    target_seconds: float | None
    adjustments: int
    restarts: int
    settled_at_step: int | None
    iteration_seconds: float | None
    global_batch: int
    ceiling_seconds: float | None
    ceiling_fraction: float | None
    ceiling_fraction_all: float | None
    fault: str | None
    worker: tuple[WorkerSummary, ...]
    changes: tuple[LimitChange, ...]
    phases: tuple[PhaseSummary, ...]
    evaluations: tuple[EvaluationSummary, ...]

    @property
    def measured(self) -> Mapping[str, float]:
        """The last evaluation, by metric; empty if there was none."""
        return self.evaluations[-1].metrics if self.evaluations else {}


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


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One set of CPU limits (by worker, in cores) and what was possible under it; `profile` is None if it was not
    measured.
    """

    label: str
    limits: Mapping[str, float | None]
    profile: Profile | None
    ceilings: tuple[Ceiling, ...]


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
    ceilings: tuple[Ceiling, ...]
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


def _worker(name: str, steps: Sequence[Step], settled: Sequence[Step]) -> WorkerSummary:
    records = [step.records[name] for step in steps if name in step.records]
    measured = [s.records[name] for s in steps if name in s.records and not s.marked]
    last = [s.records[name] for s in settled if name in s.records and not s.marked]
    return WorkerSummary(
        name=name,
        batch=records[-1].batch if records else 0,
        samples=sum(record.samples for record in records),
        own_seconds=fmean(record.own for record in measured) if measured else None,
        wait_seconds=fmean(record.wait for record in measured) if measured else None,
        settled_own_seconds=fmean(record.own for record in last) if last else None,
        settled_wait_seconds=fmean(record.wait for record in last) if last else None,
    )


def _global_batch(steps: Sequence[Step]) -> int:
    return sum(steps[-1].batches.values()) if steps else 0


def _fault(trial: TrialHistory, fractions: Sequence[float | None], parts: Sequence[phases.PhaseSummary]) -> str | None:
    """Says which share of a ceiling cannot be, the greatest of the trial's and of its phases'; None if all can."""
    found = [(fraction, "") for fraction in fractions]
    for part in parts:
        found += [(part.ceiling_fraction, f" in {part.label}"), (part.ceiling_fraction_all, f" in {part.label}")]
    worst, where = max(((fraction or 0.0, place) for fraction, place in found), key=itemgetter(0))
    if worst <= FAULT_ABOVE:
        return None
    return (
        f"fault of measurement: {trial.title} reached {worst:.3f} of the ceiling{where}, and more than {FAULT_ABOVE} "
        "cannot be; profile and trial did not run under the same conditions"
    )


def _target_seconds(trial: TrialHistory, target: Target) -> float | None:
    if target.metric == TRAINING_LOSS:
        return seconds_to_target(trial.steps, target.value, target.every_steps)
    return seconds_to_metric(trial.steps, trial.evaluations, target.metric, target.reaches)


def summarize_trial(
    trial: TrialHistory,
    names: Sequence[str],
    ceilings: Sequence[Ceilings],
    target: Target | None = None,
    label: str = DECLARED,
) -> TrialSummary:
    """One trial in numbers; `ceilings` by level (empty: none was measured), `label` that of the limits it began
    with."""
    steps = trial.steps
    parts = phases.split(steps, trial.changes, label=label, level=trial.level)
    last = next((part for part in reversed(parts) if part.steps), parts[0])
    settled = since_last_adjustment(last.steps)
    iterations = iteration_seconds(settled)
    iteration = median(iterations) if iterations else None
    seconds = steps[-1].seconds - steps[0].seconds if steps else 0.0
    ceiling = phases.ceilings_at(ceilings, last.level).get(_global_batch(steps))
    fraction = ceiling.iteration_seconds / iteration if ceiling and iteration else None
    fraction_all = phases.fraction_of(parts, ceilings)
    by_phase = tuple(phases.summarize_phase(part, ceilings) for part in parts) if trial.changes else ()
    return TrialSummary(
        policy=trial.policy,
        round=trial.round,
        phase=trial.phase,
        message=trial.message,
        steps=len(steps),
        samples=sum(step.samples for step in steps),
        seconds=seconds,
        samples_per_second=phases.samples_per_second(steps),
        final_loss=mean_loss(steps, FINAL_LOSS_STEPS),
        target_seconds=_target_seconds(trial, target) if target else None,
        adjustments=trial.adjustments,
        restarts=trial.restarts,
        settled_at_step=settled[0].number if settled else None,
        iteration_seconds=iteration,
        global_batch=_global_batch(steps),
        ceiling_seconds=ceiling.iteration_seconds if ceiling else None,
        ceiling_fraction=fraction,
        ceiling_fraction_all=fraction_all,
        fault=_fault(trial, (fraction, fraction_all), by_phase),
        worker=tuple(_worker(name, steps, settled) for name in names),
        changes=trial.changes,
        phases=by_phase,
        evaluations=tuple(
            EvaluationSummary(each.step, each.time - steps[0].seconds if steps else None, dict(each.metrics))
            for each in last_evaluations(trial.evaluations)
        ),
    )


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Ratio | None:
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


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
    imposed, `levels` what they were in the run's course. `least` are the fewest samples that workers reported to
    need: they raise the lower bounds of ceilings as they do those of plans.
    """
    known = tuple(levels) or (Level(DECLARED, {}),)
    found: list[LevelSummary] = []
    leasts = least or {}
    warnings: list[str] = []
    for index, level in enumerate(known):
        profile, possible, doubts = _measure_ceilings(index, trials, names, bounds, profiled, leasts=leasts)
        found.append(
            LevelSummary(level.label, level.limits, profile, tuple(possible[size] for size in sorted(possible)))
        )
        warnings += doubts if len(known) == 1 else [f"limits {level.label}: {doubt}" for doubt in doubts]
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
        levels=tuple(found) if any(trial.changes for trial in trials) else (),
        warnings=(*warnings, *(trial.fault for trial in summaries if trial.fault)),
    )


def _measure_ceilings(
    level: int,
    trials: Sequence[TrialHistory],
    names: Sequence[str],
    bounds: Mapping[str, tuple[int, int]],
    profiled: Sequence[TrialHistory],
    *,
    leasts: Mapping[str, int],
) -> tuple[Profile | None, dict[int, Ceiling], list[str]]:
    own = [trial for trial in profiled if trial.level == level]
    if not own:
        return None, {}, []
    before = own[0].steps
    after = own[1].steps if len(own) > 1 else ()
    parts = [part for trial in trials for part in phases.split(trial.steps, trial.changes, label="", level=trial.level)]
    trained = [step for part in parts if part.level == level for step in part.steps]
    try:
        profile = profile_of(names, before, after, trained)
        sizes = {sum(step.batches.values()) for step in trained if len(step.records) == len(names)}
        ceilings = {size: ceiling_of(profile, size, _bounded_below(size, bounds, leasts)) for size in sizes}
        return profile, ceilings, list(profile.warnings)
    except ValueError as error:
        return None, {}, [f"no ceiling: {error}"]


def _bounded_below(
    size: int, bounds: Mapping[str, tuple[int, int]], leasts: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    raised = bounded_below(size, tuple(bounds.values()), [leasts.get(name, 0) for name in bounds])
    return dict(zip(bounds, raised, strict=True))
