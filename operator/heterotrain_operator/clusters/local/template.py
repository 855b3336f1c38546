"""Read a pod template as a process of this machine: what is honoured, what ignored, what must be refused.

A field that only says where or how a container runs is ignored, and named; one without which the program
would see something else is refused, so that a run here never means another thing than one in a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem
from heterotrain_operator.api.lint import BYTES, memory_fault
from heterotrain_operator.api.problems import render_path
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.core.model import SERVER_GROUP

Path = tuple[str | int, ...]

DEFAULT_GRACE_SECONDS = 30.0  # as in Kubernetes
FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid")
"""What env may take from the pod itself."""

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_HONOURED = ("name", "command", "args", "env", "envFrom", "workingDir", "resources")


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """An environment variable: a text with references to earlier ones, or a field of the pod (of FIELDS)."""

    name: str
    value: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ProcessTemplate:
    """What of a pod template a process can honour.

    `command` holds command and args, references not yet expanded. `ignored` are the paths of all other
    fields.
    """

    command: tuple[str, ...]
    environment: tuple[EnvEntry, ...] = ()
    working_dir: str | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    ignored: tuple[str, ...] = ()


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: $$ is a dollar sign, and an unknown name stays as it is.

    >>> expand("$(HOME)/$$(HOME)/$(OTHER)", {"HOME": "/home/me"})
    '/home/me/$(HOME)/$(OTHER)'
    """
    return _REFERENCE.sub(lambda m: "$" if m[1] else variables.get(m[2], m[0]), text)


def environment_of(entries: Sequence[EnvEntry], fields: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """A container's variables; each may refer to `given` and to those before it. `fields` are the pod's."""
    variables = dict(given)
    own = {}
    for entry in entries:
        own[entry.name] = fields[entry.field] if entry.field else expand(entry.value, variables)
        variables[entry.name] = own[entry.name]
    return own


def read_templates(job: HeteroTrainingJob) -> dict[str, ProcessTemplate]:
    """The templates of a checked job, by group, with that of its parameter server, if it has one.

    Raises ManifestError with all that cannot be honoured without changing the meaning.
    """
    problems: list[Problem] = []
    templates = {name: _pod(template, path, problems) for name, path, template in job.spec.templates}
    if problems:
        raise ManifestError(problems)
    if job.spec.parameter_server is not None:
        templates.setdefault(SERVER_GROUP, templates[job.spec.worker_groups[0].name])
    return templates


def _others(mapping: Mapping[str, Any], path: Path, honoured: Sequence[str] = ()) -> tuple[str, ...]:
    """The paths of what a mapping holds beside that."""
    return tuple(render_path((*path, key)) for key, value in mapping.items() if key not in honoured and value)


def _pod(template: Mapping[str, Any], path: Path, problems: list[Problem]) -> ProcessTemplate:
    metadata, spec = template.get("metadata") or {}, template["spec"]
    at = (*path, "spec")
    if spec.get("initContainers"):
        reason = "are not run on this machine; prepare before the run"
        problems.append(Problem(render_path((*at, "initContainers")), reason))
    if len(spec["containers"]) > 1:
        reason = f"only one container can be run on this machine, found {len(spec['containers'])}"
        problems.append(Problem(render_path((*at, "containers")), reason))
    container, inner = spec["containers"][0], (*at, "containers", 0)
    resources = container.get("resources") or {}
    limits, limits_path = resources.get("limits") or {}, (*inner, "resources", "limits")
    if not container.get("command"):
        reason = "is needed: there is no image on this machine whose entry point could be run"
        problems.append(Problem(render_path((*inner, "command")), reason))
    if container.get("envFrom"):
        reason = "takes variables from objects of a cluster; write them under env for a run on this machine"
        problems.append(Problem(render_path((*inner, "envFrom")), reason))
    for name in BYTES:
        if name in limits and (reason := memory_fault(limits[name])):
            problems.append(Problem(render_path((*limits_path, name)), reason))
    return ProcessTemplate(
        command=(*(container.get("command") or ()), *(container.get("args") or ())),
        environment=tuple(_environment(container.get("env") or (), (*inner, "env"), problems)),
        working_dir=container.get("workingDir"),
        cores=float(parse_quantity(limits.get("cpu", 0))) or None,
        memory_bytes=int(parse_quantity(limits.get("memory", 0))) or None,
        grace_seconds=float(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)),
        ignored=(
            *_others(template, path, ("metadata", "spec")),
            *_others(metadata, (*path, "metadata")),
            *_others(spec, at, ("containers", "initContainers", "terminationGracePeriodSeconds")),
            *_others(container, inner, _HONOURED),
            *_others(resources, (*inner, "resources"), ("limits",)),
            *_others(limits, limits_path, ("cpu", "memory")),
        ),
    )


def _environment(entries: Sequence[Mapping[str, Any]], path: Path, problems: list[Problem]) -> Iterator[EnvEntry]:
    for index, entry in enumerate(entries):
        source = entry.get("valueFrom") or {}
        field = (source.get("fieldRef") or {}).get("fieldPath")
        if not source:
            yield EnvEntry(entry["name"], entry.get("value") or "")
        elif field in FIELDS:
            yield EnvEntry(entry["name"], field=field)
        else:
            for kind in source:
                reason = "needs a cluster; write the value itself for a run on this machine"
                if kind == "fieldRef":
                    reason = f"{field} is not known on this machine (known: {', '.join(FIELDS)})"
                problems.append(Problem(render_path((*path, index, "valueFrom", kind)), reason))
