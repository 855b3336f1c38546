"""The report of simulated runs: the policies side by side, and for the page the course of each policy's first run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from heterotrain.contract import StepRecord
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.influences import LimitChange
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.history import LimitChange as Change
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.steps import Step
from heterotrain_operator.experiments.report import kept, page
from heterotrain_operator.experiments.report.plots import (
    THIN,
    above_most,
    batches_and_times,
    colour,
    throughput_by_size,
)
from heterotrain_operator.experiments.report.tables import decisions_table
from heterotrain_operator.experiments.report.trials import BALANCING, DRAWN_WORKERS, balancing, undrawn
from heterotrain_operator.experiments.report.value import (
    Column,
    Line,
    Panel,
    Part,
    Plot,
    Report,
    Section,
    Sentence,
    Table,
    Tone,
    Toned,
    Verbatim,
)
from heterotrain_operator.experiments.simulations.comparison import Comparison, PolicyFigures, Spread
from heterotrain_operator.experiments.simulations.result import (
    CLOSE,
    SETTLING_INTERVALS,
    PublishedPlan,
    SimulationResult,
)
from heterotrain_operator.experiments.trials.observer import Entry

SIMULATED = "Simulated: no figure here was measured on a machine."

MEANING = (
    "Step over best: time of all steps over that of the best split under the same noise. Plans per 100: changes of "
    f"the batches per 100 control intervals, after the first {SETTLING_INTERVALS}. To within {CLOSE:.0%}: control "
    "intervals until one came so close to the best split."
)

LEAST_IDLE_SECONDS = 0.05
"""Seconds between steps that are worth a word."""

DECISIONS = 200
"""Decisions of a policy that the page lists at most; `results.json` has all plans."""

DRAWN_STEPS = 3_000
"""Steps that are drawn at most; of a longer run every second one, or third, and so on."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the page shows besides the figures: the first run of every policy, and the scenario's text."""

    shown: Mapping[str, SimulationResult]
    scenario: str
    version: str


def write_simulation(folder: Path, found: Comparison, course: Course) -> Path:
    """Write figures, the scenario, the trace and the page into `folder`; returns the page's path.

    Raises OSError if the folder cannot be written.
    """
    first = {
        policy: {
            "seed": result.scenario.seed,
            "workers": result.workers,
            "interval_ratios": [round(float(ratio), 6) for ratio in result.interval_ratios],
            "plans": [asdict(plan) for plan in result.plans],
            "events": [asdict(happened) for happened in result.events],
        }
        for policy, result in course.shown.items()
    }
    kept.write_json(folder / "results.json", {**found.to_json(), "heterotrain": course.version, "first": first})
    (folder / "scenario.yaml").write_text(course.scenario, encoding="utf-8")
    histories = [history_of(*each) for each in course.shown.items()]
    return page.write(folder, report_of(found, course), histories)


def report_of(found: Comparison, course: Course | None = None) -> Report:
    """The report of a comparison; with the `course` of its runs it has all that the page shows."""
    lead = [Sentence(SIMULATED, Tone.DOUBT)]
    sections = [_policies(found, course)]
    if course is not None:
        policy, result = next(iter(course.shown.items()))
        sections.insert(0, Section(BALANCING, balancing(history_of(policy, result), result.workers)))
        what = f"{_scenario(found)}. heterotrain {course.version}."
        lead[:0] = [Sentence(text, detail=True) for text in (found.description, what)]
        lead += [
            Sentence(f"{run.policy}, seed {run.seed}: {run.message}", Tone.DOUBT, detail=True) for run in found.failed
        ]
        sections += [_policy(policy, result) for policy, result in course.shown.items()]
        sections.append(Section("Scenario", (Verbatim(course.scenario),)))
    return Report(
        f"{found.scenario}, simulated",
        "simulation",
        tuple(lead),
        tuple(section for section in sections if section.parts),
    )


def _policies(found: Comparison, course: Course | None) -> Section:
    parts: list[Part] = [comparison_table(found)]
    parts += [
        Sentence(f"{each.policy} ended with batches {wording.batches(each.batches)}")
        for each in found.policies
        if each.batches
    ]
    parts += [Sentence(f"{each.policy}: {updates}") for each in found.policies if (updates := of_updates(each))]
    parts += [Sentence(f"{each.policy}: {cost}") for each in found.policies if (cost := standstill(each))]
    parts.append(Sentence(MEANING, Tone.FAINT))
    if course is not None and any(each.ratio is not None for each in found.policies):
        parts.append(interval_ratios(course.shown))
    return Section("Policies", tuple(parts))


def _scenario(found: Comparison) -> str:
    """What was simulated."""
    seeds = len({run.seed for run in found.runs})
    workers = f"{found.workers:,} {'worker' if found.workers == 1 else 'workers'}"
    return (
        f"{found.scenario}: {workers}, global batch {found.global_batch:,}, {found.intervals:,} control intervals of "
        f"{found.interval_steps} steps{f', {seeds} seeds' if seeds > 1 else ''}"
    )


def _spread(spread: Spread, digits: int) -> str:
    """A mean, and where runs differ the least and the greatest."""
    mean, least, greatest = (f"{value:.{digits}f}" for value in (spread.mean, spread.least, spread.greatest))
    return mean if least == greatest else f"{mean} ({least} to {greatest})"


def _ratio(spread: Spread) -> str:
    return _spread(spread, 3)


def _within(policy: PolicyFigures) -> str:
    if policy.intervals_to_within is None or policy.never_within == policy.runs:
        return "never"
    never = f" ({policy.never_within} of {policy.runs} never)" if policy.never_within else ""
    return _spread(policy.intervals_to_within, 1) + never


def _ended(policy: PolicyFigures) -> str:
    return ", ".join(
        phase.lower() if count == policy.runs else f"{count} {phase.lower()}" for phase, count in policy.ended.items()
    )


COLUMNS = (
    Column("policy", lambda row: row[1], name=True),
    Column("step over best", lambda row: row[0].ratio, _ratio),
    Column(f"after {SETTLING_INTERVALS} intervals", lambda row: row[0].settled_ratio, _ratio, rank=3),
    Column("plans per 100", lambda row: row[0].plans_per_100_intervals, lambda spread: _spread(spread, 1), rank=1),
    Column(f"to within {CLOSE:.0%}", lambda row: row[0], _within, rank=2),
    Column("first move", lambda row: row[0].steps_to_first_move, lambda spread: _spread(spread, 0), rank=4),
    Column("job", lambda row: row[0], _ended, rank=5),
)
"""Of a policy's figures and its name."""


def comparison_table(found: Comparison) -> Table:
    """One row per policy."""
    failed = {run.policy for run in found.failed}
    names = (Toned(each.policy, Tone.FAILURE if each.policy in failed else Tone.PLAIN) for each in found.policies)
    return Table(COLUMNS, tuple(zip(found.policies, names, strict=True)))


def standstill(policy: PolicyFigures) -> str:
    """What ends of workers have cost one policy, in words; empty if no time passed between steps."""
    steps, again, idle = policy.steps, policy.repeated_steps, policy.idle_seconds
    if steps is None or again is None or idle is None or idle.greatest < LEAST_IDLE_SECONDS:
        return ""
    once = f"of which {_spread(again, 0)} were executed before" if again.greatest else "every sample once"
    return f"{_spread(steps, 0)} steps, {once}, and {_spread(idle, 1)} s between steps"


def of_updates(policy: PolicyFigures) -> str:
    """How evenly, and on how old parameters, workers of an asynchronous job trained; empty of any other job."""
    if policy.staleness is None:
        return ""
    spread = policy.spread_of_rates
    old = f"updates were {_spread(policy.staleness, 2)} versions old in the mean"
    if spread is None:
        return old
    return f"{old}; in the second half the fastest worker's came {_spread(spread, 2)} times as often as the slowest's"


def interval_ratios(results: Mapping[str, SimulationResult]) -> Plot:
    """The time of steps over the best split's, by control interval, a line per policy."""
    lines = []
    for index, (policy, result) in enumerate(results.items()):
        ratios = [float(ratio) for ratio in result.interval_ratios]
        tint, style = colour(index)
        lines.append(Line(policy, range(len(ratios)), ratios, tint, style, THIN))
    shown = [ratio for line in lines for ratio in line.ys]
    least = min([0.98, *shown]) - 0.02
    return Plot(
        "Step time over the best split's by control interval, a line per policy",
        "Step time over that of the best split, simulated",
        "control interval",
        (Panel("step time over the best split's", tuple(lines), least=least, most=above_most(shown), reference=1.0),),
    )


def _policy(policy: str, result: SimulationResult) -> Section:
    """The first run of a policy: its picture and its decisions."""
    entries = entries_of(result)
    took = f"{result.steps:,} steps in {wording.clock(result.virtual_seconds)} of the simulation's clock."
    parts: list[Part] = [Sentence(took), *undrawn(result.workers)]
    history, names = history_of(policy, result), result.workers[:DRAWN_WORKERS]
    if history.steps:
        parts.append(batches_and_times(history, names))
    if result.sizes:
        prices = {group.name: group.price_per_hour for group in result.scenario.job.groups}
        parts.append(throughput_by_size(result.sizes, prices))
    parts.append(decisions_table(entries[:DECISIONS]))
    if len(entries) > DECISIONS:
        parts.append(Sentence(f"{len(entries) - DECISIONS:,} later decisions are not listed."))
    return Section(f"{policy}, seed {result.scenario.seed}", tuple(parts))


def history_of(policy: str, result: SimulationResult) -> TrialHistory:
    """The run's steps, with what happened to workers as the changes meanwhile."""
    began = result.began
    return TrialHistory(
        policy=policy,
        round=1,
        steps=tuple(_steps(result)),
        adjustments=len(result.adjustments),
        phase=result.phase,
        message=result.reason,
        changes=tuple(
            Change(float(began[step]) if step < len(began) else math.inf, step, 0, label, {})
            for step, label in _moments(result)
        ),
    )


def entries_of(result: SimulationResult) -> tuple[Entry, ...]:
    """What was decided, in order: plans, each with the events of its round, and rounds with events alone."""
    rounds: dict[float, tuple[int, PublishedPlan | None, list[object]]] = {}
    for plan in result.plans:
        rounds[plan.seconds] = (plan.step, plan, [])
    for happened in result.events:
        rounds.setdefault(happened.seconds, (happened.step, None, []))[2].append(happened.event)
    return tuple(
        Entry(
            seconds=seconds,
            step=step,
            version=None if plan is None else plan.version,
            batches=() if plan is None else plan.batches,
            reason="" if plan is None else plan.reason,
            events=tuple(events),  # type: ignore[arg-type]  # they are events of the job
        )
        for seconds, (step, plan, events) in sorted(rounds.items(), key=lambda entry: entry[0])
    )


def _steps(result: SimulationResult) -> Iterator[Step]:
    if not len(result.own_seconds):
        return  # there were too many to keep
    stride = max(math.ceil(result.steps / DRAWN_STEPS), 1)
    names = result.workers[:DRAWN_WORKERS]
    followed = _followed(result)
    plan: PublishedPlan | None = None
    batches: dict[str, int] = {}
    for number in range(0, result.steps, stride):
        while followed and followed[0][0] <= number:
            plan = followed.pop(0)[1]
            batches = dict(zip(plan.workers, plan.batches, strict=True))
        if plan is None:
            continue
        began, seconds = float(result.began[number]), float(result.step_seconds[number])
        records = {}
        for column, name in enumerate(names):
            own = float(result.own_seconds[number, column])
            if name in batches and math.isfinite(own):
                batch = batches[name]
                wait = max(seconds - own, 0.0)
                records[name] = StepRecord(began + seconds, number, 0, plan.version, batch, batch, own, wait, None, "")
        yield Step(number, began, records)


def _followed(result: SimulationResult) -> list[tuple[int, PublishedPlan]]:
    """The steps with which plans were followed: those that change batches alone some steps after their publication."""
    found: list[tuple[int, PublishedPlan]] = []
    for plan in result.plans:
        same = bool(found) and found[-1][1].generation == plan.generation
        found.append((plan.step + (result.scenario.timing.switch_steps if same else 0), plan))
    return found


def _moments(result: SimulationResult) -> list[tuple[int, str]]:
    """When what happens to workers begins and ends, and what it is; several at one step are one moment."""
    moments: dict[int, list[str]] = {}
    for event in result.scenario.events:
        kind = "limits" if isinstance(event, LimitChange) else type(event).__name__.lower()
        until = getattr(event, "until", None)
        for step, words in ((_begin(event), kind), (until, f"end of {kind}")):
            if step is not None and 0 < step < result.steps and words not in moments.setdefault(step, []):
                moments[step].append(words)
    return [(step, ", ".join(words)) for step, words in sorted(moments.items())]


def _begin(event: ClusterEvent) -> int:
    begin = getattr(event, "begin", None)
    return int(getattr(event, "at", 0) if begin is None else begin)
