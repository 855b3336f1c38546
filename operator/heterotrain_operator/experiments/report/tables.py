"""The tables of trials: a row for each trial, worker, phase, evaluation, decision or profiled batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import FAULT_ABOVE, Profile
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary, WorkerSummary
from heterotrain_operator.experiments.report.value import Column, Table, Tone, Toned
from heterotrain_operator.experiments.trials.observer import Entry

METRICS = 4
"""Metrics of a script's evaluations that the table of trials shows; `--json` and the page have all."""


def title(trial: TrialSummary, summary: Summary) -> str:
    """The trial's name: its policy, and the round where there are several."""
    return f"{trial.policy} {trial.round}" if any(each.round > 1 for each in summary.trials) else trial.policy


def metrics_of(trials: Sequence[TrialSummary]) -> tuple[str, ...]:
    """The names of all that was evaluated, in the order in which the scripts reported them."""
    return tuple(dict.fromkeys(name for trial in trials for each in trial.evaluations for name in each.metrics))


def _metric(of: Callable[[Any], Mapping[str, float]], name: str) -> Callable[[Any], float | None]:
    """What a script evaluated under a name."""
    return lambda row: of(row).get(name)


def _possible(fraction: float | None) -> float | None:
    """A share of the ceiling, which cannot be more than all of it; None where it is so much more that its measurement
    is at fault."""
    return None if fraction is None or fraction > FAULT_ABOVE else min(fraction, 1.0)


TRIAL_COLUMNS = (
    Column("ended", lambda trial: trial.phase, left=True, detail=True),
    Column("steps", lambda trial: trial.steps, rank=5),
    Column("time", lambda trial: trial.seconds, wording.seconds, rank=1),
    Column("samples/s", lambda trial: trial.samples_per_second, wording.rate, rank=2),
    Column("iteration", lambda trial: trial.iteration_seconds, wording.seconds, rank=3),
    Column("adjustments", lambda trial: trial.adjustments, rank=7),
    Column("restarts", lambda trial: trial.restarts, detail=True),
    Column("final loss", lambda trial: trial.final_loss, wording.loss, rank=6),
    Column("to target", lambda trial: trial.target_seconds, wording.seconds, rank=4, optional=True),
    Column("cost", lambda trial: trial.cost, wording.cost, rank=4, optional=True),
    Column("of ceiling", lambda trial: _possible(trial.ceiling_fraction), wording.percent, rank=2, optional=True),
    Column(
        "of ceiling, all steps",
        lambda trial: _possible(trial.ceiling_fraction_all),
        wording.percent,
        detail=True,
        optional=True,
    ),
)


def trials_table(summary: Summary, *, detail: bool) -> Table:
    """One row per trial; what its script evaluated last is in it, too."""

    def named(trial: TrialSummary) -> Toned:
        name = title(trial, summary)
        if trial.phase == "Succeeded":
            return Toned(name, Tone.PLAIN)
        return Toned(name if detail else f"{name}: {trial.phase}", Tone.FAILURE)  # details have a column for it

    measured = (
        Column(name, _metric(lambda trial: trial.measured, name), wording.loss, rank=2, least=6)
        for name in metrics_of(summary.trials)[:METRICS]
    )
    return Table((Column("policy", named, name=True), *TRIAL_COLUMNS, *measured), summary.trials, detail=detail)


WORKER_COLUMNS = (
    Column("policy", lambda row: row[0], name=True),
    Column("worker", lambda row: row[1].name, name=True),
    Column("batch", lambda row: row[1].batch),
    Column("samples", lambda row: row[1].samples, "{:,}".format, detail=True),
    Column("own time", lambda row: row[1].settled_own_seconds, wording.seconds, rank=1),
    Column("wait", lambda row: row[1].settled_wait_seconds, wording.seconds, detail=True),
    Column("waiting", lambda row: _waits(row[1], alone=row[2]), rank=2),
)
"""Of a trial's name, one of its workers, and whether it trains alone; own times and waiting are means since the last
adjustment."""

WAITING = (
    "Waiting: shares of a step that a worker waits for slower ones, and then for the all-reduce, which no split spares."
)
WAITING_ALONE = "Waiting: the share of an update that a worker waits for the server."


def _waits(worker: WorkerSummary, *, alone: bool) -> str | None:
    """What it waits for its peers and for communication."""
    if worker.peer_share is None or worker.communication_share is None:
        return None
    if alone:
        return wording.percent(worker.peer_share + worker.communication_share)
    return f"{worker.peer_share:.0%} + {worker.communication_share:.0%}"


def workers_table(summary: Summary, *, detail: bool) -> Table:
    """One row per trial and worker."""
    rows = tuple(
        (title(trial, summary), worker, trial.asynchronous) for trial in summary.trials for worker in trial.worker
    )
    return Table(WORKER_COLUMNS, rows, beside=True, detail=detail)


PHASE_COLUMNS = (
    Column("policy", lambda row: row[0], name=True),
    Column("CPU limits", lambda row: row[1].label, left=True),
    Column("from step", lambda row: row[1].first_step, rank=4),
    Column("steps", lambda row: row[1].steps, rank=5),
    Column("samples/s", lambda row: row[1].samples_per_second, wording.rate, rank=2),
    Column("iteration", lambda row: row[1].iteration_seconds, wording.seconds, rank=1),
    Column("adjustments", lambda row: row[1].adjustments, rank=6),
    Column("of ceiling", lambda row: _possible(row[1].ceiling_fraction), wording.percent),
    Column("of ceiling, all steps", lambda row: _possible(row[1].ceiling_fraction_all), wording.percent, rank=3),
)
"""Of a trial's name and one of its phases; the column with the share of the ceiling is never left out."""


def phases_table(summary: Summary) -> Table:
    """One row per trial and phase between changes of CPU limits."""
    return Table(
        PHASE_COLUMNS, tuple((title(trial, summary), phase) for trial in summary.trials for phase in trial.phases)
    )


def evaluations_table(trial: TrialSummary) -> Table:
    """What the script evaluated in a trial."""
    columns = (
        Column("step", lambda each: each.step),
        Column("after", lambda each: each.seconds, wording.seconds),
        *(Column(name, _metric(lambda each: each.metrics, name), wording.loss) for name in metrics_of([trial])),
    )
    return Table(columns, trial.evaluations, detail=True, heading="Evaluations")


def _why(entry: Entry) -> str:
    return "; ".join(f"{event.reason}: {event.message}" for event in entry.events) or entry.reason


DECISION_COLUMNS = (
    Column("step", lambda entry: entry.step),
    Column("after", lambda entry: entry.seconds, wording.clock),
    Column("plan", lambda entry: "" if entry.version is None else entry.version),
    Column("batches", lambda entry: entry.batches, wording.batches, left=True),
    Column("why", _why, text=True),
)


def decisions_table(entries: Sequence[Entry], heading: str = "") -> Table:
    """One row per decision that is worth keeping."""
    return Table(DECISION_COLUMNS, tuple(entries), detail=True, heading=heading)


PROFILE_COLUMNS = (
    Column("worker", lambda row: row[0], name=True),
    Column("batch", lambda row: row[1].batch),
    Column("own time (median)", lambda row: row[1].own_seconds, wording.seconds),
    Column("interquartile range", lambda row: row[1].spread_seconds, wording.seconds),
    Column("steps", lambda row: row[1].steps),
    Column("before", lambda row: row[1].before_seconds, wording.seconds),
    Column("after", lambda row: row[1].after_seconds, wording.seconds),
)


def profile_table(profile: Profile) -> Table:
    """One row per worker and batch size at which it was profiled."""
    rows = tuple((worker.name, point) for worker in profile.workers for point in worker.points)
    return Table(PROFILE_COLUMNS, rows, detail=True)
