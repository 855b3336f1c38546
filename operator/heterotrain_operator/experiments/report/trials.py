"""The report of trials on this machine: their figures side by side, and for the page their course."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import FAULT_ABOVE, LEAST_SIZES, MeasuredCeiling, Profile
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.summary import Ratio, Speedup, Summary
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary, WorkerSummary, before_and_after
from heterotrain_operator.experiments.report import trace
from heterotrain_operator.experiments.report.plots import (
    batches_and_times,
    losses,
    own_times,
    throughput_by_size,
    timeline,
)
from heterotrain_operator.experiments.report.value import (
    BeforeAfter,
    Column,
    Part,
    Report,
    Section,
    Sentence,
    Table,
    Tone,
    Toned,
    Verbatim,
    WorkerStep,
)
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import TrialResult

DRAWN_WORKERS = 16
"""Workers that are drawn at most, the first ones: more lines cannot be told apart."""

METRICS = 4
"""Metrics of a script's evaluations that the table of trials shows; `--json` and the page have all."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the page shows besides a run's figures. `names` are the workers by rank, `profiles` the trials that only
    measured (kept as series, not drawn), `manifest` and `schedule` the files' texts, and `prices` those of an hour of
    one worker, by group.
    """

    trials: tuple[TrialResult, ...]
    profiles: tuple[TrialResult, ...]
    names: tuple[str, ...]
    manifest: str
    schedule: str = ""
    prices: Mapping[str, float | None] = field(default_factory=dict)


def report_of(summary: Summary, course: Course | None = None) -> Report:
    """The report of a run; with its `course` it has all that the page shows."""
    compared = " ".join(speedup(found, summary) for found in summary.speedup)
    headlines = [compared] if compared and summary.trials[0].adjustments else [summary.verdict, compared]
    lead = [Sentence(text, Tone.LEAD) for text in headlines if text]
    if course is not None and summary.message:
        lead.append(Sentence(f"{summary.phase}: {summary.message}", Tone.FAILURE, detail=True))
    if course is None and summary.warnings:
        lead.append(Sentence(doubt(summary.warnings), Tone.DOUBT))
    sections = [*(_course(summary, course) if course is not None else ()), *_overview(summary), *_ceiling(summary)]
    if course is not None:
        sections[-1:-1] = [_trial(each, summary, course.names, course.prices) for each in course.trials]
        doubts = tuple(Sentence(f"{text}.", Tone.DOUBT) for text in summary.warnings)
        sections.append(Section("What makes the ceiling doubtful", doubts))
        sections.append(Section("Manifest", (Verbatim(course.manifest),)))
        if course.schedule:
            sections.append(Section("Schedule", (Verbatim(course.schedule),)))
        sections.append(_provenance(summary))
    return Report(summary.job, "report", tuple(lead), tuple(section for section in sections if section.parts))


def _course(summary: Summary, course: Course) -> list[Section]:
    """What balancing did, in pictures."""
    own = next((each.history for each in course.trials if each.history.policy == summary.trials[0].policy), None)
    if own is None:
        return []
    parts = balancing(own, course.names)
    losses_of = [each.history for each in course.trials if any(step.loss is not None for step in each.history.steps)]
    loss: list[Part] = [*losses(losses_of)] if losses_of else []
    if apart := _loss_apart(losses_of):
        loss.append(Sentence(apart, Tone.FAINT, detail=True))
    return [Section(BALANCING, parts), Section("Training loss", tuple(loss))]


def balancing(trial: TrialHistory, names: Sequence[str]) -> tuple[Part, ...]:
    """The pictures of what balancing did in one trial: batches and waiting before and after, and steps in between."""
    sets = {
        label: {worker.name: step for worker in workers if (step := _mean_step(worker)) is not None}
        for label, workers in before_and_after(trial, names).items()
    }
    parts: list[Part] = []
    if sets and all(sets.values()):
        drawn = {label: dict(islice(workers.items(), DRAWN_WORKERS)) for label, workers in sets.items()}
        parts.append(BeforeAfter("Batches and waiting of each worker", _moved(sets, trial), drawn, trial.asynchronous))
    if (picture := timeline(trial, names[:DRAWN_WORKERS])) is not None:
        parts += [picture, *undrawn(names), Sentence(TRACE, Tone.FAINT, detail=True)]
    return tuple(parts)


def undrawn(names: Sequence[str]) -> tuple[Sentence, ...]:
    """How many workers pictures leave out."""
    hidden = len(names) - DRAWN_WORKERS
    words = f"The first {DRAWN_WORKERS} workers; {hidden:,} more are not drawn."
    return (Sentence(words, Tone.FAINT, detail=True),) if hidden > 0 else ()


BALANCING = "What balancing did"
TRACE = (
    f"{trace.NAME}, beside this page, has every step: open it in ui.perfetto.dev or chrome://tracing. In each picture, "
    "drag to zoom, double-click to see all, and point at a line or a bar for its values."
)


def _mean_step(worker: WorkerSummary) -> WorkerStep | None:
    own, wait, communication = (
        worker.settled_own_seconds,
        worker.settled_wait_seconds,
        worker.settled_communication_seconds,
    )
    if own is None or wait is None or communication is None:
        return None
    return WorkerStep(worker.batch, own, max(wait - communication, 0.0), communication)


def _moved(sets: Mapping[str, Mapping[str, WorkerStep]], trial: TrialHistory) -> str:
    """What the picture of before and after shows, in sentences."""
    if trial.asynchronous:
        return " ".join(
            f"{label.capitalize()}: batches {wording.batches(step.batch for step in workers.values())}, and an update "
            f"every {wording.seconds(min(step.seconds for step in workers.values()))} from the fastest worker, every "
            f"{wording.seconds(max(step.seconds for step in workers.values()))} from the slowest."
            for label, workers in sets.items()
        )
    return " ".join(
        f"{label.capitalize()}: batches {wording.batches(step.batch for step in workers.values())}, a step of "
        f"{wording.seconds(max(step.seconds for step in workers.values()))}, and the worker that waits most for slower "
        f"ones waits {wording.percent(max(step.waiting for step in workers.values()))} of it."
        for label, workers in sets.items()
    )


def _loss_apart(trials: Sequence[TrialHistory]) -> str:
    """How far the losses of compared trials are apart at the same steps; empty for a single trial, and where steps are
    updates, which are of other samples in each trial.
    """
    if len(trials) < 2 or any(trial.asynchronous for trial in trials):
        return ""
    by_step = [{step.number: step.loss for step in trial.steps if step.loss is not None} for trial in trials]
    together = sorted(set(by_step[0]).intersection(*by_step[1:]))
    apart = [
        (max(each[number] for each in by_step) - min(each[number] for each in by_step))
        / (max(abs(each[number]) for each in by_step) or 1.0)
        for number in together
    ]
    if not apart:
        return ""
    return (
        f"At the same step the losses differ by {median(apart):.2%} in the median of {len(apart):,} steps, and by "
        f"{max(apart):.1%} at most: every step trains the same samples, however they are split."
    )


def _provenance(summary: Summary) -> Section:
    """Where the figures come from."""
    facts = tuple({**summary.provenance, "CPU limits": summary.limits}.items())
    columns = (
        Column("what", lambda fact: fact[0], name=True),
        Column("value", lambda fact: fact[1], text=True),
    )
    return Section("How this was made", (Table(columns, facts, detail=True),))


def _overview(summary: Summary) -> list[Section]:
    """All trials side by side."""
    untrained = not any(trial.steps for trial in summary.trials)  # a terminal has enough of that in a sentence
    what = (
        "Iteration: median since the last adjustment of the batches. Samples per second: over the whole trial. "
        "Workers: means since the last adjustment."
    )
    waiting = WAITING_ALONE if any(trial.asynchronous for trial in summary.trials) else WAITING
    trials: list[Part] = [Sentence(what, Tone.FAINT, detail=True), _trials_table(summary, detail=untrained)]
    sections = [
        Section("Trials", tuple(trials)),
        Section(
            "Workers", (_workers_table(summary, detail=untrained), Sentence(waiting, Tone.FAINT, detail=untrained))
        ),
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


def _trial(result: TrialResult, summary: Summary, names: Sequence[str], prices: Mapping[str, float | None]) -> Section:
    """One trial: its picture, its evaluations and its decisions."""
    history = result.history
    found = next(each for each in summary.trials if (each.policy, each.round) == (history.policy, history.round))
    joined = sorted({name for step in history.steps for name in step.records} - {*names})
    everybody = (*names, *joined)
    parts: list[Part] = (
        [*undrawn(everybody), batches_and_times(history, everybody[:DRAWN_WORKERS])] if history.steps else []
    )
    if history.sizes:
        parts.append(throughput_by_size(history.sizes, prices))
    if found.evaluations:
        parts.append(_evaluations_table(found))
    return Section(history.title, (*parts, decisions_table(result.entries, "Plan changes and events, with reasons")))


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


def _trials_table(summary: Summary, *, detail: bool) -> Table:
    """One row per trial; what its script evaluated last is in it, too."""

    def named(trial: TrialSummary) -> Toned:
        name = title(trial, summary)
        well = trial.phase == "Succeeded"
        if well:
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


def _workers_table(summary: Summary, *, detail: bool) -> Table:
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


def _phases_table(summary: Summary) -> Table:
    """One row per trial and phase between changes of CPU limits."""
    return Table(
        PHASE_COLUMNS, tuple((title(trial, summary), phase) for trial in summary.trials for phase in trial.phases)
    )


def _evaluations_table(trial: TrialSummary) -> Table:
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


def _profile_table(profile: Profile) -> Table:
    """One row per worker and batch size at which it was profiled."""
    rows = tuple((worker.name, point) for worker in profile.workers for point in worker.points)
    return Table(PROFILE_COLUMNS, rows, detail=True)


def doubt(warnings: Sequence[str]) -> str:
    """What makes figures doubtful, in one sentence, and what to do about it."""
    first, *others = warnings
    more = f" (and {len(others)} more, in --json and the report)" if others else ""
    advice = "Read what is said of the ceiling with care, or run it again while nothing else uses this machine"
    return f"{advice}: {first}{more}."


def speedup(found: Speedup, summary: Summary) -> str:
    """One sentence per compared policy. Iterations that were faster than is possible are not boasted of."""
    rounds = f" over {found.rounds} rounds" if found.rounds > 1 else ""
    rate = _factor(found.samples_per_second)
    whole = f"{found.policy} trained {rate} as many samples per second as {found.over}{rounds}"
    faulty = {trial.policy for trial in summary.trials if trial.fault}
    if found.iteration is None or faulty & {found.policy, found.over}:
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
