"""What a cluster would refuse, or what would do harm, in a job that is otherwise well formed.

For people who are about to start a job: a job that is in a cluster already is not judged by this, since the cluster has
admitted it, and what its pods may be is for the cluster to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from heterotrain_operator.api.base import DNS_LABEL, MAX_NAME
from heterotrain_operator.api.job import HeteroTrainingJob
from heterotrain_operator.api.problems import Problem, did_you_mean, render_path
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.api.spec.worker_groups import WorkerGroup

_Path = tuple[str | int, ...]
_Found = Iterator[tuple[_Path, str]]

BYTES = ("memory", "ephemeral-storage")
LEAST_MEMORY = 6 * 1024**2
"""Bytes without which no container runtime starts anything."""

_ALNUM = "[a-z0-9]+"
_COMPONENT = rf"{_ALNUM}(?:(?:[._]|__|-+){_ALNUM})*"
_HOST = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_HOST}(?:\.{_HOST})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_IMAGE = re.compile(
    rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""The grammar of image references of the Distribution project, which all runtimes share."""
_LONGEST_IMAGE = 255 + 129 + 140


def memory_fault(value: object) -> str:
    """Why a quantity of memory cannot be meant, empty if it can: it is no whole number of bytes."""
    if parse_quantity(value) % 1 == 0:
        return ""
    text = str(value)
    hint = f"; did you mean {text[:-1]}Mi?" if text.endswith("m") else ""
    return f"is no whole number of bytes (m is a thousandth), found {text!r}{hint}"


def faults(job: HeteroTrainingJob, volumes: Collection[str] = ()) -> list[Problem]:
    """What a cluster refuses, or could not run, in the pods of a checked job; `volumes` are those that the operator
    adds to every pod.
    """
    return _everywhere(job, lambda spec: _pod_faults(spec, volumes))


def doubts(job: HeteroTrainingJob) -> list[Problem]:
    """What a cluster accepts, but was hardly intended."""
    return [
        *_replicas_without_effect(job),
        *_rates_without_change(job),
        *_growth_without_end(job),
        *_everywhere(job, _pod_doubts),
    ]


def _replicas_without_effect(job: HeteroTrainingJob) -> Iterator[Problem]:
    """Replicas of a group beside other ones of the job; a cluster writes the default into every group."""
    default = WorkerGroup.model_fields["replicas"].default
    for index, (group, sized) in enumerate(zip(job.spec.worker_groups, job.spec.sized_groups, strict=True)):
        if group.replicas not in (default, sized.replicas):
            where = f"spec.workerGroups[{index}].replicas"
            yield Problem(where, f"is without effect, for spec.replicas is {sized.replicas}; found {group.replicas}")


def _rates_without_change(job: HeteroTrainingJob) -> Iterator[Problem]:
    rule = job.spec.training.learning_rate_scaling
    if job.spec.training.mode == "ASP":
        return  # rates follow the batch of each update
    if rule != "None" and job.spec.batching.fixed_global_batch and job.spec.scaling.global_batch == "Fixed":
        yield Problem(
            "spec.training.learningRateScaling",
            "is without effect, for the global batch never changes; that needs scaling.globalBatch Grow or "
            f"batching.fixedGlobalBatch false; found {rule}",
        )


def _growth_without_end(job: HeteroTrainingJob) -> Iterator[Problem]:
    if job.spec.scaling.global_batch == "Grow" and job.spec.scaling.max_global_batch_size is None:
        yield Problem(
            "spec.scaling.globalBatch",
            "grows without end with the workers, and too large batches train badly; set maxGlobalBatchSize",
        )


def _everywhere(job: HeteroTrainingJob, judge: Callable[[Mapping[str, Any]], _Found]) -> list[Problem]:
    return [
        Problem(render_path((*path, "spec", *where)), reason)
        for _, path, template in job.spec.templates
        for where, reason in judge(template["spec"])
    ]


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield (kind, index), container


def _pod_faults(spec: Mapping[str, Any], given: Collection[str]) -> _Found:
    volumes: dict[str, int] = {}
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volumes.setdefault(volume["name"], index) != index:
            yield ("volumes", index, "name"), f"must be unique, but volumes[{volumes[volume['name']]}] has it, too"
    names: set[str] = set()
    for where, container in _containers(spec):
        name = container["name"]
        if name in names:
            yield (*where, "name"), f"must be unique in the pod, found {name!r} again"
        elif not re.fullmatch(DNS_LABEL, name) or len(name) > MAX_NAME:
            yield (*where, "name"), f"must be a DNS-1123 label (lower-case letters, digits and '-'), found {name!r}"
        names.add(name)
        yield from _image_faults(container.get("image"), (*where, "image"))
        yield from _resource_faults(container.get("resources") or {}, (*where, "resources"))
        yield from _mount_faults(container.get("volumeMounts") or (), (*where, "volumeMounts"), {*volumes, *given})


def _image_faults(image: str | None, where: _Path) -> _Found:
    if not image:
        yield where, "is required on a cluster"
    elif len(image) > _LONGEST_IMAGE or not _IMAGE.fullmatch(image):
        lower = image.lower()
        hint = f"; did you mean {lower}?" if lower != image and _IMAGE.fullmatch(lower) else ""
        yield where, f"is no name of an image, such as registry.example/team/trainer:1.0, found {image[:100]!r}{hint}"


def _resource_faults(resources: Mapping[str, Any], where: _Path) -> _Found:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for side, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            if name in BYTES and (reason := memory_fault(value)):
                yield (*where, side, name), reason
            elif name == "cpu" and parse_quantity(value) * 1000 % 1:
                yield (*where, side, name), f"must be of whole thousandths of a core, found {str(value)!r}"
    for name, value in requests.items():
        if name in limits and parse_quantity(value) > parse_quantity(limits[name]):
            yield (*where, "requests", name), f"must be at most limits.{name}, {limits[name]}, found {value}"


def _mount_faults(mounts: Sequence[Mapping[str, Any]], where: _Path, volumes: Collection[str]) -> _Found:
    paths: dict[str, int] = {}
    for index, mount in enumerate(mounts):
        if mount["name"] not in volumes:
            known = f"the pod has {', '.join(sorted(volumes))}" if volumes else "the pod has no volumes"
            hint = did_you_mean(mount["name"], volumes) or f"; {known}"
            yield (*where, index, "name"), f"there is no volume {mount['name']!r}{hint}"
        if paths.setdefault(mount["mountPath"], index) != index:
            earlier = paths[mount["mountPath"]]
            yield (*where, index, "mountPath"), f"must be unique, but volumeMounts[{earlier}] has it, too"


def _pod_doubts(spec: Mapping[str, Any]) -> _Found:
    mounted = set()
    for where, container in _containers(spec):
        mounted |= {mount["name"] for mount in container.get("volumeMounts") or ()}
        image = _IMAGE.fullmatch(container.get("image") or "")
        if image is not None and not image["digest"] and image["tag"] in (None, ":latest"):
            yield (*where, "image"), f"has no version: {container['image']} may be another image for every worker"
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is not None and 0 < parse_quantity(limit) < Decimal(LEAST_MEMORY):
            yield (*where, "resources", "limits", "memory"), f"no container starts with so little memory, found {limit}"
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume["name"] not in mounted:
            yield ("volumes", index), f"volume {volume['name']!r} is mounted nowhere"
