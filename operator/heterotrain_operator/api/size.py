"""How many workers a job may have: as many as fit, with the plan and the memory of decisions, into one ConfigMap."""

from __future__ import annotations

from heterotrain.contract import Member, Plan
from heterotrain_operator.api.base import MAX_BATCH, MAX_REPLICAS
from heterotrain_operator.api.spec.worker_groups import WorkerGroup

CONFIG_MAP_BYTES = 2**20
"""What a ConfigMap's values may hold together. Source: Kubernetes 1.34, `ValidateConfigMap` in
`pkg/apis/core/validation/validation.go`, and `MaxSecretSize`, by which it judges.
"""

REST_BYTES = 4096
"""Bytes of a ConfigMap for what does not grow with the number of workers."""

MEMORY_BYTES = 128
"""Bytes of one worker's memory once it is packed; its some 200 digits, 220 of one that relapses, take half of that."""

_LONGEST_ADDRESS = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:29500"


def _member_bytes() -> int:
    """Bytes of a plan's member without the names of its job and (twice) its group, at the longest UID, address, index
    and batch.
    """

    def length(members: int) -> int:
        member = Member(f"--{MAX_REPLICAS - 1}", "0" * 36, _LONGEST_ADDRESS, "", MAX_BATCH, MAX_BATCH)
        return len(Plan(1, 1, "step", (member,) * members).to_json())

    return length(3) - length(2)


WORKER_BYTES = _member_bytes() + MEMORY_BYTES
"""Bytes of one worker in plan and memory, without those names."""

MOST_BYTES = CONFIG_MAP_BYTES - REST_BYTES


def bytes_of(job: str, group: WorkerGroup) -> int:
    """What one worker of the group takes at most, in bytes; `job` is the job's name."""
    return WORKER_BYTES + len(job) + 2 * len(group.name)
