"""A pod template as a process: what is honoured, what is ignored and named, what is refused with its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, parse_manifest
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.template import (
    EnvEntry,
    ProcessTemplate,
    environment_of,
    expand,
    read_templates,
)
from unit.local.small_jobs import make_job

CONTAINER = "spec.workerGroups[0].template.spec.containers[0]"


def read(**container: Any) -> ProcessTemplate:
    return read_templates(make_job("", **container))["cpu"]


def with_template(change: dict[str, Any], **pod: Any) -> HeteroTrainingJob:
    document = make_job("").model_dump(by_alias=True, exclude_none=True, mode="json")
    template = document["spec"]["workerGroups"][0]["template"]
    template.update(change)
    template["spec"].update(pod)
    return parse_manifest(document)


def test_references_expand_as_in_kubernetes() -> None:
    text = "$(A) $(A)$(B) x$(A)y $$(A) $$$(A) $(NONE) $A ${A} $$ $ $(A"
    assert expand(text, {"A": "1", "B": "2"}) == "1 12 x1y $(A) $1 $(NONE) $A ${A} $ $ $(A"
    entries = [EnvEntry("X", "$(GIVEN)-$(LATE)"), EnvEntry("LATE", "$(X)!"), EnvEntry("ME", field="metadata.name")]
    assert environment_of(entries, {"metadata.name": "job-cpu-0"}, {"GIVEN": "g"}) == {
        "X": "g-$(LATE)",
        "LATE": "g-$(LATE)!",
        "ME": "job-cpu-0",
    }, "to earlier entries only"


@pytest.mark.parametrize(
    ("limits", "cores", "memory_bytes"),
    [
        ({"cpu": "500m", "memory": "1Gi"}, 0.5, 1024**3),
        ({"cpu": 2}, 2.0, None),
        ({"cpu": "0", "memory": "64M"}, None, 64_000_000),
    ],
)
def test_command_limits_and_grace_are_those_of_the_pod(
    limits: dict[str, Any], cores: float | None, memory_bytes: int | None
) -> None:
    template = read(command=["a", "b"], args=["c"], resources={"limits": limits})
    assert template.command == ("a", "b", "c")
    assert (template.cores, template.memory_bytes) == (cores, memory_bytes)
    assert read_templates(with_template({}, terminationGracePeriodSeconds=7))["cpu"].grace_seconds == 7
    document = make_job("").model_dump(by_alias=True, exclude_none=True, mode="json")
    del document["spec"]["workerGroups"][0]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert read_templates(parse_manifest(document))["cpu"].grace_seconds == 30


@pytest.mark.parametrize(
    ("container", "path", "reason"),
    [
        (
            {"env": [{"name": "A"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            f"{CONTAINER}.env[1].valueFrom.secretKeyRef",
            "needs a cluster",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
            f"{CONTAINER}.env[0].valueFrom.fieldRef",
            "spec.nodeName is not known",
        ),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, f"{CONTAINER}.envFrom", "under env"),
        ({"command": [], "image": "x"}, f"{CONTAINER}.command", "is needed"),
    ],
)
def test_what_changes_the_meaning_is_refused(container: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read(**container)
    [problem] = refused.value.problems
    assert problem.path == path
    assert reason in problem.reason


def test_all_refusals_come_at_once() -> None:
    other = {"name": "o", "image": "x", "command": ["x"]}
    first = {"name": "t", "image": "x", "envFrom": [{"secretRef": {"name": "s"}}]}
    job = with_template({}, initContainers=[other], containers=[first, other])
    with pytest.raises(ManifestError) as refused:
        read_templates(job)
    pod = "spec.workerGroups[0].template.spec"
    assert {problem.path for problem in refused.value.problems} == {
        f"{pod}.initContainers",
        f"{pod}.containers",
        f"{pod}.containers[0].command",
        f"{pod}.containers[0].envFrom",
    }


def test_everything_else_is_named_as_ignored() -> None:
    job = with_template(
        {"metadata": {"labels": {"a": "b"}}},
        nodeSelector={"disk": "ssd"},
        tolerations=[],
        volumes=[{"name": "v", "emptyDir": {}}],
        containers=[
            {
                "name": "t",
                "command": ["x"],
                "image": "x",
                "env": [{"name": "A", "value": "1"}],
                "workingDir": "/tmp",
                "resources": {
                    "limits": {"cpu": 1, "memory": "1Gi", "nvidia.com/gpu": 1},
                    "requests": {"cpu": "100m"},
                },
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
    )
    pod = "spec.workerGroups[0].template"
    assert set(read_templates(job)["cpu"].ignored) == {
        f"{pod}.metadata.labels",
        f"{pod}.spec.nodeSelector",
        f"{pod}.spec.volumes",
        f"{CONTAINER}.image",
        f"{CONTAINER}.volumeMounts",
        f"{CONTAINER}.resources.requests",
        f'{CONTAINER}.resources.limits["nvidia.com/gpu"]',
    }


def test_folder_that_does_not_exist_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"template\.spec\.containers\[0\]\.workingDir: /no/folder"):
        LocalCluster(make_job("", workingDir="/no/folder"), tmp_path, None)
