"""The plots of trials, as values: batches, own times and the loss by step, the loss by time, timelines, profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from heterotrain_operator.core.model import SizePoint
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.ceiling import Profile
from heterotrain_operator.experiments.figures.history import FaultRecord, TrialHistory
from heterotrain_operator.experiments.figures.steps import adjustments
from heterotrain_operator.experiments.report.value import Line, Mark, Panel, Plot, Span

COLOURS = tuple(f"var(--worker-{index})" for index in range(7))
"""A worker keeps its colour in every picture."""

TRIALS = tuple(f"var(--trial-{index})" for index in range(5))
"""Other colours, so that a trial is not taken for a worker."""

LINES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")

THIN, THICK_BY = 1.6, 0.9
"""Line widths in pixels: where lines lie on each other, the lower ones stay visible."""

GREY = "var(--faint)"

TIMELINE_STEPS = 24
"""Steps in a timeline: so many can be told apart. The trace file has all."""


def colour(index: int) -> tuple[str, Literal["-", "--", ":", "-."]]:
    """Colour and line style of the worker of this rank; after seven colours the line style changes."""
    return COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]


def above_most(values: Sequence[float]) -> float | None:
    """A limit that shows nearly everything: a few very long steps must not flatten the other lines."""
    if not values:
        return None
    ordered = sorted(values)
    return 1.25 * ordered[min(len(ordered) - 1, math.ceil(0.995 * len(ordered)) - 1)]


def batches_and_times(trial: TrialHistory, names: Sequence[str]) -> Plot:
    """Every worker's batch size (above) and own time (below) over steps, changes of CPU limits, and faults."""
    batches, own = [], []
    for index, name in enumerate(names):
        tint, style = colour(index)
        known = [(step, step.records[name]) for step in trial.steps if name in step.records]
        width = THIN + THICK_BY * min(len(names) - 1 - index, 3)
        numbers = [step.number for step, _ in known]
        batches.append(Line(name, numbers, [each.batch for _, each in known], tint, style, width, "steps"))
        measured = [(step.number, each.own * 1e3) for step, each in known if not step.marked]
        own.append(Line(name, [x for x, _ in measured], [y for _, y in measured], tint, style, THIN, "smooth"))
    happened = (*_changes(trial), *_faults(trial, names))
    unnamed = tuple(Mark(mark.x, "", mark.tint, mark.upper) for mark in happened)
    most = above_most([y for line in own for y in line.ys])
    return Plot(
        f"{trial.title}: batch size and own time by step",
        f"{trial.title}: batch sizes and own times",
        "step",
        (
            Panel("batch size (samples)", tuple(batches), happened, least=0, whole=True),
            Panel("own time (ms)", tuple(own), unnamed, least=0, most=most),
        ),
        from_zero=False,
        whole=True,
    )


def _changes(trial: TrialHistory) -> list[Mark]:
    """A line at the first step under each new set of CPU limits."""
    return [Mark(_step_at(trial, change.seconds, change.step), change.label, GREY) for change in trial.changes]


def _faults(trial: TrialHistory, names: Sequence[str]) -> list[Mark]:
    """A line at the first step after each fault, in the colour of its worker; those of one step share a line."""
    by_step: dict[int, list[FaultRecord]] = {}
    for fault in trial.faults:
        by_step.setdefault(_step_at(trial, fault.seconds, fault.step), []).append(fault)
    marks = []
    for first, faults in by_step.items():
        workers = {fault.worker for fault in faults}
        alone = faults[0].worker if len(workers) == 1 and faults[0].worker in names else None
        tint = GREY if alone is None else colour(names.index(alone))[0]
        marks.append(Mark(first, ", ".join(fault.act for fault in faults), tint, upper=True))
    return marks


def _step_at(trial: TrialHistory, seconds: float, otherwise: int) -> int:
    """The first step that was committed from then on."""
    return next((step.number for step in trial.steps if step.seconds >= seconds), otherwise)


def losses(trials: Sequence[TrialHistory]) -> tuple[Plot, ...]:
    """The training loss by step, which is the same whoever computes it, and by time, which is what is gained."""
    policies = list(dict.fromkeys(trial.policy for trial in trials))
    by_step, by_time, ends = [], [], []
    for index, trial in enumerate(trials):
        tint = TRIALS[policies.index(trial.policy) % len(TRIALS)]
        known = [(step.number, step.seconds, step.loss) for step in trial.steps if step.loss is not None]
        style, width = LINES[(trial.round - 1) % len(LINES)], THIN + 2 * THICK_BY * min(len(trials) - 1 - index, 3)
        values = [loss for *_, loss in known]
        by_step.append(Line(trial.title, [number for number, *_ in known], values, tint, style, width, "smooth"))
        seconds = [moment - trial.steps[0].seconds for _, moment, _ in known]
        by_time.append(Line(trial.title, seconds, values, tint, style, THIN, "smooth"))
        if seconds and trial.round == 1:
            ends.append(Mark(seconds[-1], f"{trial.title}: {wording.seconds(seconds[-1])}", tint, upper=True))
    positive = [y > 0 for line in by_step for y in line.ys]

    def plot(words: str, xlabel: str, lines: Sequence[Line], marks: Sequence[Mark] = ()) -> Plot:
        logarithmic = bool(positive) and all(positive)
        panel = Panel("training loss", tuple(lines), tuple(marks), logarithmic=logarithmic)
        return Plot(f"{words}, a line per trial", words, xlabel, (panel,), half=True)

    return (
        plot("Training loss by step", "step", by_step),
        plot("Training loss by time", "seconds since the first step", by_time, ends if len(trials) > 1 else ()),
    )


def timeline(trial: TrialHistory, names: Sequence[str]) -> Plot | None:
    """What each worker did in the steps around the first change of the batches, else in the first ones; None without
    a step.
    """
    steps = trial.steps
    moved = next(iter(adjustments(steps)), 0)
    first = max(moved - TIMELINE_STEPS // 2, 0)
    shown = steps[first : first + TIMELINE_STEPS]
    if not shown:
        return None
    began = min(record.time - record.own - record.wait for record in shown[0].records.values())
    spans = []
    for step in shown:
        for row, name in enumerate(names):
            record = step.records.get(name)
            if record is None:
                continue
            end, words = record.time - began, f"step {step.number}, {name}: {record.samples} samples, "
            done = end - record.wait
            tint, _ = colour(row)
            own, wait = wording.seconds(record.own), wording.seconds(record.wait)
            spans.append(Span(row, max(done - record.own, 0.0), done, tint, f"{words}computes {own}"))
            spans.append(Span(row, done, end, tint, f"{words}waits {wait}", waits=True))
    where = "around the first change of the batches" if moved else "at the beginning"
    marks = (Mark(shown[moved - first - 1].seconds - began, "new batches", GREY, upper=True),) if moved else ()
    panel = Panel("", marks=marks, rows=tuple(names), spans=tuple(spans))
    title = f"{trial.title}: {len(shown)} steps {where}, solid where a worker computes, pale where it waits"
    return Plot(title, title, "seconds", (panel,))


def own_times(profile: Profile) -> Plot:
    """The profile: every worker's own time over its batch size, with the interquartile range."""
    lines = []
    for index, worker in enumerate(profile.workers):
        tint, style = colour(index)
        lines.append(
            Line(
                worker.name,
                [point.batch for point in worker.points],
                [point.own_seconds * 1e3 for point in worker.points],
                tint,
                style,
                shape="bars",
                spreads=[point.spread_seconds * 1e3 / 2 for point in worker.points],
            )
        )
    return Plot(
        "Own time of every worker by batch size",
        "Profile: own time by batch size",
        "batch size (samples)",
        (Panel("own time (ms)", tuple(lines), least=0),),
    )


def throughput_by_size(points: Sequence[SizePoint], prices: Mapping[str, float | None]) -> Plot:
    """What scaling has measured: samples per second by number of workers, and where every group has a price, what a
    million samples cost. Of sizes with as many workers the one with fewer of the first group is drawn first.
    """
    ordered = sorted(points, key=lambda each: (_workers(each), each.workers))
    counts = [_workers(each) for each in ordered]
    tint, style = colour(0)
    throughput = Line("", counts, [each.throughput for each in ordered], tint, style, THIN, "bars")
    panels = [Panel("samples per second", (throughput,), least=0)]
    if all(prices.get(group) is not None for each in ordered for group, _ in each.workers):
        costs = [sum(count * (prices[group] or 0) for group, count in each.workers) / 3600 for each in ordered]
        dear = [1e6 * cost / each.throughput for cost, each in zip(costs, ordered, strict=True)]
        panels.append(Panel("cost of a million samples", (Line("", counts, dear, tint, style, THIN, "bars"),), least=0))
    words = "Throughput by number of workers, as scaling has measured it"
    return Plot(words, words, "workers", tuple(panels), whole=True)


def _workers(point: SizePoint) -> int:
    return sum(count for _, count in point.workers)
