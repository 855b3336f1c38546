"""The report of trials on this machine: their figures side by side, and for the page their course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import LEAST_SIZES, MeasuredCeiling, Profile
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.summary import Ratio, Speedup, Summary
from heterotrain_operator.experiments.figures.trial_summary import WorkerSummary, before_and_after
from heterotrain_operator.experiments.report import trace
from heterotrain_operator.experiments.report.plots import (
    batches_and_times,
    losses,
    own_times,
    throughput_by_size,
    timeline,
)
from heterotrain_operator.experiments.report.tables import (
    WAITING,
    WAITING_ALONE,
    decisions_table,
    evaluations_table,
    phases_table,
    profile_table,
    trials_table,
    workers_table,
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
    Verbatim,
    WorkerStep,
)
from heterotrain_operator.experiments.trials.trial import TrialResult

DRAWN_WORKERS = 16
"""Workers that are drawn at most, the first ones: more lines cannot be told apart."""


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
    f"{trace.NAME}, beside this page, has its steps: open it in ui.perfetto.dev or chrome://tracing. In each picture, "
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
    trials: list[Part] = [Sentence(what, Tone.FAINT, detail=True), trials_table(summary, detail=untrained)]
    sections = [
        Section("Trials", tuple(trials)),
        Section("Workers", (workers_table(summary, detail=untrained), Sentence(waiting, Tone.FAINT, detail=untrained))),
    ]
    if any(trial.phases for trial in summary.trials):
        sections.append(Section("CPU limits", (phases_table(summary),)))
    return sections


def _ceiling(summary: Summary) -> list[Section]:
    """What was possible; its section is empty if the workers were not profiled."""
    parts: list[Part] = [Sentence(line) for line in ceilings(summary)]
    if summary.profile is not None:
        parts += [profile_table(summary.profile), own_times(summary.profile)]
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
        parts.append(evaluations_table(found))
    return Section(history.title, (*parts, decisions_table(result.entries, "Plan changes and events, with reasons")))


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
