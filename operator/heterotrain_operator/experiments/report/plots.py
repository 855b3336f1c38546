"""Pictures of a run: batch sizes and own times over steps, and the loss over time.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; a worker keeps its colour in every
picture. The module imports matplotlib, so it is itself imported only when a report is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heterotrain_operator.experiments.figures.faults import FaultRecord
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.profile import Profile
from heterotrain_operator.experiments.figures.steps import Step

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


LINES = ("-", "--", ":", "-.")


MARKERS = ("o", "s", "^", "D", "v", "P", "X")


DOTS_PER_INCH = 130


WIDTH_INCHES = 9.0


SMOOTHED_OVER = 11
"""Steps in the running median that the strong lines show; faint dots are single steps."""


THIN, THICK_BY = 1.6, 0.9
"""Line widths in points: where lines lie on each other, the lower ones stay visible."""


LEGEND_UP_TO = 16
"""Workers up to which a legend can be read."""


def colour(index: int) -> tuple[str, str]:
    """Colour and line style of the worker of this rank; after seven colours the line style changes."""
    return COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]


def png_of(figure: Figure) -> bytes:
    """A figure as PNG; the same figure gives the same bytes."""
    buffer = BytesIO()
    # No software version or date in the file: the same run draws the same bytes.
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def dress(axes: Axes, ylabel: str) -> None:
    """The look of all pictures."""
    axes.set_ylabel(ylabel)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def running_median(values: Sequence[float], over: int) -> list[float]:
    """The median of the `over` values around each one (fewer at the ends)."""
    half = over // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _width(index: int, count: int) -> float:
    return THIN + THICK_BY * min(count - 1 - index, 3)


def _dots(axes: Axes, xs: Sequence[float], ys: Sequence[float], tint: str) -> None:
    axes.plot(xs, ys, ".", color=tint, alpha=0.3, markersize=4, markeredgewidth=0)


def above_most(values: Sequence[float]) -> float:
    """A limit that shows nearly everything: a few very long steps must not flatten the other lines."""
    ordered = sorted(values)
    return 1.25 * ordered[min(len(ordered) - 1, math.ceil(0.995 * len(ordered)) - 1)]


def _changes(axes: Axes, trial: TrialHistory, *, named: bool) -> None:
    """A line at the first step under each new set of CPU limits."""
    for change in trial.changes:
        first = next((step.number for step in trial.steps if step.seconds >= change.seconds), change.step)
        axes.axvline(first, color="#555555", linestyle=":", linewidth=1.2)
        if named:
            axes.annotate(
                change.label,
                (first, 0.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, 3),
                textcoords="offset points",
                va="bottom",
                fontsize="small",
                color="#555555",
            )


def _faults(axes: Axes, trial: TrialHistory, names: Sequence[str], *, named: bool) -> None:
    """A line at the first step after each fault, in the colour of its worker; those of one step share a line."""
    by_step: dict[int, list[FaultRecord]] = {}
    for fault in trial.faults:
        first = next((step.number for step in trial.steps if step.seconds >= fault.seconds), fault.step)
        by_step.setdefault(first, []).append(fault)
    for first, faults in by_step.items():
        workers = {fault.worker for fault in faults}
        alone = names.index(faults[0].worker) if len(workers) == 1 and faults[0].worker in names else None
        tint = "#555555" if alone is None else colour(alone)[0]
        axes.axvline(first, color=tint, linestyle="-.", linewidth=1.0, alpha=0.7)
        if named:
            axes.annotate(
                ", ".join(fault.act for fault in faults),
                (first, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize="small",
                color=tint,
                rotation=90,
            )


def batches_and_times(trial: TrialHistory, names: Sequence[str]) -> bytes:
    """PNG of one trial: every worker's batch size (above) and own time (below) over steps, changes of CPU
    limits, and faults."""
    figure = Figure(figsize=(WIDTH_INCHES, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    shown: list[float] = []
    for index, name in enumerate(names):
        _draw_batches(above, trial, name, index, len(names))
        shown += _draw_own_times(below, trial, name, index)
    _changes(above, trial, named=True)
    _changes(below, trial, named=False)
    _faults(above, trial, names, named=True)
    _faults(below, trial, names, named=False)
    dress(above, "batch size (samples)")
    dress(below, "own time (ms)")
    below.set_xlabel("step")
    above.set_ylim(bottom=0)
    below.set_ylim(0, above_most(shown) if shown else None)
    above.yaxis.set_major_locator(MaxNLocator(integer=True))
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    above.set_title(f"{trial.title}: batch sizes and own times", loc="left", fontweight="bold")
    if len(names) <= LEGEND_UP_TO:
        figure.legend(*above.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return png_of(figure)


def _draw_batches(axes: Axes, trial: TrialHistory, name: str, index: int, count: int) -> None:
    tint, line = colour(index)
    known = [(step.number, step.records[name]) for step in trial.steps if name in step.records]
    axes.step(
        [number for number, _ in known],
        [record.batch for _, record in known],
        where="mid",
        color=tint,
        linestyle=line,
        linewidth=_width(index, count),
        label=name,
    )


def _draw_own_times(axes: Axes, trial: TrialHistory, name: str, index: int) -> list[float]:
    """Returns the own times, in milliseconds."""
    tint, line = colour(index)
    measured = [
        (step.number, step.records[name].own * 1e3) for step in trial.steps if name in step.records and not step.marked
    ]
    numbers = [number for number, _ in measured]
    own = [milliseconds for _, milliseconds in measured]
    _dots(axes, numbers, own, tint)
    axes.plot(numbers, running_median(own, SMOOTHED_OVER), line, color=tint, linewidth=THIN)
    return own


def _timeline(steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    known = [(step.seconds - steps[0].seconds, loss) for step in steps if (loss := step.loss) is not None]
    return [seconds for seconds, _ in known], [loss for _, loss in known]


def losses(trials: Sequence[TrialHistory]) -> bytes:
    """PNG of the training loss over time, one line per trial."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
    axes = figure.subplots()
    policies = list(dict.fromkeys(trial.policy for trial in trials))
    everything: list[float] = []
    for trial in trials:
        # Trials are coloured from the other end, so that a trial is not taken for a worker.
        tint = COLOURS[-1 - policies.index(trial.policy) % len(COLOURS)]
        seconds, values = _timeline(trial.steps)
        everything.extend(values)
        line = LINES[(trial.round - 1) % len(LINES)]
        _dots(axes, seconds, values, tint)
        axes.plot(seconds, running_median(values, SMOOTHED_OVER), line, color=tint, linewidth=THIN, label=trial.title)
    dress(axes, "training loss")
    if everything and min(everything) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("seconds since the first step")
    axes.set_xlim(left=0)
    axes.set_title("Training loss over time", loc="left", fontweight="bold")
    if trials:
        axes.legend(frameon=False)
    return png_of(figure)


def own_times(profile: Profile) -> bytes:
    """PNG of the profile: every worker's own time over its batch size, with the interquartile range."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, worker in enumerate(profile.workers):
        tint, line = colour(index)
        axes.errorbar(
            [point.batch for point in worker.points],
            [point.own_seconds * 1e3 for point in worker.points],
            yerr=[point.spread_seconds * 1e3 / 2 for point in worker.points],
            color=tint,
            linestyle=line,
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            capsize=3,
            label=worker.name,
        )
    dress(axes, "own time (ms)")
    axes.set_xlabel("batch size (samples)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_title("Profile: own time by batch size", loc="left", fontweight="bold")
    if len(profile.workers) <= LEGEND_UP_TO:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return png_of(figure)
