"""How a graph, a table or a single value of the dashboards looks, whatever it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grafana_foundation_sdk.builders.bargauge import Panel as BarGauge
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import DashboardLink, ThresholdsConfig
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

GRID_COLUMNS = 24
STAT_ROWS = 4
GRAPH_ROWS = 8

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


def graph(title: str, description: str, unit: str, *queries: tuple[str, str], columns: int = 12) -> Timeseries:
    """A graph over time; queries are expression and legend."""
    panel = (
        Timeseries()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .span(columns)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    return with_queries(panel, queries).min(0)


def with_queries(panel: Timeseries, queries: tuple[tuple[str, str], ...]) -> Timeseries:
    """The panel with its queries, named A, B and so on."""
    for index, (expression, legend) in enumerate(queries):
        panel = panel.with_target(query(expression, legend).ref_id(chr(ord("A") + index)))
    return panel


def steps(title: str, description: str, unit: str, *queries: tuple[str, str], columns: int = 12) -> Timeseries:
    """A graph of values that change in jumps."""
    return graph(title, description, unit, *queries, columns=columns).line_interpolation(LineInterpolation.STEP_AFTER)


def lined(panel: Timeseries, *marks: tuple[float, str]) -> Timeseries:
    """The graph with dashed lines at values that matter."""
    return panel.thresholds(limits(*marks)).thresholds_style(
        GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    )


def stat(
    title: str,
    unit: str,
    expression: str,
    legend: str = "",
    *,
    decimals: int = 0,
    mode: BigValueTextMode | None = None,
    thresholds: ThresholdsConfig | None = None,
    columns: int = GRID_COLUMNS // 8,
) -> Stat:
    """The newest value in large type; without thresholds it has no colour."""
    return (
        Stat()
        .title(title)
        .unit(unit)
        .decimals(decimals)
        .datasource(DATASOURCE)
        .height(STAT_ROWS)
        .span(columns)
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE if thresholds else BigValueColorMode.NONE)
        .thresholds(thresholds or limits())
        .text_mode(mode or BigValueTextMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )


def bars(title: str, description: str, unit: str, expression: str, legend: str, *, columns: int) -> BarGauge:
    """The newest values, a bar each."""
    return (
        BarGauge()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .span(columns)
        .min(0)
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(limits(base=BLUE))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )


def timeline(
    title: str, description: str, named: Mapping[str, str], expression: str, legend: str, *, columns: int = GRID_COLUMNS
) -> StateTimeline:
    """A line for each series, coloured by what its numbers stand for."""
    return (
        StateTimeline()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .height(GRAPH_ROWS)
        .span(columns)
        .mappings(colours(named))
        .show_value(VisibilityMode.NEVER)
        .fill_opacity(80)
        .line_width(0)
        .with_target(query(expression, legend).ref_id("A"))
    )


def table(title: str, description: str, columns: Mapping[str, str], hidden: tuple[str, ...] = ()) -> Table:
    """A row for each set of labels; columns are expressions by the name above their values."""
    letters = {chr(ord("A") + index): name for index, name in enumerate(columns)}
    panel = Table().title(title).description(description).datasource(DATASOURCE).span(GRID_COLUMNS).height(GRAPH_ROWS)
    for letter, expression in zip(letters, columns.values(), strict=True):
        panel = panel.with_target(query(expression, "").instant().format(PromQueryFormat.TABLE).ref_id(letter))
    # A single query's values are not merged, so that their column has no letter.
    values = {f"Value #{letter}": name for letter, name in letters.items()} | {"Value": next(iter(columns))}
    return panel.with_transformation(DataTransformerConfig("merge", options={})).with_transformation(
        DataTransformerConfig(
            "organize", options={"excludeByName": {"Time": True, **dict.fromkeys(hidden, True)}, "renameByName": values}
        )
    )


def setting(name: str, value: object) -> DynamicConfigValue:
    """One property of an override."""
    return DynamicConfigValue(name, value)
