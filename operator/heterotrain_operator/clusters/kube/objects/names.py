"""Names that the operator gives to what it creates; all derive from identity, so that none is created twice."""

from __future__ import annotations

from heterotrain.contract import PLAN_FILE

GROUP = "heterotrain.dev"
VERSION = "v1alpha1"
PLURAL = "heterotrainingjobs"

FIELD_MANAGER = "heterotrain-operator"
"""Field manager of server-side apply; also the component that events name."""

LABEL_JOB = f"{GROUP}/job-name"
LABEL_GROUP = f"{GROUP}/worker-group"
LABEL_INDEX = f"{GROUP}/worker-index"
LABEL_ROLE = f"{GROUP}/job-role"
ROLE_WORKER, ROLE_SERVER = "worker", "server"

ANNOTATION_PLAN = f"{GROUP}/plan-version"
"""Annotation of pods, patched after a plan was written, because the kubelet then refreshes their volumes at once."""

ANNOTATION_TOUCHED = f"{GROUP}/plan-touched"
"""Annotation of pods, patched when a plan is late in their volumes: the kubelet acts on nothing but a change."""

TRAINER_PORT = 29500
"""Port of the address under which a worker is in the plan; there it listens for the others."""

PLAN_VOLUME = "heterotrain-plan"
PLAN_FOLDER = "/var/run/heterotrain/plan"
CHECKPOINT_VOLUME = "heterotrain-checkpoints"

PLAN_KEY = PLAN_FILE
MEMORY_KEY = "memory.json"
"""Keys of the plan's ConfigMap. Only the plan is projected into pods."""

PACKED_MEMORY_KEY = "memory.json.gz"
"""Key of the ConfigMap's binary data for a large memory; MEMORY_KEY is empty then."""


SECRET_KEY = "secret"
"""Key in the job's Secret."""


def plan_name(job: str) -> str:
    """Name of the ConfigMap that holds the plan and the memory of decisions."""
    return f"{job}-plan"


def service_name(job: str) -> str:
    """Name of the headless Service over a job's workers."""
    return job


def secret_name(job: str, chance: str) -> str:
    """Name of the Secret by which a job's workers know one another. `chance` is random: whoever could know the name
    beforehand could make the Secret first, and would know what is in it.
    """
    return f"{job}-{chance}"


def policy_name(job: str) -> str:
    """Name of the NetworkPolicy over a job's workers."""
    return f"{job}-workers"


def worker_selector(job: str) -> str:
    """Label selector of the pods of a job's workers, as the subresource `scale` counts them."""
    return f"{LABEL_JOB}={job},{LABEL_ROLE}={ROLE_WORKER}"


def pod_selector(job: str) -> str:
    """Label selector of all pods of a job, the parameter server's among them."""
    return f"{LABEL_JOB}={job},{LABEL_ROLE}"
