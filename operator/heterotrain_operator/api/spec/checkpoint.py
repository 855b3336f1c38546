"""What survives the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import ABSOLUTE_PATH, MAX_PATH, Model, ObjectName, Steps
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule


class Checkpoint(Model):
    """What survives the workers."""

    every_steps: Steps = Field(default=100, description="Committed steps between two checkpoints.")
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="Checkpoints kept; older ones are removed."
    )
    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH, pattern=ABSOLUTE_PATH)] | None = Field(
        default=None,
        description="Folder of checkpoints as the workers see it, on storage that they share; the job's are in a "
        "folder of its name in it. Absent: the job has no checkpoint that outlives it.",
    )
    resume: Literal["Auto", "Never"] = Field(
        default="Auto",
        description="Whether a job goes on from the checkpoints of an earlier one of its name. Never: it begins at "
        "step 0, and keeps its own, from which its restarts go on, in a folder of its UID. On one machine "
        "`heterotrain run` asks for --resume or --fresh instead.",
    )
    persistent_volume_claim: ObjectName | None = Field(
        default=None,
        description="Claim that a cluster mounts at path, which it needs. Absent: the template provides the storage.",
    )


def _claim_has_a_path(checkpoint: Checkpoint) -> Iterator[Problem]:
    if checkpoint.persistent_volume_claim is not None and checkpoint.path is None:
        yield Problem("spec.checkpoint.path", "is required with persistentVolumeClaim, which is mounted there")


CLAIM_HAS_A_PATH = Rule(
    ("spec.checkpoint.persistentVolumeClaim", "spec.checkpoint.path"),
    _claim_has_a_path,
    (
        Cel(
            "spec.checkpoint",
            "!has(self.persistentVolumeClaim) || has(self.path)",
            "persistentVolumeClaim needs path, at which it is mounted",
        ),
    ),
)
