"""Check a pod template against Kubernetes' own JSON schema, so that faults show before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from kubernetes_validate.utils import latest_version, schema_contents
from referencing import Registry, Resource

from heterotrain_operator.api.problems import MOST_PROBLEMS, Problem, did_you_mean, render_path, unusual_values
from heterotrain_operator.api.quantity import parse_quantity

MAX_ENTRIES = 4096
"""Of a list in a template that a cluster can bound: it keeps out at admission what could only be refused later."""


def _open(**bounded: Any) -> dict[str, Any]:
    """The schema of a mapping of which only some lists are bounded, each with the schema of its entries."""
    lists = {name: {"type": "array", "maxItems": MAX_ENTRIES, "items": entry} for name, entry in bounded.items()}
    found: dict[str, Any] = {"type": "object", "additionalProperties": True}
    return found | {"properties": lists} if lists else found


_CONTAINER = _open(env=_open(), envFrom=_open(), ports=_open(), volumeMounts=_open())
POD = _open(containers=_CONTAINER, initContainers=_CONTAINER, volumes=_open(), tolerations=_open())
"""The schema of a pod's spec in a template."""


_POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_MEANING = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
}
LONGEST_REASON = 300
"""Characters of what is wrong with one value."""

_CONTAINER_LISTS = ("containers", "initContainers")


@cache
def _validator() -> Draft202012Validator:
    """The strict schema of PodTemplateSpec, of the newest Kubernetes that the library knows; read once."""
    version = latest_version()
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    definitions = Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))
    address = definitions.id()
    assert address is not None
    return Draft202012Validator({"$ref": f"{address}#/$defs/{_POD_TEMPLATE}"}, registry=definitions @ Registry())


def _names(value: Any) -> list[Any]:
    """The entries of a keyword that may be one entry or a list of them."""
    return value if isinstance(value, list) else [value]


def _clipped(text: str) -> str:
    """The beginning of a text that may hold a whole volume's worth of somebody's values."""
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


def _reasons(error: ValidationError) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What one error of the schema says, in our words; a mapping may lack several fields at once."""
    path = tuple(error.absolute_path)
    found: Any = error.instance
    wanted: Any = error.validator_value
    schema = error.schema
    if error.validator == "required":
        for name in _names(wanted):
            if name not in found:
                yield (*path, name), "is required"
    elif error.validator == "additionalProperties":
        known = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
        for name in found:
            if name not in known:
                yield (*path, str(name)), f"unknown field{did_you_mean(str(name), known)}"
    elif error.validator in ("type", "oneOf", "anyOf"):
        kinds = [wanted] if error.validator == "type" else [choice.get("type") for choice in _names(wanted)]
        words = dict.fromkeys(_MEANING[name] for kind in kinds for name in _names(kind) if name in _MEANING)
        yield path, f"must be {' or '.join(words) or 'of another form'}, found {_clipped(json.dumps(found))}"
    else:
        yield path, _clipped(error.message)


def _quantities(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every quantity in the resources of a pod's containers, with its path below the pod's spec."""
    for kind in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            for side in ("limits", "requests"):
                for name, value in (resources.get(side) or {}).items():
                    yield (kind, index, "resources", side, name), value


def template_problems(template: Mapping[str, Any], path: tuple[str | int, ...]) -> list[Problem]:
    """What is wrong with a PodTemplateSpec that lies at `path`, the first MOST_PROBLEMS of it.

    Beside the schema: its numbers must be such as an API server stores, its quantities must be quantities, and its
    first container must say what to run.
    """
    unusual = list(islice(unusual_values(template, path), MOST_PROBLEMS))
    if unusual:
        return unusual
    found = (
        Problem(render_path(path + where), reason)
        for error in _validator().iter_errors(template)
        for where, reason in _reasons(error)
    )
    problems = list(dict.fromkeys(islice(found, MOST_PROBLEMS)))
    if "spec" not in template:
        problems.append(Problem(render_path((*path, "spec")), "is required"))
    if problems:
        return problems
    spec = template["spec"]
    if not spec["containers"]:
        return [Problem(render_path((*path, "spec", "containers")), "needs at least one container")]
    first = spec["containers"][0]
    if not (first.get("command") or first.get("args") or first.get("image")):
        where = (*path, "spec", "containers", 0)
        problems.append(Problem(render_path(where), "needs an image or a command: it says nothing to run"))
    for where, value in _quantities(spec):
        if len(problems) == MOST_PROBLEMS:
            break
        try:
            parse_quantity(value)
        except ValueError as error:
            problems.append(Problem(render_path((*path, "spec", *where)), str(error)))
    return problems
