"""How a graph or a single value of the dashboard looks, whatever it shows."""

from __future__ import annotations

from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GRID_COLUMNS = 24
STAT_ROWS = 4
GRAPH_ROWS = 8


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


def stat(
    title: str, unit: str, expression: str, legend: str = "", *, decimals: int = 0, mode: BigValueTextMode | None = None
) -> Stat:
    """The newest value in large type."""
    return (
        Stat()
        .title(title)
        .unit(unit)
        .decimals(decimals)
        .datasource(DATASOURCE)
        .height(STAT_ROWS)
        .span(GRID_COLUMNS // 8)
        .graph_mode(BigValueGraphMode.NONE)
        .text_mode(mode or BigValueTextMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(query(expression, legend).instant().ref_id("A"))
    )
