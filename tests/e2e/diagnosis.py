"""What one wants to know when a test has failed, gathered before the cluster forgets it."""

from __future__ import annotations

import subprocess

from e2e.api import ApiError
from e2e.installation import Installation
from e2e.programs import program

LINES = 25

OWN = ("heterotrain_operator_", "process_cpu_seconds")

_VIEWS = (
    ("get", "heterotrainingjobs", "--output=yaml", "--show-managed-fields=false"),
    ("get", "pods", "--output=wide"),
    (
        "get",
        "events",
        "--sort-by=.metadata.resourceVersion",
        "--output=custom-columns="
        + ",".join(["TIME:.lastTimestamp", "OBJECT:.involvedObject.name", "REASON:.reason", "MESSAGE:.message"]),
    ),
    ("get", "configmaps", "--selector=heterotrain.dev/job-name", "--output=yaml"),
    ("logs", "--selector=heterotrain.dev/job-name", "--prefix", "--all-containers", f"--tail={LINES}"),
)


def diagnosis(installation: Installation, namespaces: list[str]) -> str:
    """Jobs, pods, events, plans and logs of some namespaces, and the operator's log."""
    parts = [_kubectl("get", "nodes")]
    for namespace in namespaces:
        parts += [_kubectl(*view, f"--namespace={namespace}") for view in _VIEWS]
    try:
        parts.append(f"### log of the operator\n{installation.log()}")
        for pod in installation.pods():
            figures = installation.metrics(pod["metadata"]["name"])
            own = [f"{name} {value:g}" for name, value in figures.items() if name.startswith(OWN)]
            parts.append("\n".join([f"### metrics of {pod['metadata']['name']}", *own]))
    except ApiError as error:
        parts.append(f"### the operator cannot be asked: {error}")
    return "\n".join(parts)


def _kubectl(*arguments: str) -> str:
    command = [program("kubectl"), "--request-timeout=20s", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return f"### kubectl {' '.join(arguments)}\ntakes too long"
    return f"### kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}"
