"""The real helm, rendering the real charts; what a test wants to know of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.programs import program

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "helm" / "heterotrain"
CRDS_CHART = REPOSITORY / "helm" / "heterotrain-crds"
RELEASE, NAMESPACE = "heterotrain", "heterotrain-system"

Document = dict[str, Any]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm to its end; the caller looks at the exit code."""
    command = [program("helm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(chart: Path, *values: str) -> list[Document]:
    """The objects of a chart, with `--set-json` values; hooks too."""
    settings = [argument for value in values for argument in ("--set-json", value)]
    run = helm("template", RELEASE, chart, "--namespace", NAMESPACE, *settings)
    assert run.returncode == 0, run.stderr
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    """Those of one kind."""
    return [document for document in documents if document["kind"] == kind]


def rights(roles: list[Document]) -> Iterator[tuple[str, str, str, str]]:
    """Every right that roles give: API group, resource, names ("" for any), verb."""
    for role in roles:
        for rule in role["rules"]:
            names = ",".join(rule.get("resourceNames", ()))
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield group, resource, names, verb
