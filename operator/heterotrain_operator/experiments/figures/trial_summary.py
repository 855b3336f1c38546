"""One trial in numbers; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from heterotrain.contract import TRAINING_LOSS
from heterotrain_operator.core.model import SizePoint
from heterotrain_operator.experiments.figures import phases
from heterotrain_operator.experiments.figures.ceiling import FAULT_ABOVE, Ceilings
from heterotrain_operator.experiments.figures.history import DECLARED, FaultRecord, LimitChange, Target, TrialHistory
from heterotrain_operator.experiments.figures.phases import PhaseSummary
from heterotrain_operator.experiments.figures.series import last_evaluations
from heterotrain_operator.experiments.figures.steps import (
    Step,
    adjustments,
    mean_loss,
    samples_per_second,
    seconds_to_metric,
    seconds_to_target,
    since_last_adjustment,
)

FINAL_LOSS_STEPS = 10
"""The final loss is the mean over this many last steps: one step's loss is mostly its samples' luck."""


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """One worker in one trial. `batch` is its final one, in samples; times are means over measured steps, in
    seconds.

    The `settled` times are those since the last adjustment, at `batch`; of the time waited, `settled_communication`
    is what the all-reduce alone took, which the last worker to arrive waits for, and the rest is for peers.
    """

    name: str
    batch: int
    samples: int
    own_seconds: float | None
    wait_seconds: float | None
    settled_own_seconds: float | None
    settled_wait_seconds: float | None
    settled_communication_seconds: float | None = None

    @property
    def peer_share(self) -> float | None:
        """Share of its time that the worker waited for slower ones since the last adjustment."""
        wait, communication = self.settled_wait_seconds, self.settled_communication_seconds
        return None if wait is None or communication is None else self._share(max(wait - communication, 0.0))

    @property
    def communication_share(self) -> float | None:
        """Share of its time that the all-reduce alone took since the last adjustment."""
        return self._share(self.settled_communication_seconds)

    def _share(self, seconds: float | None) -> float | None:
        if seconds is None or self.settled_own_seconds is None or self.settled_wait_seconds is None:
            return None
        total = self.settled_own_seconds + self.settled_wait_seconds
        return seconds / total if total > 0 else None


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
    the last change of either; `measured_steps` are those of that time that are fit for measuring. `faults` are those
    that users put on workers. `cost` is that of all pods, None if a group has no price. `sizes` are what scaling has
    measured. Steps of an `asynchronous` job are updates.
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
    faults: tuple[FaultRecord, ...]
    measured_steps: int = 0
    cost: float | None = None
    sizes: tuple[SizePoint, ...] = ()
    asynchronous: bool = False

    @property
    def measured(self) -> Mapping[str, float]:
        """The last evaluation, by metric; empty if there was none."""
        return self.evaluations[-1].metrics if self.evaluations else {}


def _worker(name: str, steps: Sequence[Step], settled: Sequence[Step]) -> WorkerSummary:
    records = [step.records[name] for step in steps if name in step.records]
    measured = [s.records[name] for s in steps if name in s.records and not s.marked]
    counted = [step for step in settled if name in step.records and not step.marked]
    last = [step.records[name] for step in counted]
    return WorkerSummary(
        name=name,
        batch=records[-1].batch if records else 0,
        samples=sum(record.samples for record in records),
        own_seconds=fmean(record.own for record in measured) if measured else None,
        wait_seconds=fmean(record.wait for record in measured) if measured else None,
        settled_own_seconds=fmean(record.own for record in last) if last else None,
        settled_wait_seconds=fmean(record.wait for record in last) if last else None,
        settled_communication_seconds=fmean(step.allreduce_seconds for step in counted) if counted else None,
    )


def _fault(trial: TrialHistory, fractions: Sequence[float | None], parts: Sequence[PhaseSummary]) -> str | None:
    """A sentence about the greatest share of a ceiling, of the trial or of its phases, if it is above FAULT_ABOVE."""
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
    if trial.sizes:  # scaling has added workers beyond those of the manifest
        names = (*names, *sorted({name for step in steps for name in step.records} - {*names}))
    parts = phases.split(steps, trial.changes, label=label, level=trial.level)
    last = next((part for part in reversed(parts) if part.steps), parts[0])
    recent, settled = phases.summarize_phase(last, ceilings), since_last_adjustment(last.steps)
    fraction_all = phases.fraction_of(parts, ceilings)
    workers = tuple(_worker(name, steps, settled) for name in names)
    batches = steps[-1].batches.values() if steps else ()
    by_phase = tuple(phases.summarize_phase(part, ceilings) for part in parts) if trial.changes else ()
    return TrialSummary(
        policy=trial.policy,
        round=trial.round,
        phase=trial.phase,
        message=trial.message,
        steps=len(steps),
        samples=sum(step.samples for step in steps),
        seconds=steps[-1].seconds - steps[0].seconds if steps else 0.0,
        samples_per_second=samples_per_second(steps),
        final_loss=mean_loss(steps, FINAL_LOSS_STEPS),
        target_seconds=_target_seconds(trial, target) if target else None,
        adjustments=trial.adjustments,
        restarts=trial.restarts,
        settled_at_step=settled[0].number if settled else None,
        iteration_seconds=recent.iteration_seconds,
        global_batch=sum((worker.batch for worker in workers) if trial.asynchronous else batches),
        ceiling_seconds=recent.ceiling_seconds,
        ceiling_fraction=recent.ceiling_fraction,
        ceiling_fraction_all=fraction_all,
        fault=_fault(trial, (recent.ceiling_fraction, fraction_all), by_phase),
        worker=workers,
        changes=trial.changes,
        phases=by_phase,
        evaluations=_evaluations(trial),
        faults=trial.faults,
        measured_steps=sum(not step.marked for step in settled),
        cost=trial.cost,
        sizes=trial.sizes,
        asynchronous=trial.asynchronous,
    )


def before_and_after(trial: TrialHistory, names: Sequence[str]) -> dict[str, tuple[WorkerSummary, ...]]:
    """The workers `before` batches were changed for the first time and `after` the last time; where batches stayed, in
    `all steps`. What was not measured is left out.
    """
    steps = trial.steps
    moves = adjustments(steps)
    parts = {"before": steps[: moves[0]], "after": steps[moves[-1] :]} if moves else {"all steps": steps}
    return {
        label: tuple(_worker(name, part, part) for name in names)
        for label, part in parts.items()
        if any(not step.marked for step in part)
    }


def _evaluations(trial: TrialHistory) -> tuple[EvaluationSummary, ...]:
    began = trial.steps[0].seconds if trial.steps else None
    return tuple(
        EvaluationSummary(each.step, None if began is None else each.time - began, dict(each.metrics))
        for each in last_evaluations(trial.evaluations)
    )
