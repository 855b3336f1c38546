"""Draw plots as inline SVG that is as wide as its place: text keeps its size, and the lines alone are stretched.

A panel is an `<svg>` whose places are shares of its width, with another one in it that holds the lines in a square of
SIDE units. The page's script zooms by changing that inner one's view box, and reads the values under the pointer from
the paths, so that nothing is in the page twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.report.value import BeforeAfter, Line, Panel, Plot, WorkerStep

SIDE = 1000
"""Units of a panel's inner square, in both directions."""

SMOOTHED_OVER = 11
"""Steps in the running median that the strong lines show; faint dots are single steps."""

DRAWN_POINTS = 1_000
"""Points of a line that are drawn; of more, every second one, or third, and so on."""

LEGEND_UP_TO = 16
"""Lines up to which a legend can be read."""

LONGEST_NAME = 40
"""Characters of a name that have room on a page of 390 pixels; a longer one lacks its middle."""

HEIGHT, ROW = 210, 46
"""Pixels of a panel, and of a row of spans."""

TICKS = 5
DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "7 3 2 3"}


@dataclass(frozen=True, slots=True)
class _Scale:
    """What of an axis is shown, and where a value lies on it, from 0 to 1."""

    least: float
    most: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)

    def ticks(self, *, whole: bool) -> list[float]:
        if self.logarithmic:
            least, most = math.log10(self.least), math.log10(self.most)
            powers = [10.0**power for power in range(math.ceil(least), math.floor(most) + 1)]
            parts = (1,) if len(powers) > 2 else (1, 2, 5)
            found = [10.0**power * part for power in range(math.floor(least), math.ceil(most) + 1) for part in parts]
            return [tick for tick in found if self.least <= tick <= self.most]
        rough = (self.most - self.least) / TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def _scale(values: Sequence[float], least: float | None, most: float | None, *, logarithmic: bool = False) -> _Scale:
    low = min(values, default=0.0) if least is None else least
    high = max(values, default=1.0) if most is None else most
    if logarithmic:
        return _Scale(low / 1.1, high * 1.1, logarithmic=True)
    if most is None:
        high += 0.06 * (high - low)
    return _Scale(low, high if high > low else low + 1.0)


def figure(plot: Plot) -> str:
    """A plot as an HTML figure with its legend, and an SVG for each panel."""
    xs = [x for panel in plot.panels for line in panel.lines for x in line.xs]
    xs += [x for panel in plot.panels for span in panel.spans for x in (span.begin, span.end)]
    across = _scale(xs, 0.0 if plot.from_zero and min(xs, default=0.0) >= 0 else None, max(xs, default=1.0))
    panels = "".join(_panel(panel, across, plot, last=panel is plot.panels[-1]) for panel in plot.panels)
    kind, room = "chart half" if plot.half else "chart", "panels rows" if plot.panels[0].rows else "panels"
    whole = " data-whole" if plot.whole else ""
    return (
        f'<figure class="{kind}" data-x0="{across.least:.9g}" data-x1="{across.most:.9g}" '
        f'data-x="{escape(plot.xlabel)}"{whole}><figcaption>{escape(plot.title)}{_legend(plot)}</figcaption>'
        f'<div class="{room}">{panels}</div><p class="x">{escape(plot.xlabel)}</p></figure>'
    )


def _legend(plot: Plot) -> str:
    lines = [line for line in plot.panels[0].lines if line.label]
    if len(lines) < 2 or len(lines) > LEGEND_UP_TO:
        return ""
    keys = "".join(f"<span{_title(line.label)}>{_key(line)}{_name(line.label)}</span>" for line in lines)
    return f'<span class="legend">{keys}</span>'


def _name(text: str) -> str:
    return escape(wording.shortened(text, LONGEST_NAME))


def _title(text: str) -> str:
    return f' title="{escape(text)}"' if len(text) > LONGEST_NAME else ""


def _named(text: str) -> str:
    """What a text of a drawing holds: the name, or a shorter one that says the whole by hover."""
    return _name(text) + (f"<title>{escape(text)}</title>" if len(text) > LONGEST_NAME else "")


def _key(line: Line) -> str:
    return f'<svg class="key" aria-hidden="true"><path d="M0 6H22" {_stroke(line, line.width)}/></svg>'


def _stroke(line: Line, width: float) -> str:
    dashes = f' stroke-dasharray="{DASHES[line.style]}"' if DASHES[line.style] else ""
    return f'style="stroke:{line.tint};stroke-width:{width:g}px"{dashes}'


def _panel(panel: Panel, across: _Scale, plot: Plot, *, last: bool) -> str:
    height = ROW * len(panel.rows) if panel.rows else HEIGHT
    ys = [y for line in panel.lines for y in line.ys] + ([] if panel.reference is None else [panel.reference])
    up = _scale(ys, panel.least, panel.most, logarithmic=panel.logarithmic)
    parts = [] if panel.rows else list(_grid(up, height, whole=panel.whole))
    for tick in across.ticks(whole=plot.whole):
        x = f"{across.place(tick):.2%}"
        label = f'<text x="{x}" y="{height + 16}" text-anchor="middle">{_number(tick)}</text>' if last else ""
        parts.append(f'<g class="tick"><line x1="{x}" x2="{x}" y2="{height}"/>{label}</g>')
    inner = "".join([*_lines(panel, across, up), *_rows(panel, across), *_verticals(panel, across)])
    scale = f'data-y0="{up.least:.6g}" data-y1="{up.most:.6g}"{" data-log" if up.logarithmic else ""}'
    data = (
        f'<svg class="data" viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" width="100%" height="{height}" '
        f"{scale}>{inner}</svg>"
    )
    names = "".join(
        f'<text class="row" x="2" y="{ROW * row + 13}">{_named(name)}</text>' for row, name in enumerate(panel.rows)
    )
    words = f'<p class="y">{escape(panel.ylabel)}</p>' if panel.ylabel else ""
    return (
        f'{words}<svg class="panel" role="img" aria-label="{escape(plot.words)}" width="100%" height="{height}">'
        f"{''.join(parts)}{data}{names}{''.join(_texts(panel, across, height))}</svg>"
    )


def _grid(up: _Scale, height: float, *, whole: bool) -> Iterator[str]:
    for tick in up.ticks(whole=whole):
        y = height * (1 - up.place(tick))
        yield f'<line x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _lines(panel: Panel, across: _Scale, up: _Scale) -> Iterator[str]:
    if panel.reference is not None:
        yield f'<path class="reference" d="M0 {SIDE * (1 - up.place(panel.reference)):.1f}H{SIDE}"/>'
    for line in panel.lines:
        stride = max(math.ceil(len(line.xs) / DRAWN_POINTS), 1)
        ys = running_median(line.ys, SMOOTHED_OVER) if line.shape == "smooth" else line.ys
        # Far above the upper end a point is out of sight wherever it is.
        points = [
            (SIDE * across.place(x), SIDE * (1 - min(up.place(y), 9.0)))
            for x, y in list(zip(line.xs, ys, strict=True))[::stride]
        ]
        if line.shape == "smooth":
            dots = "".join(
                f"M{SIDE * across.place(x):.1f} {SIDE * (1 - min(up.place(y), 9.0)):.1f}h0"
                for x, y in list(zip(line.xs, line.ys, strict=True))[::stride]
            )
            yield f'<path class="dots" d="{dots}" style="stroke:{line.tint}"/>'
        if line.shape == "steps":
            points = _corners(points)
        if line.shape == "bars":
            for (x, _), y, spread in zip(points, line.ys, line.spreads or [0.0] * len(points), strict=False):
                ends = (SIDE * (1 - up.place(value)) for value in (y - spread, y + spread))
                yield f'<path d="M{x:.1f} {next(ends):.1f}V{next(ends):.1f}" {_stroke(line, THICK)}/>'
        if points:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            yield f'<path class="line" data-name="{escape(line.label)}" d="M{path}" {_stroke(line, line.width)}/>'


THICK = 3.0


def _corners(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points at which a value that is constant between changes ends and begins."""
    kept = list(points[:1])
    for before, after in pairwise(points):
        if after[1] != before[1]:
            middle = (before[0] + after[0]) / 2
            kept += [(middle, before[1]), (middle, after[1])]
    return [*kept, *points[-1:]]


def _rows(panel: Panel, across: _Scale) -> Iterator[str]:
    """Bars in rows; each says by hover what it is."""
    high = SIDE / max(len(panel.rows), 1)
    for span in panel.spans:
        left, width = SIDE * across.place(span.begin), SIDE * (across.place(span.end) - across.place(span.begin))
        kind = "span waits" if span.waits else "span"
        yield (
            f'<rect class="{kind}" x="{left:.2f}" y="{(span.row + 0.4) * high:.1f}" width="{max(width, 0):.2f}" '
            f'height="{0.52 * high:.1f}" style="fill:{span.tint}"><title>{escape(span.words)}</title></rect>'
        )


def _verticals(panel: Panel, across: _Scale) -> Iterator[str]:
    for mark in panel.marks:
        if 0 <= across.place(mark.x) <= 1:
            kind = "mark upper" if mark.upper else "mark"
            yield f'<path class="{kind}" d="M{SIDE * across.place(mark.x):.1f} 0V{SIDE}" style="stroke:{mark.tint}"/>'


def _texts(panel: Panel, across: _Scale, height: float) -> Iterator[str]:
    """The names of what happened, each on the side of its line where there is room; the next one a line lower."""
    for number, mark in enumerate(each for each in panel.marks if each.text and 0 <= across.place(each.x) <= 1):
        place = across.place(mark.x)
        anchor, shift = ("end", -4) if place > 0.5 else ("start", 4)
        y = 12 + 13 * (number % 4) if mark.upper else height - 6 - 13 * (number % 4)
        yield (
            f'<text class="mark" data-at="{place:.5f}" x="{place:.2%}" dx="{shift}" y="{y:.0f}" text-anchor="{anchor}" '
            f'style="fill:{mark.tint}">{_named(mark.text)}</text>'
        )


def running_median(values: Sequence[float], over: int) -> list[float]:
    """The median of the `over` values around each one (fewer at the ends)."""
    half = over // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


BAR, GAP, HEAD = 15, 4, 18
"""Pixels: a bar's height, the room below it, and that of a worker's name above its bars."""

BATCH_AT, BATCH_WIDTH, STEP_AT, STEP_WIDTH = 18.0, 17.0, 46.0, 38.0
"""Where the columns of batches and of steps begin, and how wide they are, in percent; words follow the bars."""

PEERS, EXCHANGE, SERVER = "waits for slower workers", "all-reduce", "waits for the server"
KINDS = (("own", "computes"), ("peers", PEERS), ("exchange", EXCHANGE))


def before_after(picture: BeforeAfter) -> str:
    """For each worker its batch and a mean step, one bar below the other for each set of batches."""
    every = [step for workers in picture.sets.values() for step in workers.values()]
    scale = WorkerStep(max(step.batch for step in every) or 1, max(step.seconds for step in every) or 1.0, 0.0, 0.0)
    names = list(dict.fromkeys(name for workers in picture.sets.values() for name in workers))
    parts, top = [], 0
    kinds = (("own", "computes"), ("exchange", SERVER)) if picture.alone else KINDS
    for index, name in enumerate(names):
        parts.append(f'<text class="row" y="{top + 12}">{_named(name)}</text>')
        top += HEAD
        for label, workers in picture.sets.items():
            if name in workers:
                parts.append(f'<g transform="translate(0 {top})" style="fill:var(--worker-{index % 7})">')
                parts += [*_bars(label, workers[name], scale, kinds), "</g>"]
                top += BAR + GAP
        top += GAP
    keys = "".join(
        f'<span><svg class="key" aria-hidden="true"><rect class="{kind}" width="22" height="11"/></svg>{words}</span>'
        for kind, words in kinds
    )
    return (
        f'<figure class="balance"><figcaption>{escape(picture.title)}</figcaption>'
        f'<p class="faint">{escape(picture.words)}</p><p class="legend">{keys}</p>'
        f'<p class="heads"><span style="left:{BATCH_AT}%">batch</span>'
        f'<span style="left:{STEP_AT}%">mean step</span></p>'
        f'<svg class="bars" role="img" aria-label="{escape(picture.words)}" width="100%" height="{top}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _bars(label: str, step: WorkerStep, scale: WorkerStep, kinds: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f'<text class="faint" y="12">{escape(label)}</text>'
    wide = BATCH_WIDTH * step.batch / scale.batch
    yield _bar("own", BATCH_AT, wide, f"{label}: {step.batch} samples")
    yield f'<text x="{BATCH_AT + wide:.2f}%" dx="4" y="12">{step.batch}</text>'
    left = STEP_AT
    lasted = {"own": step.own_seconds, "peers": step.peers_seconds, "exchange": step.exchange_seconds}
    for kind, words in kinds:
        seconds = lasted[kind]
        wide = STEP_WIDTH * seconds / scale.seconds
        yield _bar(kind, left, wide, f"{label}: {words} {wording.seconds(seconds)}")
        left += wide
    waits = lasted[kinds[1][0]] / (step.seconds or 1.0)
    yield f'<text x="{left:.2f}%" dx="4" y="12">waits {wording.percent(waits)}</text>'


def _bar(kind: str, left: float, width: float, words: str) -> str:
    size = f'x="{left:.2f}%" width="{width:.2f}%" height="{BAR}"'
    return f'<rect class="{kind}" {size}><title>{escape(words)}</title></rect>'
