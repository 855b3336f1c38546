"""What the chart's admission policy lets jobs hand their pods; its rules evaluated one by one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
RULES = yaml.safe_load((REPOSITORY / "helm/heterotrain/files/job-policy.yaml").read_text(encoding="utf-8"))
PLAIN: dict[str, Any] = {"containers": [{"name": "trainer", "image": "trainer", "ports": [{"containerPort": 8080}]}]}
ORDINARY: dict[str, Any] = {
    **PLAIN,
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "nodeSelector": {"pool": "large"},
    "hostNetwork": False,
    "initContainers": [{"name": "fetch", "image": "busybox", "securityContext": {"privileged": False}}],
    "volumes": [
        {"name": "data", "projected": {"sources": [{"configMap": {"name": "a"}}]}},
        {"name": "b", "emptyDir": {}},
    ],
}


def refusals(*pods: dict[str, Any], server: dict[str, Any] | None = None) -> list[str]:
    """The messages for a job of such pods, a group for each, and of a parameter server that is one."""
    groups = [{"name": f"group{index}", "template": {"spec": copy.deepcopy(pod)}} for index, pod in enumerate(pods)]
    parts = {} if server is None else {"parameterServer": {"template": {"spec": server}}}
    known: dict[str, Any] = {"object": {"spec": {"workerGroups": groups, **parts}}, "variables": {}}
    for variable in RULES["variables"]:
        known["variables"][variable["name"]] = cel.evaluate(variable["expression"], cel.Context(known))
    return [
        rule["message"]
        for rule in RULES["validations"]
        if cel.evaluate(rule["expression"], cel.Context(known)) is not True
    ]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"serviceAccountName": "admin"}, "serviceAccountName"),
        ({"serviceAccount": "admin"}, "serviceAccountName"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}, "serviceAccountToken"),
        ({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"nodeName": "control-plane"}, "nodeName"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"hostPID": True}, "hostPID"),
        ({"hostIPC": True}, "hostIPC"),
        ({"containers": [{"securityContext": {"privileged": True}}]}, "privileged"),
        ({"initContainers": [{}, {"securityContext": {"privileged": True}}]}, "privileged"),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}, "hostPort"),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, "hostPort"),
    ],
    ids=str,
)
def test_job_of_which_any_group_asks_for_too_much_is_refused_by_the_fields_name(
    more: dict[str, Any], named: str
) -> None:
    (message,) = refusals(PLAIN, ORDINARY, {**PLAIN, **more})
    assert named in message
    assert refusals(PLAIN, server={**PLAIN, **more}) == [message]


def test_ordinary_jobs_are_let_through() -> None:
    assert refusals(PLAIN, ORDINARY) == refusals(PLAIN, server=ORDINARY) == []
