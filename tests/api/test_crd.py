"""The CRD is what Kubernetes admits: structural, bounded, described, and exactly what the models say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml
from jsonschema import Draft4Validator

from heterotrain_operator.api.availability import MUTABLE, NOT_YET
from heterotrain_operator.api.generate import crd, reference
from heterotrain_operator.api.generate.schema import node_at
from heterotrain_operator.api.rules import RULES

Document = dict[str, Any]
Change = Callable[[dict[str, Any]], Document]
REPOSITORY = Path(__file__).parents[2]
MAX_BYTES = 200_000

VALUE_KEYWORDS = {
    "object": {"required", "properties", "additionalProperties", "maxProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"enum", "pattern", "minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "format"},
    "boolean": set[str](),
}
COMMON_KEYWORDS = {"type", "description", "default"}
FORMATS = {"int32", "int64", "double", "float", "date-time"}


TEMPLATE = "template.spec"
"""What lies there is Kubernetes' own, and bounded here."""


def nodes(schema: Document, path: str = "") -> Iterator[tuple[str, Document]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def structural_faults(schema: Document) -> Iterator[str]:
    """What in a schema Kubernetes refuses as not structural, or would not prune or default as meant."""
    for path, node in nodes(schema):
        kind = node.get("type")
        if kind not in VALUE_KEYWORDS:
            yield f"{path}: type {kind!r}"
            continue
        keywords = {keyword for keyword in node if not keyword.startswith("x-kubernetes-")}
        for keyword in keywords - COMMON_KEYWORDS - VALUE_KEYWORDS[kind]:
            yield f"{path}: {keyword} on a {kind}"
        if kind == "array" and "items" not in node:
            yield f"{path}: a list without items"
        shapes = [key for key in ("properties", "additionalProperties") if key in node]
        if kind == "object" and len(shapes) != 1 and not node.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{path}: an object needs properties or additionalProperties, found {shapes}"
        if node.get("additionalProperties") in (True, False):
            yield f"{path}: additionalProperties must be a schema"
        if not isinstance(node.get("exclusiveMinimum", True), bool):
            yield f"{path}: exclusiveMinimum must be a boolean"
        if node.get("format", "int64") not in FORMATS:
            yield f"{path}: format {node['format']}"
        for name in node.get("required", ()):
            if name not in node["properties"]:
                yield f"{path}: requires {name}, which it does not have"
        if "default" in node and not Draft4Validator(node).is_valid(node["default"]):
            yield f"{path}: the default does not fit the schema"
        for key in node.get("x-kubernetes-list-map-keys", ()):
            if key not in node["items"].get("required", ()):
                yield f"{path}: list key {key} is not required"


def test_schema_is_structural(schema: Document) -> None:
    assert list(structural_faults(schema)) == []


def test_every_field_is_described_and_metadata_restricts_nothing_but_the_name(schema: Document) -> None:
    # The API server describes metadata itself, and refuses a description of it here.
    lacking = [path for path, node in nodes(schema) if not node.get("description") and path != "metadata"]
    assert [path for path in lacking if not path.endswith(("[]", "{}")) and TEMPLATE not in path] == []
    metadata = schema["properties"]["metadata"]
    assert (set(metadata), set(metadata["properties"])) == ({"type", "properties"}, {"name"})


def test_every_list_map_and_string_is_bounded(schema: Document) -> None:
    unbounded = []
    for path, node in nodes(schema):
        bounded = {
            "string": "maxLength" in node or "enum" in node,
            "array": "maxItems" in node,
            "object": "additionalProperties" not in node or "maxProperties" in node,
        }
        if not bounded.get(node["type"], True) and path not in ("apiVersion", "kind"):
            unbounded.append(path)
    assert unbounded == []


@pytest.mark.parametrize("module", [crd, reference])
def test_generated_file_is_up_to_date(module: Any) -> None:
    assert (REPOSITORY / module.PATH).read_text(encoding="utf-8") == module.render()


def test_crd_file_has_no_aliases_and_reads_back() -> None:
    text = crd.render()
    assert len(text.encode()) < MAX_BYTES, "for client-side apply"
    assert yaml.safe_load(text) == crd.custom_resource_definition()
    assert "&id" not in text


def test_crd_serves_status_columns_and_a_scale_whose_paths_are_fields_of_the_right_types(schema: Document) -> None:
    spec = crd.custom_resource_definition()["spec"]
    (version,) = spec["versions"]
    assert spec["names"]["shortNames"] == ["htj"]
    assert version["subresources"]["status"] == {}
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    assert columns["Phase"] == ".status.phase"
    assert all(node_at(schema, path[1:]) for path in columns.values() if path.startswith(".status"))
    scale = version["subresources"]["scale"]
    types = {name: node_at(schema, path.removeprefix("."))["type"] for name, path in scale.items()}
    assert types == {"specReplicasPath": "integer", "statusReplicasPath": "integer", "labelSelectorPath": "string"}
    assert "default" not in node_at(schema, "spec.replicas"), "it would take the number from every job's groups"


def test_every_rule_is_valid_cel_with_a_plain_message(schema: Document) -> None:
    rules = [rule for _, node in nodes(schema) for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > len(NOT_YET)
    for rule in rules:
        cel.compile(rule["rule"])
        assert rule["message"]
        assert "\n" not in rule["message"]


def test_every_default_keeps_the_rules(schema: Document, broken_rules: Callable[[Any, Document], list[str]]) -> None:
    # The API server refuses a CRD of which this is not true; it fills in no nested defaults before.
    defaults = {path: node for path, node in nodes(schema) if isinstance(node.get("default"), dict)}
    assert defaults
    broken = {path: broken_rules(node["default"], node) for path, node in defaults.items()}
    assert {path: found for path, found in broken.items() if found} == {}


def test_changes_are_compared_only_where_entries_can_be_told_apart(schema: Document) -> None:
    lists = {path: node for path, node in nodes(schema) if node["type"] == "array"}
    for path, node in nodes(schema):
        if any("oldSelf" in rule["rule"] for rule in node.get("x-kubernetes-validations", ())):
            above = [found for name, found in lists.items() if path.startswith(f"{name}[]")]
            assert all(found.get("x-kubernetes-list-type") == "map" for found in above), path


def test_tables_name_fields_that_exist(schema: Document) -> None:
    for path in {*MUTABLE, *(limit.path for limit in NOT_YET), *(read for rule in RULES for read in rule.reads)}:
        assert node_at(schema, path), path


def test_what_is_mutable(changed: Change, good: Document, alone: Document, admit: Callable[..., list[str]]) -> None:
    for change in (
        {"spec.workerGroups[1].replicas": 3},
        {"spec.workerGroups[1].minReplicas": 2, "spec.workerGroups[1].maxReplicas": None},
        {"spec.workerGroups[1].batchSize": {"min": 2, "max": 256}},
        {"spec.workerGroups[1].pricePerHour": 0.5},
        {"spec.batching": {"policy": "Proportional", "dryRun": True}},
        {"spec.stragglers": {"threshold": 0.5}},
        {"spec.scaling": {"everyBatches": 20}},
        {"spec.runPolicy": {"suspend": True, "ttlSecondsAfterFinished": 60}},
    ):
        assert admit(changed(change), old=good) == [], change
    of = {number: {**alone, "spec": {**alone["spec"], "replicas": number}} for number in (None, 2, 4)}
    assert [admit(of[after], old=of[before]) for before, after in ((None, 2), (2, 4), (4, None))] == [[], [], []]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec.training.seed": 8}, "training is immutable"),
        ({"spec.membership": {"heartbeatTimeoutSeconds": 9}}, "membership is immutable"),
        ({"spec.checkpoint": {"path": "/checkpoints"}}, "checkpoint is immutable"),
        ({"spec.metrics": {"prometheus": {"maxAgeSeconds": 9}}}, "metrics is immutable"),
        ({"spec.workerGroups[1].device": "gpu"}, "device is immutable"),
        ({"spec.workerGroups[1].onMissingDevice": "UseCPU"}, "onMissingDevice is immutable"),
        ({"spec.workerGroups[1].flops": 1e12}, "flops is immutable"),
        ({"spec.workerGroups[1].template.spec.nodeName": "b"}, "template is immutable"),
        ({"spec.workerGroups[1].name": "slower"}, "entries of workerGroups cannot be added, removed or renamed"),
    ],
    ids=str,
)
def test_immutable_field_may_not_change(
    change: Document, message: str, changed: Change, good: Document, admit: Callable[..., list[str]]
) -> None:
    assert admit(changed(change), old=good) == [message]
    suspended = {"spec.runPolicy": {"suspend": True}}
    assert admit(changed({**suspended, **change}), old=changed(suspended)) == [message]


def test_group_may_not_leave_or_join(good: Document, changed: Change, admit: Callable[..., list[str]]) -> None:
    fewer = changed({"spec.workerGroups": good["spec"]["workerGroups"][:1]})
    assert admit(fewer, old=good)
    assert admit(good, old=fewer)


def test_template_with_too_many_entries_is_refused_at_admission(
    changed: Change, admit: Callable[..., list[str]]
) -> None:
    where = "spec.workerGroups[1].template.spec.containers[0].env"
    assert admit(changed({where: [{"name": "A"}] * 4096})) == []
    assert admit(changed({where: [{}] * 4097}))


def test_reference_has_a_row_for_every_field(schema: Document) -> None:
    page = reference.render()
    for part in ("spec", "status"):
        for path, _ in nodes(node_at(schema, part), part):
            name = path.rpartition(".")[2]
            if "." in path and not name.endswith("[]") and TEMPLATE not in path:
                assert f"| `{name}` |" in page, path
