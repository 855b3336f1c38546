"""The models as a structural OpenAPI schema, the only form that Kubernetes takes.

pydantic writes JSON Schema with references, unions with null and numeric exclusive bounds; Kubernetes refuses all of
them, so they are rewritten here, and whatever has no counterpart is an error of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from heterotrain_operator.api.availability import MUTABLE, NOT_YET, Limit, is_mutable
from heterotrain_operator.api.base import Model
from heterotrain_operator.api.job import HeteroTrainingJob
from heterotrain_operator.api.rule import Cel
from heterotrain_operator.api.rules import RULES

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "format",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
"""Keywords that mean the same in both; their order here is their order in the file."""

_OPEN = "x-kubernetes-preserve-unknown-fields"
_DROPPED = {"title", "additionalProperties", "properties", "items", "const", "exclusiveMinimum"}
_FORMATS = {"integer": "int64", "number": "double"}


def structural_schema() -> Schema:
    """The schema of the whole object: self-contained, with defaults, bounds and descriptions, without rules."""
    source = HeteroTrainingJob.model_json_schema(by_alias=True, mode="validation")
    definitions = source.pop("$defs")
    metadata = _without_reference(source["properties"].pop("metadata"), definitions)
    schema = _structural(source, definitions)
    # A cluster checks these itself, and refuses any restriction of metadata but that of names.
    properties = {
        name: {"type": "string", "description": schema["properties"][name]["description"]}
        for name in ("apiVersion", "kind")
    }
    name = _structural(metadata["properties"]["name"], definitions)
    properties["metadata"] = {"type": "object", "properties": {"name": name}}
    schema["properties"] = {**properties, **{part: schema["properties"][part] for part in ("spec", "status")}}
    schema["required"] = ["spec"]
    return schema


def schema_of(model: type[Model]) -> Schema:
    """The schema of any model: self-contained, with defaults, bounds and descriptions, without rules."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.pop("$defs", {})
    return _structural(source, definitions)


def node_at(schema: Schema, path: str) -> Schema:
    """The part of a schema that a path such as `spec.workerGroups[].batchSize` names; empty for all of it."""
    node = schema
    for part in path.split(".") if path else ():
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """One node, and all below it, in structural form."""
    node = _without_reference(node, definitions)
    optional = "anyOf" in node
    if optional:
        (inner,) = (choice for choice in node["anyOf"] if choice != {"type": "null"})
        outer = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        node = {**_without_reference(inner, definitions), **outer}
    unknown = set(node) - set(_KEPT) - _DROPPED
    assert not unknown, f"keywords without a structural counterpart: {sorted(unknown)}"
    result: Schema = {key: copy.deepcopy(node[key]) for key in _KEPT if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        result |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if node["type"] in _FORMATS:
        result.setdefault("format", _FORMATS[node["type"]])
    if "items" in node:
        result["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        required = node.get("required", ())
        result["properties"] = {}
        for name, child in node["properties"].items():
            rendered = _structural(child, definitions)
            # Kubernetes fills in the defaults below an object only if the object itself is there; and in full, because
            # it judges a default by the object's rules before it fills in what is below.
            is_open = _OPEN in rendered
            if "properties" in rendered and name not in required and "anyOf" not in child and not is_open:
                fields = rendered["properties"].items()
                rendered["default"] = {field: inner["default"] for field, inner in fields if "default" in inner}
            result["properties"][name] = rendered
    if node["type"] == "object" and node.get("additionalProperties") is True:
        result[_OPEN] = True
    elif node["type"] == "object" and "properties" not in node:
        result["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    return result


def _without_reference(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node with what it refers to; what it says itself has precedence."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}


_KEY = "x-kubernetes-validations"


def add_validations(schema: Schema) -> None:
    """Put every rule into the structural schema, where it belongs."""
    rules = [cel for rule in RULES for cel in rule.cel]
    rules += [_availability(limit) for limit in NOT_YET]
    rules += _immutability(node_at(schema, "spec"), "spec")
    for cel in rules:
        node_at(schema, cel.at).setdefault(_KEY, []).append({"rule": cel.rule, "message": cel.message})


def _availability(limit: Limit) -> Cel:
    """Refuse at the API server what is not available yet."""
    at, _, name = limit.path.rpartition(".")
    if not limit.works:
        return Cel(at, f"!has(self.{name})", f"{name} is not available yet; {limit.advice()}")
    names = ", ".join(f"'{value}'" for value in limit.works)
    return Cel(at, f"self.{name} in [{names}]", f"this {name} is not available yet; {limit.advice()}")


def _immutability(schema: Schema, path: str) -> Iterator[Cel]:
    """Compare whatever `MUTABLE` does not name with what it was, at the highest level at which that is possible."""
    for name, child in schema["properties"].items():
        here = f"{path}.{name}"
        if is_mutable(here):
            continue
        if not any(mutable.startswith((f"{here}.", f"{here}[")) for mutable in MUTABLE):
            yield _unchanged(schema, path, name)
        elif child["type"] == "array":
            (key,) = child["x-kubernetes-list-map-keys"]
            yield Cel(
                here,
                f"self.size() == oldSelf.size() && self.all(new, oldSelf.exists(old, old.{key} == new.{key}))",
                f"entries of {name} cannot be added, removed or renamed",
            )
            # An entry is compared with the one of the same key, so the key itself needs no rule.
            entries = {**child["items"], "properties": dict(child["items"]["properties"])}
            del entries["properties"][key]
            yield from _immutability(entries, f"{here}[]")
        else:
            yield from _immutability(child, here)


def _unchanged(schema: Schema, path: str, name: str) -> Cel:
    """A rule of the parent, since a rule of the field itself is not judged when the field is added or removed."""
    same = f"self.{name} == oldSelf.{name}"
    if name not in schema.get("required", ()) and "default" not in schema["properties"][name]:
        same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})"
    return Cel(path, same, f"{name} is immutable")
