"""What the watches show, by job, and what is handed over for one observation of it.

kopf's own indices hold every object back until the last one is indexed, and wake all that wait at each: the start
beside 5,000 pods took minutes of CPU time, and every pod's whole document was in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.metrics.prometheus import Reading

V = TypeVar("V")

Key = tuple[str, str]
"""Namespace and name of a job."""


class Index(Generic[V]):
    """Values of objects, by the job that they belong to and their UIDs. For one thread."""

    def __init__(self) -> None:
        self._of_job: dict[Key, dict[str, V]] = {}
        self._job_of: dict[str, Key] = {}

    def put(self, key: Key, uid: str, value: V) -> None:
        """An object of a job as it is now; it may have been another's before."""
        if self._job_of.get(uid, key) != key:
            self.remove(uid)
        self._job_of[uid] = key
        self._of_job.setdefault(key, {})[uid] = value

    def remove(self, uid: str) -> None:
        """The object is gone; one that is not known changes nothing."""
        key = self._job_of.pop(uid, None)
        if key is None:
            return
        del self._of_job[key][uid]
        if not self._of_job[key]:
            del self._of_job[key]

    def forget(self, key: Key, over: Callable[[V], bool]) -> None:
        """Values of a job whose time is over; what the watches show of their objects after that is taken in again."""
        for uid, value in list(self._of_job.get(key, {}).items()):
            if over(value):
                self.remove(uid)

    def of(self, key: Key) -> list[V]:
        """The values of a job's objects."""
        return list(self._of_job.get(key, {}).values())


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
