"""The chart's values, their schema and their table in the docs say the same; no helm needed."""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from heterotrain_operator.api.generate import chart, crd

REPOSITORY = Path(__file__).resolve().parents[3]
CHARTS = [REPOSITORY / "helm" / name for name in ("heterotrain", "heterotrain-crds")]

WHOLE = ("resources", "podSecurityContext", "securityContext")


def values_of(folder: Path) -> dict[str, Any]:
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def schema_of(folder: Path) -> dict[str, Any]:
    schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def settings(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that a user sets as one, with its path; some are passed through whole."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in WHOLE:
            yield from settings(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@pytest.mark.parametrize("folder", CHARTS, ids=lambda folder: folder.name)
def test_schema_knows_every_value_and_no_other_and_the_defaults_fit(folder: Path) -> None:
    schema = schema_of(folder)
    Draft7Validator.check_schema(schema)
    assert [error.message for error in Draft7Validator(schema).iter_errors(values_of(folder))] == []
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) - {"global", "enabled"} == set(values_of(folder))


def test_table_in_the_readme_has_every_value_with_its_default() -> None:
    text = (CHARTS[0] / "README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    table = {row[0].strip("| `"): json.loads(row[1].strip("`")) for row in rows}
    assert table == dict(settings(values_of(CHARTS[0])))
    part = values_of(CHARTS[0])["crds"]
    assert part == {"enabled": True} | values_of(CHARTS[1]), "set to what it has by itself"


def test_versions_are_those_of_the_package() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for folder in CHARTS:
        about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
        assert about["version"] == about["appVersion"] == version
        assert all(part["version"] == version for part in about.get("dependencies", ()))


def test_chart_says_what_it_is_and_carries_its_icon() -> None:
    about = yaml.safe_load((CHARTS[0] / "Chart.yaml").read_text(encoding="utf-8"))
    kind, _, encoded = about["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(encoded) == (CHARTS[0] / "icon.svg").read_bytes()
    assert about["maintainers"] == [{"name": "HeteroTrain"}]
    (resource,) = yaml.safe_load(about["annotations"]["artifacthub.io/crds"])
    definition = crd.custom_resource_definition()
    assert resource["name"] == definition["metadata"]["name"]
    assert resource["version"] in [version["name"] for version in definition["spec"]["versions"]]
    # `make release` adds what the repository does not know: where it is.
    assert about.keys().isdisjoint({"home", "sources"})


def test_template_of_the_resource_is_up_to_date_and_only_adds_annotations() -> None:
    assert (REPOSITORY / chart.PATH).read_text(encoding="utf-8") == chart.render()
    actions = [line for line in chart.render().splitlines() if line.startswith("{{")]
    assert actions == ["{{- if .Values.keep }}", "{{- end }}"]
    plain = "\n".join(line for line in chart.render().splitlines() if line not in actions)
    definition = yaml.safe_load(plain)
    assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert definition == crd.custom_resource_definition()
