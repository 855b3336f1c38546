"""The tables of the report, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from heterotrain_operator.experiments import sentences, wording
from heterotrain_operator.experiments.figures.summary import Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary
from heterotrain_operator.experiments.trials.journal import Entry


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: frozenset[str] = frozenset()) -> str:
    """An HTML table; columns named in `text` are left-aligned."""
    kinds = [' class="text"' if heading in text else "" for heading in headings]
    head = "".join(f"<th{kind}>{escape(h)}</th>" for kind, h in zip(kinds, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(cell)}</td>" for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def trials_table(summary: Summary) -> str:
    """One row per trial."""
    rounds = sentences.rounds_of(summary.trials)
    return table(
        (
            "policy",
            "ended",
            "steps",
            "time",
            "samples/s",
            "iteration",
            "adjustments",
            "restarts",
            "final loss",
            "to target",
            "of ceiling",
            "of ceiling, all steps",
        ),
        [
            (
                sentences.title(trial, rounds),
                trial.phase,
                str(trial.steps),
                wording.seconds(trial.seconds),
                wording.rate(trial.samples_per_second),
                wording.seconds(trial.iteration_seconds),
                str(trial.adjustments),
                str(trial.restarts),
                wording.loss(trial.final_loss),
                wording.seconds(trial.target_seconds),
                wording.percent(trial.ceiling_fraction),
                wording.percent(trial.ceiling_fraction_all),
            )
            for trial in summary.trials
        ],
        frozenset({"ended"}),
    )


def evaluations_table(trial: TrialSummary) -> str:
    """What the script evaluated in a trial; empty if nothing."""
    if not trial.evaluations:
        return ""
    names = sentences.metrics_of([trial])
    rows = [
        (str(each.step), wording.seconds(each.seconds), *(wording.loss(each.metrics.get(name)) for name in names))
        for each in trial.evaluations
    ]
    return "<h3>Evaluations</h3>" + table(("step", "after", *names), rows)


def workers_table(summary: Summary) -> str:
    """One row per trial and worker."""
    rounds = sentences.rounds_of(summary.trials)
    return table(
        ("policy", "worker", "batch", "samples", "own time", "wait", "waiting"),
        [
            (
                sentences.title(trial, rounds),
                worker.name,
                str(worker.batch),
                f"{worker.samples:,}",
                wording.seconds(worker.settled_own_seconds),
                wording.seconds(worker.settled_wait_seconds),
                wording.percent(worker.wait_share),
            )
            for trial in summary.trials
            for worker in trial.worker
        ],
        frozenset({"worker"}),
    )


def phases_table(trial: TrialSummary) -> str:
    """One row per phase between changes of CPU limits; empty if they stayed."""
    if not trial.phases:
        return ""
    rows = [(phase.label, *sentences.phase_figures(phase)) for phase in trial.phases]
    return table(("CPU limits", *sentences.PHASE_FIGURES), rows)


def decisions_table(entries: Sequence[Entry]) -> str:
    """One row per decision that is worth keeping."""
    rows = [
        (
            str(entry.step),
            wording.clock(entry.seconds),
            "" if entry.version is None else str(entry.version),
            wording.batches(entry.batches),
            "; ".join(f"{event.reason}: {event.message}" for event in entry.events) or entry.reason,
        )
        for entry in entries
    ]
    return table(("step", "after", "plan", "batches", "why"), rows, frozenset({"why", "batches"}))


def profile_table(summary: Summary) -> str:
    """One row per worker and batch size at which it was profiled; empty if it was not."""
    if summary.profile is None:
        return ""
    rows = [
        (
            worker.name,
            str(point.batch),
            wording.seconds(point.own_seconds),
            wording.seconds(point.spread_seconds),
            str(point.steps),
            wording.seconds(point.before_seconds),
            wording.seconds(point.after_seconds),
        )
        for worker in summary.profile.workers
        for point in worker.points
    ]
    headings = ("worker", "batch", "own time (median)", "interquartile range", "steps", "before", "after")
    return "".join(f"<p>{escape(line)}</p>" for line in sentences.ceilings(summary)) + table(headings, rows)
