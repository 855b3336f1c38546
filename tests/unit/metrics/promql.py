"""Read PromQL, and say what in it could never give a series: the names and labels that nobody exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

TARGET_LABELS = frozenset({"namespace", "pod", "instance", "job"})
"""What a scrape adds to every series."""

_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), *(?P<label>\w+)\)")


Exported = Mapping[str, frozenset[str]]
"""Labels of the series that somebody exports, by name."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a dashboard, with the title of its panel or the name of its annotation."""

    panel: str
    expression: str
    legend: str = ""


def queries(dashboard: Mapping[str, Any]) -> Iterator[Query]:
    """All queries of a dashboard's panels and annotations."""
    for annotation in dashboard.get("annotations", {}).get("list", ()):
        yield Query(annotation["name"], annotation["expr"], annotation["titleFormat"])
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield Query(panel["title"], target["expr"], target.get("legendFormat", ""))
        yield from queries(panel) if panel.get("panels") else ()


def choices(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Selector and label of every variable that is chosen among exported values."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"])
            assert found is not None, variable["query"]
            yield found["selector"], found["label"]


def with_values(expression: str, values: Mapping[str, str]) -> str:
    """The expression as Grafana sends it, with the values of its variables."""
    known = {"__rate_interval": "1m", "__range": "30m", **values}
    return re.sub(r"\$(\w+)", lambda found: json.dumps(known[found[1]])[1:-1], expression)


def faults(expression: str, exported: Exported) -> list[str]:
    """What is wrong with an expression without variables; empty if it can give a series."""
    try:
        tree = promql.parse(expression)
    except ValueError as error:
        return [str(error)]
    return [fault for selector in _selectors(tree) for fault in _selector_faults(selector, exported)]


def names_in(expression: str) -> set[str]:
    """The metrics that an expression without variables reads."""
    return {name for selector in _selectors(promql.parse(expression)) for name in _names_of(selector)}


def _selectors(tree: Any) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql.VectorSelector) and node not in found:
            found.append(node)

    promql.walk(tree, pre_visit=visit)
    return found


def _names_of(selector: Any) -> list[str]:
    """The metric that it names, or those of `{__name__=~"one|another"}`."""
    if selector.name:
        return [selector.name]
    matchers = [matcher.value for matcher in selector.matchers.matchers if matcher.name == "__name__"]
    return matchers[0].split("|") if matchers else ["a selector without a name"]


def _selector_faults(selector: Any, exported: Exported) -> Iterator[str]:
    for name in _names_of(selector):
        if name not in exported:
            yield f"{name} is exported by nobody"
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in exported[name] | TARGET_LABELS | {"__name__"}:
                yield f"{name} has no label {matcher.name}"


def exported_by(families: Iterable[Any]) -> Exported:
    """What a scrape of these families gives."""
    labels: dict[str, frozenset[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        labels[sample.name] = labels.get(sample.name, frozenset()) | frozenset(sample.labels)
    return labels
