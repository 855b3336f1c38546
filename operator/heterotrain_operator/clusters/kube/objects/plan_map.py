"""The ConfigMap that holds a job's plan and the memory of decisions, written by us and read with mistrust.

Anybody with rights on ConfigMaps may edit it; whatever they leave there must neither stop the operator nor be taken
for a plan.
"""

from __future__ import annotations

import base64
import gzip
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from heterotrain.contract import Plan, parse_plan
from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY, PACKED_MEMORY_KEY, PLAN_KEY, plan_name
from heterotrain_operator.clusters.kube.objects.owned import COMPONENT_PLAN, owned_metadata
from heterotrain_operator.core.state import Remembered

T = TypeVar("T")

PLAIN_BYTES = 2**17
"""A memory of up to this size (some 600 workers) is kept as text, for people, and for operators that cannot unpack
it."""

MAX_BYTES, MOST_WORKERS = 2**21, 4096
"""Of a memory that is read from a ConfigMap, which holds the plan of some 3,200 workers; these take half as much."""

_ONE_LARGE = threading.Lock()
"""Held by who reads a large memory, which may take twenty times its size meanwhile, in one thread of all."""

_GZIP = 31
"""What zlib calls gzip's format."""


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What the ConfigMap holds; without a ConfigMap `resource_version` is empty.

    A part that is malformed is None, and its problem says why in words; a part that is absent is None without a
    problem.
    """

    resource_version: str = ""
    plan: Plan | None = None
    plan_problem: str = ""
    memory: Remembered | None = None
    memory_problem: str = ""


def build_plan_map(job: HeteroTrainingJob, uid: str, plan_json: str | None, memory_json: str) -> dict[str, Any]:
    """The ConfigMap with a plan (None: there is none yet) and a memory, packed if it is large; `uid` is the job's."""
    plan = {} if plan_json is None else {PLAN_KEY: plan_json}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned_metadata(job, uid, plan_name(job.metadata.name), COMPONENT_PLAN),
        "data": {**plan, MEMORY_KEY: memory_json},
    }
    if len(memory_json) > PLAIN_BYTES:
        # The other key stays, but empty; otherwise a text that an earlier operator wrote there might remain.
        body["data"] = {**plan, MEMORY_KEY: ""}
        packed = gzip.compress(memory_json.encode(), compresslevel=6, mtime=0)
        body["binaryData"] = {PACKED_MEMORY_KEY: base64.b64encode(packed).decode()}
    return body


def bytes_in(body: Mapping[str, Any]) -> int:
    """How many bytes the values of a ConfigMap count against its limit."""
    plain = sum(len(value.encode()) for value in body["data"].values())
    return plain + sum(len(base64.b64decode(value)) for value in body.get("binaryData", {}).values())


def read_plan_map(body: Mapping[str, Any] | None) -> StoredPlan:
    """What a ConfigMap holds, None if there is none; never an exception."""
    if body is None:
        return StoredPlan()
    data, packed = _texts(body, "data"), _texts(body, "binaryData")
    plan, plan_problem = _read(data, PLAN_KEY, parse_plan)
    plain = data.get(MEMORY_KEY, "")
    with _ONE_LARGE if len(plain) > PLAIN_BYTES or PACKED_MEMORY_KEY in packed else nullcontext():
        if plain or PACKED_MEMORY_KEY not in packed:
            memory, memory_problem = _read(data, MEMORY_KEY, _memory)
        else:
            memory, memory_problem = _read(packed, PACKED_MEMORY_KEY, _unpacked)
    version = _texts(body, "metadata").get("resourceVersion", "")
    return StoredPlan(version, plan, plan_problem, memory, memory_problem)


def _texts(body: Mapping[str, Any], name: str) -> Mapping[str, str]:
    """The entries of a part of the object that are text, as all are in an answer of the API server."""
    part = body.get(name)
    return {key: text for key, text in part.items() if isinstance(text, str)} if isinstance(part, Mapping) else {}


def _unpacked(text: str) -> Remembered:
    """A packed memory. Raises ValueError if it is malformed or too large."""
    try:
        unpacking = zlib.decompressobj(wbits=_GZIP)
        memory = unpacking.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError(f"is torn, or more than {MAX_BYTES} bytes once unpacked")
    return _memory(memory)


def _memory(text: str | bytes) -> Remembered:
    return Remembered.from_json(text, most_workers=MOST_WORKERS)


def _read(data: Mapping[str, str], key: str, parse: Callable[[str], T]) -> tuple[T | None, str]:
    if key not in data:
        return None, ""
    try:
        return parse(data[key]), ""
    except ValueError as error:
        return None, f"{key}: {error}"
