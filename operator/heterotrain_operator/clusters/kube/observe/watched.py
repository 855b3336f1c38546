"""What is handed over for one observation of a job: what the watches show of it, and what its workers export."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.metrics.prometheus import Reading


@dataclass(frozen=True, slots=True)
class Watched:
    """One job as the watches show it: the object and what was read in it, its pods and those gone since the last time,
    and the resource version of the plan's ConfigMap (none: there is none). `reading` is what the pods export.
    """

    body: Mapping[str, Any]
    job: HeteroTrainingJob
    pods: Sequence[PodFacts]
    plan_versions: Collection[str]
    reading: Reading = field(default_factory=lambda: Reading({}))

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        namespace: str = self.body["metadata"]["namespace"]
        return namespace

    @property
    def uid(self) -> str:
        """The job's UID."""
        uid: str = self.body["metadata"]["uid"]
        return uid
