"""The plots of trials, as values: batch sizes and own times over steps, the loss over time, and profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from heterotrain_operator.core.model import SizePoint
from heterotrain_operator.experiments.figures.ceiling import Profile
from heterotrain_operator.experiments.figures.history import FaultRecord, TrialHistory
from heterotrain_operator.experiments.report.value import Line, Mark, Panel, Plot

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart; a worker keeps its colour in every picture."""

LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

THIN, THICK_BY = 1.6, 0.9
"""Line widths in points: where lines lie on each other, the lower ones stay visible."""

LEGEND_UP_TO = 16
"""Workers up to which a legend can be read."""

GREY = "#555555"


def colour(index: int) -> tuple[str, str]:
    """Colour and line style of the worker of this rank; after seven colours the line style changes."""
    return COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]


def above_most(values: Sequence[float]) -> float | None:
    """A limit that shows nearly everything: a few very long steps must not flatten the other lines."""
    if not values:
        return None
    ordered = sorted(values)
    return 1.25 * ordered[min(len(ordered) - 1, math.ceil(0.995 * len(ordered)) - 1)]


def batches_and_times(trial: TrialHistory, names: Sequence[str], file: str) -> Plot:
    """Every worker's batch size (above) and own time (below) over steps, changes of CPU limits, and faults."""
    batches, own = [], []
    for index, name in enumerate(names):
        tint, style = colour(index)
        known = [(step, step.records[name]) for step in trial.steps if name in step.records]
        width = THIN + THICK_BY * min(len(names) - 1 - index, 3)
        numbers = [step.number for step, _ in known]
        batches.append(Line(name, numbers, [each.batch for _, each in known], tint, style, width, "steps"))
        measured = [(step.number, each.own * 1e3) for step, each in known if not step.marked]
        own.append(Line("", [x for x, _ in measured], [y for _, y in measured], tint, style, THIN, "smooth"))
    happened = (*_changes(trial), *_faults(trial, names))
    unnamed = tuple(Mark(mark.x, "", mark.tint, mark.upper) for mark in happened)
    most = above_most([y for line in own for y in line.ys])
    return Plot(
        file,
        f"{trial.title}: batch size and own time by step",
        f"{trial.title}: batch sizes and own times",
        "step",
        (
            Panel("batch size (samples)", tuple(batches), happened, least=0, whole=True),
            Panel("own time (ms)", tuple(own), unnamed, least=0, most=most),
        ),
        legend="outside" if len(names) <= LEGEND_UP_TO else "none",
        height_inches=5.6,
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


def losses(trials: Sequence[TrialHistory]) -> Plot:
    """The training loss over time, one line per trial."""
    policies = list(dict.fromkeys(trial.policy for trial in trials))
    lines = []
    for trial in trials:
        # Trials are coloured from the other end, so that a trial is not taken for a worker.
        tint = COLOURS[-1 - policies.index(trial.policy) % len(COLOURS)]
        known = [(step.seconds - trial.steps[0].seconds, step.loss) for step in trial.steps if step.loss is not None]
        style = LINES[(trial.round - 1) % len(LINES)]
        lines.append(Line(trial.title, [x for x, _ in known], [y for _, y in known], tint, style, THIN, "smooth"))
    positive = [y > 0 for line in lines for y in line.ys]
    return Plot(
        "loss.png",
        "Training loss over time, one line per trial",
        "Training loss over time",
        "seconds since the first step",
        (Panel("training loss", tuple(lines), logarithmic=bool(positive) and all(positive)),),
        legend="inside" if trials else "none",
    )


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
                marker=MARKERS[index % len(MARKERS)],
                spreads=[point.spread_seconds * 1e3 / 2 for point in worker.points],
            )
        )
    return Plot(
        "profile.png",
        "Own time of every worker by batch size",
        "Profile: own time by batch size",
        "batch size (samples)",
        (Panel("own time (ms)", tuple(lines), least=0),),
        legend="outside" if len(profile.workers) <= LEGEND_UP_TO else "none",
    )


def throughput_by_size(points: Sequence[SizePoint], prices: Mapping[str, float | None], file: str) -> Plot:
    """What scaling has measured: samples per second by number of workers, and where every group has a price, what a
    million samples cost. Of sizes with as many workers the one with fewer of the first group is drawn first.
    """
    ordered = sorted(points, key=lambda each: (_workers(each), each.workers))
    counts = [_workers(each) for each in ordered]
    tint, style = colour(0)
    throughput = Line("", counts, [each.throughput for each in ordered], tint, style, THIN, marker=MARKERS[0])
    panels = [Panel("samples per second", (throughput,), least=0)]
    if all(prices.get(group) is not None for each in ordered for group, _ in each.workers):
        costs = [sum(count * (prices[group] or 0) for group, count in each.workers) / 3600 for each in ordered]
        dear = [1e6 * cost / each.throughput for cost, each in zip(costs, ordered, strict=True)]
        panels.append(
            Panel("cost of a million samples", (Line("", counts, dear, tint, style, THIN, marker=MARKERS[0]),), least=0)
        )
    words = "Throughput by number of workers, as scaling has measured it"
    return Plot(
        file, words, words, "workers", tuple(panels), legend="none", height_inches=2.4 * len(panels) + 1.2, whole=True
    )


def _workers(point: SizePoint) -> int:
    return sum(count for _, count in point.workers)
