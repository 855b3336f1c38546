"""Whether a job's checkpoints survive its pods: a restart that counts on them would otherwise begin at step 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, WorkerGroup
from heterotrain_operator.core.model import Condition

CHECKPOINT_NOT_DURABLE = "CheckpointNotDurable"

_GOES_WITH_THE_POD = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})
"""Sources of volumes that end with their pod, or cannot be written to."""


def checkpoint_condition(job: HeteroTrainingJob) -> Condition | None:
    """The warning that restarts are allowed but nothing to restart from is kept; None if all is well."""
    limit = job.spec.run_policy.backoff_limit
    if limit == 0:
        return None
    checkpoint = job.spec.checkpoint
    if checkpoint.path is None:
        why, reason = "spec.checkpoint.path is not set", "NoCheckpointPath"
    elif checkpoint.persistent_volume_claim is not None:
        return None
    else:
        lost = [group.name for group in job.spec.worker_groups if not _on_durable_volume(group, checkpoint.path)]
        if not lost:
            return None
        groups = ", ".join(lost)
        why, reason = f"{checkpoint.path} is on no volume that outlives the pods of group {groups}", "NoDurableVolume"
    advice = "name a spec.checkpoint.persistentVolumeClaim"
    message = f"after a restart (backoffLimit is {limit}) training begins at step 0, because {why}; {advice}"
    return Condition(CHECKPOINT_NOT_DURABLE, True, reason, message)


def _on_durable_volume(group: WorkerGroup, path: str) -> bool:
    """Whether the first container of the group's template sees `path` on a volume that outlives the pod."""
    spec: Mapping[str, Any] = group.template["spec"]
    mounts = {
        PurePosixPath(mount["mountPath"]): mount["name"] for mount in spec["containers"][0].get("volumeMounts") or ()
    }
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    folder = PurePosixPath(path)
    for above in (folder, *folder.parents):
        if above in mounts:
            volume = volumes.get(mounts[above], {})
            return not _GOES_WITH_THE_POD & volume.keys()
    return False
