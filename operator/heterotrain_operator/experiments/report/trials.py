"""The report of trials on this machine: their figures side by side, and for the page their course."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import LEAST_SIZES, MeasuredCeiling, Profile
from heterotrain_operator.experiments.figures.summary import Ratio, Speedup, Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary
from heterotrain_operator.experiments.report.plots import batches_and_times, losses, own_times
from heterotrain_operator.experiments.report.value import (
    Column,
    Part,
    Report,
    Row,
    Section,
    Sentence,
    Table,
    Tone,
    Toned,
    Verbatim,
)
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import TrialResult

METRICS = 4
"""Metrics of a script's evaluations that the table of trials shows; `--json` and the page have all."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the page shows besides a run's figures. `names` are the workers by rank, `profiles` the trials that only
    measured (kept as series, not drawn), `manifest` and `schedule` the files' texts.
    """

    trials: tuple[TrialResult, ...]
    profiles: tuple[TrialResult, ...]
    names: tuple[str, ...]
    manifest: str
    cpu_cores: int
    version: str
    schedule: str = ""


def report_of(summary: Summary, course: Course | None = None) -> Report:
    """The report of a run; with its `course` it has all that the page shows."""
    lead = [Sentence(speedup(found), Tone.LEAD) for found in summary.speedup]
    lead += [Sentence(f"Doubtful: {warning}", Tone.DOUBT) for warning in summary.warnings]
    if course is not None:
        facts = f"heterotrain {course.version} on {course.cpu_cores} CPU cores. {summary.limits}"
        lead.insert(0, Sentence(facts, detail=True))
        if summary.message:
            ended = Sentence(f"{summary.phase}: {summary.message}", Tone.DOUBT, detail=True)
            lead.insert(1 + len(summary.speedup), ended)
    sections = [*_overview(summary, course), *_ceiling(summary)]
    if course is not None:
        sections[-1:-1] = [_trial(each, summary, course.names) for each in course.trials]
        sections.append(Section("Manifest", (Verbatim(course.manifest),)))
        if course.schedule:
            sections.append(Section("Schedule", (Verbatim(course.schedule),)))
    return Report(summary.job, "report", tuple(lead), tuple(section for section in sections if section.parts))


def _overview(summary: Summary, course: Course | None) -> list[Section]:
    """All trials side by side."""
    untrained = not any(trial.steps for trial in summary.trials)  # a terminal has enough of that in a sentence
    what = (
        "Iteration: median since the last adjustment of the batches. Samples per second: over the whole trial. "
        "Workers: means since the last adjustment."
    )
    trials: list[Part] = [Sentence(what, detail=True), _trials_table(summary, detail=untrained)]
    if course is not None:
        trials.append(losses([each.history for each in course.trials]))
    sections = [
        Section("Trials", tuple(trials)),
        Section("Workers", (_workers_table(summary, detail=untrained),)),
    ]
    if any(trial.phases for trial in summary.trials):
        sections.append(Section("CPU limits", (_phases_table(summary),)))
    return sections


def _ceiling(summary: Summary) -> list[Section]:
    """What was possible; its section is empty if the workers were not profiled."""
    parts: list[Part] = [Sentence(line) for line in ceilings(summary)]
    if summary.profile is not None:
        parts += [_profile_table(summary.profile), own_times(summary.profile)]
    return [Section("Ceiling", tuple(parts))]


def _trial(result: TrialResult, summary: Summary, names: Sequence[str]) -> Section:
    """One trial: its picture, its evaluations and its decisions."""
    history = result.history
    found = next(each for each in summary.trials if (each.policy, each.round) == (history.policy, history.round))
    parts: list[Part] = [batches_and_times(history, names, f"{result.slug}.png")]
    if found.evaluations:
        parts.append(_evaluations_table(found))
    return Section(history.title, (*parts, decisions_table(result.entries)))


def title(trial: TrialSummary, summary: Summary) -> str:
    """The trial's name: its policy, and the round where there are several."""
    return f"{trial.policy} {trial.round}" if any(each.round > 1 for each in summary.trials) else trial.policy


def metrics_of(trials: Sequence[TrialSummary]) -> tuple[str, ...]:
    """The names of all that was evaluated, in the order in which the scripts reported them."""
    return tuple(dict.fromkeys(name for trial in trials for each in trial.evaluations for name in each.metrics))


TRIAL_COLUMNS = (
    Column("policy", name=True),
    Column("ended", left=True, detail=True),
    Column("steps", rank=5),
    Column("time", wording.seconds, rank=1),
    Column("samples/s", wording.rate, rank=2),
    Column("iteration", wording.seconds, rank=3),
    Column("adjustments", rank=7),
    Column("restarts", detail=True),
    Column("final loss", wording.loss, rank=6),
    Column("to target", wording.seconds, rank=4, optional=True),
    Column("of ceiling", wording.percent, rank=2, optional=True),
    Column("of ceiling, all steps", wording.percent, detail=True, optional=True),
)


def _trials_table(summary: Summary, *, detail: bool) -> Table:
    """One row per trial; what its script evaluated last is in it, too."""
    measured = metrics_of(summary.trials)[:METRICS]
    columns = tuple(Column(name, wording.loss, rank=2, least=6, key=f"evaluated {name}") for name in measured)
    rows: list[Row] = []
    for trial in summary.trials:
        name = title(trial, summary)
        rows.append(
            {
                "policy": name if trial.phase == "Succeeded" else Toned(f"{name}: {trial.phase}", Tone.FAILURE),
                "ended": trial.phase,
                "steps": trial.steps,
                "time": trial.seconds,
                "samples/s": trial.samples_per_second,
                "iteration": trial.iteration_seconds,
                "adjustments": trial.adjustments,
                "restarts": trial.restarts,
                "final loss": trial.final_loss,
                "to target": trial.target_seconds,
                "of ceiling": trial.ceiling_fraction,
                "of ceiling, all steps": trial.ceiling_fraction_all,
                **{f"evaluated {name}": trial.measured.get(name) for name in measured},
            }
        )
    return Table((*TRIAL_COLUMNS, *columns), tuple(rows), detail=detail)


WORKER_COLUMNS = (
    Column("policy", name=True),
    Column("worker", name=True),
    Column("batch"),
    Column("samples", "{:,}".format, detail=True),
    Column("own time", wording.seconds, rank=1),
    Column("wait", wording.seconds, detail=True),
    Column("waiting", wording.percent, rank=2),
)


def _workers_table(summary: Summary, *, detail: bool) -> Table:
    """One row per trial and worker: its batch, own time and share of waiting since the last adjustment."""
    rows = tuple(
        {
            "policy": title(trial, summary),
            "worker": worker.name,
            "batch": worker.batch,
            "samples": worker.samples,
            "own time": worker.settled_own_seconds,
            "wait": worker.settled_wait_seconds,
            "waiting": worker.wait_share,
        }
        for trial in summary.trials
        for worker in trial.worker
    )
    return Table(WORKER_COLUMNS, rows, beside="policy", detail=detail)


PHASE_COLUMNS = (
    Column("policy", name=True),
    Column("CPU limits", left=True),
    Column("from step", rank=4),
    Column("steps", rank=5),
    Column("samples/s", wording.rate, rank=2),
    Column("iteration", wording.seconds, rank=1),
    Column("adjustments", rank=6),
    Column("of ceiling", wording.percent),
    Column("of ceiling, all steps", wording.percent, rank=3),
)
"""The column with the share of the ceiling is never left out."""


def _phases_table(summary: Summary) -> Table:
    """One row per trial and phase between changes of CPU limits."""
    rows = tuple(
        {
            "policy": title(trial, summary),
            "CPU limits": phase.label,
            "from step": phase.first_step,
            "steps": phase.steps,
            "samples/s": phase.samples_per_second,
            "iteration": phase.iteration_seconds,
            "adjustments": phase.adjustments,
            "of ceiling": phase.ceiling_fraction,
            "of ceiling, all steps": phase.ceiling_fraction_all,
        }
        for trial in summary.trials
        for phase in trial.phases
    )
    return Table(PHASE_COLUMNS, rows)


def _evaluations_table(trial: TrialSummary) -> Table:
    """What the script evaluated in a trial."""
    names = metrics_of([trial])
    metrics = (Column(name, wording.loss, key=f"evaluated {name}") for name in names)
    rows = tuple(
        {
            "step": each.step,
            "after": each.seconds,
            **{f"evaluated {name}": each.metrics.get(name) for name in names},
        }
        for each in trial.evaluations
    )
    return Table((Column("step"), Column("after", wording.seconds), *metrics), rows, detail=True, heading="Evaluations")


DECISION_COLUMNS = (
    Column("step"),
    Column("after", wording.clock),
    Column("plan"),
    Column("batches", wording.batches, left=True),
    Column("why", text=True),
)


def decisions_table(entries: Sequence[Entry]) -> Table:
    """One row per decision that is worth keeping."""
    rows = tuple(
        {
            "step": entry.step,
            "after": entry.seconds,
            "plan": "" if entry.version is None else entry.version,
            "batches": entry.batches,
            "why": "; ".join(f"{event.reason}: {event.message}" for event in entry.events) or entry.reason,
        }
        for entry in entries
    )
    return Table(DECISION_COLUMNS, rows, detail=True)


PROFILE_COLUMNS = (
    Column("worker", name=True),
    Column("batch"),
    Column("own time (median)", wording.seconds),
    Column("interquartile range", wording.seconds),
    Column("steps"),
    Column("before", wording.seconds),
    Column("after", wording.seconds),
)


def _profile_table(profile: Profile) -> Table:
    """One row per worker and batch size at which it was profiled."""
    rows = tuple(
        {
            "worker": worker.name,
            "batch": point.batch,
            "own time (median)": point.own_seconds,
            "interquartile range": point.spread_seconds,
            "steps": point.steps,
            "before": point.before_seconds,
            "after": point.after_seconds,
        }
        for worker in profile.workers
        for point in worker.points
    )
    return Table(PROFILE_COLUMNS, rows, detail=True)


def speedup(found: Speedup) -> str:
    """One sentence per compared policy."""
    rounds = f" over {found.rounds} rounds" if found.rounds > 1 else ""
    rate = _factor(found.samples_per_second)
    whole = f"{found.policy} trained {rate} as many samples per second as {found.over}{rounds}"
    if found.iteration is None:
        return f"{whole}."
    return f"{whole}; after the last adjustment its iterations were {_factor(found.iteration)} as fast."


def _factor(ratio: Ratio | None) -> str:
    """How many times faster, with the spread over rounds where there is one."""
    if ratio is None:
        return wording.UNKNOWN
    if ratio.least == ratio.greatest:
        return f"{ratio.median:.2f}x"
    return f"{ratio.median:.2f}x (median; {ratio.least:.2f} to {ratio.greatest:.2f})"


def ceilings(summary: Summary) -> tuple[str, ...]:
    """What the best possible split would have been, one sentence per set of CPU limits and global batch."""
    if summary.levels:
        parts = [(level.profile, level.ceilings, f" under limits {level.label}") for level in summary.levels]
    else:
        parts = [(summary.profile, summary.ceilings, "")]
    return tuple(
        _of_ceiling(profile, found, under)
        for profile, possible, under in parts
        if profile is not None
        for found in possible
    )


def _of_ceiling(profile: Profile, found: MeasuredCeiling, under: str) -> str:
    sizes = min(len(worker.points) for worker in profile.workers)
    doubt = f" (only {sizes} sizes for some worker)" if sizes < LEAST_SIZES else ""
    return (
        f"Ceiling for a global batch of {found.global_batch}{under}: {wording.seconds(found.iteration_seconds)} an "
        f"iteration, with batches {wording.batches(found.batches.values())} ({wording.seconds(found.own_seconds)} of "
        f"own time and {wording.seconds(profile.allreduce.seconds)} of all-reduce){doubt}."
    )
