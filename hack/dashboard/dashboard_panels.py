"""How a graph, a table or a single value of the dashboards looks, whatever it shows."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders.bargauge import Panel as BarGauge
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, Row, ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from heterotrain import contract

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "heterotrain"
"""By which the dashboards find one another."""

STAT_ROWS = 4
GRAPH_ROWS = 8
LETTERS = string.ascii_uppercase
"""By which a panel's queries are known."""


Marks = Sequence[tuple[float, str]]
"""Values, and the colour from each on."""

GREEN, YELLOW, RED, BLUE, GREY, PURPLE, ORANGE = "green", "yellow", "red", "blue", "#808080", "purple", "orange"

JOB_PHASE_COLOURS: Mapping[str, str] = {
    "Created": GREY,
    "Running": GREEN,
    "Restarting": ORANGE,
    "Suspended": PURPLE,
    "Succeeded": BLUE,
    "Failed": RED,
}
WORKER_PHASE_COLOURS: Mapping[str, str] = {
    contract.PHASE_PREPARING: GREY,
    contract.PHASE_WARMING: "light-yellow",
    contract.PHASE_WAITING: YELLOW,
    contract.PHASE_STARTING: "light-green",
    contract.PHASE_TRAINING: GREEN,
    contract.PHASE_CHECKPOINTING: "light-blue",
    contract.PHASE_EVALUATING: BLUE,
    contract.PHASE_PAUSED: PURPLE,
    contract.PHASE_HOLDING: ORANGE,
    contract.PHASE_REFORMING: RED,
    contract.PHASE_FINISHED: "dark-blue",
}


def colours(named: Mapping[str, str]) -> list[ValueMap]:
    """Text and colour of the numbers 1, 2 and so on, in the order of the names."""
    return [
        ValueMap(
            {
                str(number): ValueMappingResult(text=name, color=colour, index=number - 1)
                for number, (name, colour) in enumerate(named.items(), start=1)
            }
        )
    ]


def limits(*steps: tuple[float, str], base: str = GREEN) -> ThresholdsConfig:
    """Colours from values on; below the first one it is `base`."""
    thresholds = [Threshold(None, base), *(Threshold(value, colour) for value, colour in steps)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(thresholds)


def link(title: str, uid: str, **variables: str) -> DashboardLink:
    """To another dashboard, at the same data source and time, with values for its variables."""
    chosen = "".join(f"&var-{name}={value}" for name, value in {"datasource": "${datasource}", **variables}.items())
    return DashboardLink(title).type(DashboardLinkType.LINK).url(f"/d/{uid}?${{__url_time_range}}{chosen}")


class Events(AnnotationQuery):
    """Marks across all graphs where an expression is above zero, each with a title from the series' labels.

    The SDK's model lacks what Grafana's annotations by Prometheus have beside the expression.
    """

    def __init__(self, name: str, expression: str, title: str, colour: str) -> None:
        # 1 while something happens, and otherwise no value.
        super().__init__(name, DATASOURCE, icon_color=colour, expr=f"({expression} > 0) > bool 0")
        self._title = title

    def build(self) -> AnnotationQuery:
        """The SDK asks builders for what they build."""
        return self

    def to_json(self) -> dict[str, Any]:
        """As Grafana imports it; it brings `expr` and `step` into the form that its version has."""
        return {**super().to_json(), "step": "10s", "titleFormat": self._title, "textFormat": ""}


def query(expression: str, legend: str) -> Dataquery:
    """One query; `{{label}}` in the legend is replaced by its value."""
    return Dataquery().expr(expression).legend_format(legend).range().datasource(DATASOURCE)


def row(dashboard: Dashboard, title: str, columns: int | Sequence[int], panels: Sequence[Any]) -> None:
    """Add panels below a title, each of so many of the 24 columns."""
    dashboard.with_row(Row(title))
    widths = [columns] * len(panels) if isinstance(columns, int) else columns
    for panel, width in zip(panels, widths, strict=True):
        dashboard.with_panel(panel.span(width))


def graph(title: str, description: str, unit: str, *queries: tuple[str, str], marks: Marks = ()) -> Timeseries:
    """A graph over time; queries are expression and legend. It has dashed lines at the `marks`, values that matter."""
    panel = (
        Timeseries()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .show_points(VisibilityMode.NEVER)
        .line_width(2)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    for letter, (expression, legend) in zip(LETTERS, queries, strict=False):
        panel = panel.with_target(query(expression, legend).ref_id(letter))
    if marks:
        dashed = GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(limits(*marks)).thresholds_style(dashed)
    return panel.min(0)


def steps(title: str, description: str, unit: str, *queries: tuple[str, str]) -> Timeseries:
    """A graph of values that change in jumps."""
    return graph(title, description, unit, *queries).line_interpolation(LineInterpolation.STEP_AFTER)


def stat(
    title: str,
    expression: str,
    *,
    legend: str = "",
    unit: str = "short",
    decimals: int | None = 0,
    marks: Marks = (),
    base: str = GREEN,
    names: Mapping[str, str] | None = None,
) -> Stat:
    """The newest value in large type; it has a colour if there are `marks`, or `names` of its numbers with theirs."""
    panel = (
        Stat()
        .title(title)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(STAT_ROWS)
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE if marks else BigValueColorMode.NONE)
        .thresholds(limits(*marks, base=base))
        .text_mode(BigValueTextMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    return panel if names is None else panel.mappings(colours(names)).color_mode(BigValueColorMode.BACKGROUND)


def bars(title: str, description: str, unit: str, expression: str, legend: str) -> BarGauge:
    """The newest values, a bar each."""
    return (
        BarGauge()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .min(0)
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(limits(base=BLUE))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )


def timeline(title: str, description: str, named: Mapping[str, str], expression: str, legend: str) -> StateTimeline:
    """A line for each series, coloured by what its numbers stand for."""
    return (
        StateTimeline()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .mappings(colours(named))
        .show_value(VisibilityMode.NEVER)
        .fill_opacity(80)
        .line_width(0)
        .with_target(query(expression, legend).ref_id("A"))
    )


def table(title: str, description: str, columns: Mapping[str, str], hidden: tuple[str, ...] = ()) -> Table:
    """A row for each set of labels; columns are expressions by the name above their values."""
    letters = dict(zip(LETTERS, columns, strict=False))
    panel = Table().title(title).description(description).datasource(DATASOURCE).height(GRAPH_ROWS)
    for letter, expression in zip(letters, columns.values(), strict=True):
        panel = panel.with_target(query(expression, "").instant().format(PromQueryFormat.TABLE).ref_id(letter))
    # A single query's values are not merged, so that their column has no letter.
    values = {f"Value #{letter}": name for letter, name in letters.items()} | {"Value": next(iter(columns))}
    return panel.with_transformation(DataTransformerConfig("merge", options={})).with_transformation(
        DataTransformerConfig(
            "organize", options={"excludeByName": {"Time": True, **dict.fromkeys(hidden, True)}, "renameByName": values}
        )
    )


def share(title: str, description: str, *queries: tuple[str, str], marks: Marks = ()) -> Timeseries:
    """A graph of shares, which reaches up to 100 % at least, so that a line at zero shows as one."""
    return graph(title, description, "percentunit", *queries, marks=marks).axis_soft_max(1)


def setting(name: str, value: object) -> DynamicConfigValue:
    """One property of an override."""
    return DynamicConfigValue(name, value)
