"""A good manifest to change, and an API server in miniature that applies the CRD: defaults, schema and CEL rules."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from jsonschema import Draft4Validator

from heterotrain_operator.api.generate.crd import custom_resource_definition

HERE = Path(__file__).parent
Document = dict[str, Any]


@pytest.fixture
def good() -> Document:
    document: Document = yaml.safe_load((HERE / "good_manifest.yaml").read_text())
    return document


def _changed(document: Document, changes: dict[str, Any]) -> Document:
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
        node: Any = document
        for part in parents:
            node = node[part]
        node[last] = value
    return document


@pytest.fixture
def alone(good: Document) -> Document:
    """The good manifest with its group `slow` alone, of which users set nothing but the number of workers."""
    (slow,) = (group for group in good["spec"]["workerGroups"] if group["name"] == "slow")
    kept = {name: slow[name] for name in ("name", "template")}
    return {**good, "spec": {**good["spec"], "workerGroups": [kept], "replicas": 3}}


@pytest.fixture
def changed(good: Document) -> Callable[[dict[str, Any]], Document]:
    """The good manifest with values at paths such as `spec.workerGroups[0].replicas` replaced."""
    return lambda changes: _changed(good, changes)


@pytest.fixture(scope="session")
def schema() -> Document:
    document = custom_resource_definition()
    found: Document = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _defaulted(node: Any, schema: Document) -> Any:
    """As the API server: nulls that are not allowed vanish, then defaults fill in what is absent."""
    if isinstance(node, dict) and "properties" in schema:
        node = {name: value for name, value in node.items() if value is not None}
        for name, child in schema["properties"].items():
            if name not in node and "default" in child:
                node[name] = copy.deepcopy(child["default"])
        return {name: _defaulted(value, schema["properties"].get(name, {})) for name, value in node.items()}
    if isinstance(node, list) and "items" in schema:
        return [_defaulted(entry, schema["items"]) for entry in node]
    return node


def _unknown(node: Any, schema: Document) -> Iterator[str]:
    if isinstance(node, dict) and "properties" in schema:
        for name, value in node.items():
            if name in schema["properties"]:
                yield from _unknown(value, schema["properties"][name])
            elif "x-kubernetes-preserve-unknown-fields" not in schema:
                yield f"unknown field {name}"
    elif isinstance(node, list) and "items" in schema:
        for entry in node:
            yield from _unknown(entry, schema["items"])


def _by_key(entries: list[Document] | None, schema: Document, entry: Document) -> Document | None:
    keys = schema.get("x-kubernetes-list-map-keys", ())
    same = (old for old in entries or () if keys and all(old.get(key) == entry.get(key) for key in keys))
    return next(same, None)


def _broken_rules(node: Any, old: Any, schema: Document) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in validation["rule"] and old is None:
            continue
        context = cel.Context({"self": node, "oldSelf": old})
        # Of Kubernetes' list library.
        context.add_function("sum", sum)
        context.add_function("isSorted", lambda entries: list(entries) == sorted(entries))
        if cel.evaluate(validation["rule"], context) is not True:
            yield validation["message"]
    if isinstance(node, dict):
        for name, child in schema.get("properties", {}).items():
            if name in node:
                yield from _broken_rules(node[name], (old or {}).get(name), child)
    elif isinstance(node, list):
        for entry in node:
            yield from _broken_rules(entry, _by_key(old, schema, entry), schema["items"])


@pytest.fixture(scope="session")
def defaulted(schema: Document) -> Callable[[Document], Document]:
    def fill_in(document: Document) -> Document:
        filled: Document = _defaulted(document, schema)
        return filled

    return fill_in


@pytest.fixture(scope="session")
def broken_rules() -> Callable[[Any, Document], list[str]]:
    """The CEL rules of a schema that a value breaks, as it is."""
    return lambda value, schema: list(_broken_rules(value, None, schema))


@pytest.fixture(scope="session")
def admit(schema: Document) -> Callable[..., list[str]]:
    """Why the CRD refuses an object (or its change from `old`); rules are judged once the schema holds."""

    def judge(document: Document, old: Document | None = None) -> list[str]:
        document = _defaulted(document, schema)
        own = {**document, "metadata": {"name": document.get("metadata", {}).get("name", "")}}
        faults = [*_unknown(own, schema), *(error.message for error in Draft4Validator(schema).iter_errors(own))]
        return faults or list(_broken_rules(own, _defaulted(old, schema) if old else None, schema))

    return judge
