"""Draw the plots of a report; the same plot gives the same bytes.

The module imports matplotlib, so it is itself imported only when a report is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heterotrain_operator.experiments.report.value import Line, Mark, Panel, Plot

DOTS_PER_INCH = 130
WIDTH_INCHES = 9.0

SMOOTHED_OVER = 11
"""Steps in the running median that the strong lines show; faint dots are single steps."""


def png_of(plot: Plot) -> bytes:
    """A plot as PNG."""
    figure = Figure(figsize=(WIDTH_INCHES, plot.height_inches), layout="constrained")
    all_axes: list[Axes] = list(figure.subplots(len(plot.panels), 1, sharex=True, squeeze=False)[:, 0])
    for axes, panel in zip(all_axes, plot.panels, strict=True):
        _draw(axes, panel)
    first, last = all_axes[0], all_axes[-1]
    last.set_xlabel(plot.xlabel)
    if plot.from_zero:
        last.set_xlim(left=0)
    if plot.whole:
        last.xaxis.set_major_locator(MaxNLocator(integer=True))
    first.set_title(plot.title, loc="left", fontweight="bold")
    if plot.legend == "outside":
        figure.legend(*first.get_legend_handles_labels(), loc="outside right center", frameon=False)
    elif plot.legend == "inside":
        first.legend(frameon=False)
    buffer = BytesIO()
    # No software version or date in the file: the same run draws the same bytes.
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    for mark in panel.marks:
        _draw_mark(axes, mark)
    axes.set_ylabel(panel.ylabel)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.reference is not None:
        axes.axhline(panel.reference, color="#555555", linewidth=1.0, linestyle=":")
    if panel.logarithmic:
        axes.set_yscale("log")
    if panel.whole:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.least is not None:
        axes.set_ylim(panel.least, panel.most)


def _draw_line(axes: Axes, line: Line) -> None:
    look: dict[str, Any] = {"color": line.tint, "linestyle": line.style, "label": line.label}
    if line.shape == "bars":
        axes.errorbar(line.xs, line.ys, yerr=line.spreads, marker=line.marker, markersize=5, capsize=3, **look)
    elif line.shape == "steps":
        axes.step(line.xs, line.ys, where="mid", linewidth=line.width, **look)
    elif line.shape == "smooth":
        axes.plot(line.xs, line.ys, ".", color=line.tint, alpha=0.3, markersize=4, markeredgewidth=0)
        axes.plot(line.xs, running_median(line.ys, SMOOTHED_OVER), linewidth=line.width, **look)
    else:
        axes.plot(line.xs, line.ys, linewidth=line.width, **look)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    line: tuple[Any, float, float] = ("-.", 1.0, 0.7) if mark.upper else (":", 1.2, 1.0)
    axes.axvline(mark.x, color=mark.tint, linestyle=line[0], linewidth=line[1], alpha=line[2])
    if mark.text:
        axes.annotate(
            mark.text,
            (mark.x, 1.0 if mark.upper else 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3 if mark.upper else 3),
            textcoords="offset points",
            va="top" if mark.upper else "bottom",
            fontsize="small",
            color=mark.tint,
            rotation=90 if mark.upper else 0,
        )


def running_median(values: Sequence[float], over: int) -> list[float]:
    """The median of the `over` values around each one (fewer at the ends)."""
    half = over // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
