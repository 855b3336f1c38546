"""Charts of recorded results as SVG, written by hand so that the same results give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import log10
from statistics import median

from rich.console import Console
from rich.text import Text
from table import OWN_POLICY, UNIFORM, Document, Documents
from tables_measured import by_policy
from tables_simulated import compared, mean_settled

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999", "#000000")
"""Distinguishable for nearly everybody (Okabe and Ito)."""

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 60


class Chart:
    """A frame with a title, an upright axis from `low` to `high`, and what is drawn into it; a `panel` of a greater
    chart has a place and a size there.
    """

    def __init__(
        self,
        title: str,
        unit: str,
        low: float,
        high: float,
        ticks: int = 5,
        *,
        panel: tuple[int, int, int, int] | None = None,
        said: Callable[[float], str] = "{:g}".format,
    ) -> None:
        self._low, self._high = low, high
        x, y, self._width, self._height = panel or (0, 0, WIDTH, HEIGHT)
        place = "" if panel is None else f'x="{x}" y="{y}" width="{self._width}" height="{self._height}" '
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {place}viewBox="0 0 {self._width} {self._height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{self._width}" height="{self._height}" fill="white"/>',
        ]
        self.text(LEFT, 20, title, size=14)
        self.text(LEFT, 38, unit)
        for tick in range(ticks + 1):
            value = low + (high - low) * tick / ticks
            self.line(LEFT, self.y(value), self._width - RIGHT, self.y(value), "#ddd")
            self.text(LEFT - 6, self.y(value) + 4, said(value), anchor="end")

    def y(self, value: float) -> float:
        """Where a value lies."""
        share = (min(max(value, self._low), self._high) - self._low) / (self._high - self._low)
        return self._height - BOTTOM - share * (self._height - TOP - BOTTOM)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> None:
        """Words at a place."""
        where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        self._lines.append(f"<text {where}>{escape(words)}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        """A thin line."""
        self._lines.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" fill="none"/>')

    def steps(self, points: Sequence[tuple[float, float]], end: float, colour: str) -> None:
        """A value that holds from each point's place until the next one's."""
        path = f"M{points[0][0]:.1f} {self.y(points[0][1]):.1f}"
        for (_, _), (x, value) in pairwise(points):
            path += f"H{x:.1f}V{self.y(value):.1f}"
        self._lines.append(f'<path d="{path}H{end:.1f}" stroke="{colour}" stroke-width="2" fill="none"/>')

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """A line through points, given by their place and value."""
        path = "L".join(f"{x:.1f} {self.y(value):.1f}" for x, value in points)
        self._lines.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')

    def bar(self, x: float, width: float, value: float, colour: str) -> None:
        """From the axis' low end up to a value."""
        top = self.y(value)
        size = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"'
        self._lines.append(f'<rect {size} fill="{colour}"/>')

    def legend(self, names: Sequence[str]) -> None:
        """The names of what has the first colours."""
        for index, name in enumerate(names):
            x = LEFT + index * (WIDTH - LEFT - RIGHT) / len(names)
            self._lines.append(f'<rect x="{x:.1f}" y="{HEIGHT - 20}" width="10" height="10" fill="{COLOURS[index]}"/>')
            self.text(x + 14, HEIGHT - 11, name, size=10)

    def batches(self, document: Document) -> None:
        """Each worker's batch over the steps, plan by plan."""
        plans, steps, span = document["plans"], document["steps"], self._width - LEFT - RIGHT
        for tick in range(0, steps + 1, 200):
            self.text(LEFT + tick / steps * span, self._height - BOTTOM + 18, str(tick), anchor="middle")
        self.text(self._width / 2, self._height - BOTTOM + 36, "step", anchor="middle")
        for rank in range(len(document["workers"])):
            points = [(LEFT + plan["step"] / steps * span, plan["batches"][rank]) for plan in plans]
            self.steps(points, LEFT + span, COLOURS[rank % len(COLOURS)])

    def done(self) -> str:
        """The document."""
        return "\n".join([*self._lines, "</svg>\n"])


def grouped(chart: Chart, groups: Mapping[str, Mapping[str, float]], names: Sequence[str], form: str) -> str:
    """Bars side by side for each group, by name, with their values above them."""
    span = (WIDTH - LEFT - RIGHT) / len(groups)
    width = 0.84 * span / len(names)
    for index, (group, values) in enumerate(groups.items()):
        left = LEFT + index * span + 0.08 * span
        chart.text(left + 0.42 * span, HEIGHT - BOTTOM + 18, group, anchor="middle")
        for place, name in enumerate(names):
            if name in values:
                chart.bar(left + place * width, width - 2, values[name], COLOURS[place])
                middle = left + place * width + width / 2
                chart.text(middle, chart.y(values[name]) - 4, form.format(values[name]), anchor="middle", size=9)
    chart.legend(names)
    return chart.done()


def convergence(document: Document) -> str:
    """Each worker's batch, plan by plan, in a simulated run in which one becomes twice as slow."""
    title = f"Batches of {len(document['workers'])} simulated workers under Optimal: {document['scenario']}"
    chart = Chart(title, "samples of a worker in a step", 0, _above([document]))
    chart.batches(document)
    return chart.done()


def courses(document: Document) -> str:
    """The same for each policy, side by side."""
    width, height = WIDTH // 2, 220
    found = document["courses"]
    panels = []
    for index, course in enumerate(found):
        unit = f"samples in a step; {course['ratio']:.2f} times the best split's time"
        place = (index % 2 * width, index // 2 * height, width, height)
        panel = Chart(course["policy"], unit, 0, _above(found), 4, panel=place)
        panel.batches(course)
        panels.append(panel.done())
    size = f'viewBox="0 0 {WIDTH} {height * -(-len(found) // 2)}"'
    return "".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n', *panels, "</svg>\n"])


def _above(documents: Documents) -> int:
    greatest = max(max(plan["batches"]) for document in documents for plan in document["plans"])
    return 20 * int(1 + greatest // 20)


def oracle(documents: Documents) -> str:
    """The time of all steps over the oracle's, by policy and number of workers."""
    groups = {
        f"{workers} workers": {name: mean_settled(own) for name, own in rows.items()}
        for workers, rows, _ in compared(documents)
    }
    title = "Time of a settled step over that of the best split (E), simulated"
    return grouped(
        Chart(title, "geometric mean of the scenarios; 1 is the oracle", 1, 2),
        groups,
        list(next(iter(groups.values()))),
        "{:.2f}",
    )


def throughput(documents: Documents) -> str:
    """Samples per second over those of equal batches, by workload, at the most unequal level."""
    groups = {}
    for document in documents:
        if document["level"] == "8":
            rates = {
                policy: median(trial["samples_per_second"] for trial in trials)
                for policy, trials in by_policy(document["arms"]).items()
            }
            groups[document["workload"]] = {name: own / rates[UNIFORM] for name, own in rates.items()}
    names = (UNIFORM, "Static", "Proportional", OWN_POLICY)
    title = "Samples per second over those of equal batches, at heterogeneity level 8"
    return grouped(Chart(title, "times Uniform, after a warm-up of 20 steps", 0, 4, 4), groups, names, "{:.1f}")


def times_as_fast(document: Document) -> float:
    """How many times as fast our policy did all steps as equal batches did."""
    seconds = {policy: steps[-1][0] for policy, steps in document["losses"].items()}
    return seconds[UNIFORM] / seconds[OWN_POLICY]


def losses(document: Document) -> str:
    """The loss by time, the median of five steps, under our policy and under equal batches."""
    found = document["losses"]
    end = 10 * (1 + found[UNIFORM][-1][0] // 10)
    title = f"{times_as_fast(document):.1f} times as fast on CPU workers of 1.0, 0.5 and 0.25 cores, the same model"
    unit = f"loss of {document['job']}, {len(found[UNIFORM])} steps of the same samples"
    chart = Chart(title, unit, -3, 1, 4, said=lambda value: f"{10**value:g}")
    span = WIDTH - LEFT - RIGHT
    for tick in range(0, int(end) + 1, 10):
        chart.text(LEFT + tick / end * span, HEIGHT - BOTTOM + 18, f"{tick} s", anchor="middle")
    for colour, steps in zip(COLOURS, found.values(), strict=False):
        places = [LEFT + seconds / end * span for seconds, _ in steps]
        smooth = [log10(median(loss for _, loss in steps[max(0, at - 2) : at + 3])) for at in range(len(steps))]
        chart.curve(list(zip(places, smooth, strict=True)), colour)
        chart.line(places[-1], chart.y(-3), places[-1], chart.y(0), colour)
        chart.text(places[-1] - 4, chart.y(0), f"done after {steps[-1][0]:.0f} s", anchor="end")
    chart.legend(["batches sized by HeteroTrain", "equal batches"])
    return chart.done()


FRAME = """<style>.{unique_id}-matrix {{ font: {char_height}px/{line_height}px monospace }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
"""
"""What rich fills in for one frame; its own form would load a font from the network."""

FRAME_SECONDS, LAST_SECONDS = 2.5, 10.0


def terminal(document: Document) -> str:
    """What a terminal showed, frame after frame; only the last one where motion is unwelcome."""
    columns, rows, frames = document["columns"], document["rows"], document["frames"]

    def drawn(lines: Sequence[str], name: str, form: str) -> str:
        console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        shown = [part for line in lines for part in Text.from_ansi(line).wrap(console, columns)][-rows:]
        console.print(Text("\n").join([*shown, *[Text()] * (rows - len(shown))]))
        return console.export_svg(title=document["command"], code_format=form, unique_id=name)

    whole = (len(frames) - 1) * FRAME_SECONDS + LAST_SECONDS
    ends = {"frame": FRAME_SECONDS / whole, "last": LAST_SECONDS / whole}
    parts = [
        drawn([], "frame", '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">\n<style>'),
        ".frame-title { font: bold 18px sans-serif } .frame { visibility: hidden }",
        *(
            f"@keyframes {name} {{ 0% {{ visibility: visible }} {end:.2%}, 100% {{ visibility: hidden }} }}"
            for name, end in ends.items()
        ),
        "@media (prefers-reduced-motion: reduce) { .frame, .last { animation: none !important } }",
        drawn([], "frame", "</style>\n{chrome}\n"),
    ]
    for index, frame in enumerate(frames):
        kind = "last" if frame is frames[-1] else "frame"
        delay = index * FRAME_SECONDS - whole
        timing = f"animation: {kind} {whole:g}s step-end {delay:g}s infinite"
        parts.append(f'<g class="{kind}" style="{timing}">{drawn(frame["lines"], f"f{index}", FRAME)}</g>')
    return "\n".join([*parts, "</svg>\n"])
