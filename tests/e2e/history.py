"""What happened to a job while nobody looked: every plan, every pod and every phase, from watches in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from e2e.api import CORE, JOBS, Api, ApiError, Document
from e2e.jobs import LABEL_JOB, JobOnCluster
from heterotrain.contract import PLAN_FILE, Plan, PlanError, parse_plan

RETRY_SECONDS = 0.5


class History:
    """Use it as a context manager, around what is to be recorded.

    `plans` are all plans by version, `written` the moments at which each was seen first; `pods` the names of all pods
    by UID, `last_seen` what each was last, and `leaving` the moments at which each was first seen to be deleted;
    `phases` those that the job went through, in their order, and `entered` the moments at which it was first seen in
    each. Moments are Unix seconds.
    """

    def __init__(self, job: JobOnCluster) -> None:
        self.plans: dict[int, Plan] = {}
        self.written: dict[int, float] = {}
        self.pods: dict[str, str] = {}
        self.last_seen: dict[str, Document] = {}
        self.leaving: dict[str, float] = {}
        self.phases: list[str] = []
        self.entered: dict[str, float] = {}
        self._api = job.cluster.api
        self._ended = threading.Event()
        core = f"{CORE}/namespaces/{job.namespace}"
        jobs = f"{JOBS}/namespaces/{job.namespace}/heterotrainingjobs"
        self._follow(f"{core}/configmaps", {"fieldSelector": f"metadata.name={job.name}-plan"}, self._see_plan)
        self._follow(f"{core}/pods", {"labelSelector": f"{LABEL_JOB}={job.name}"}, self._see_pod)
        self._follow(jobs, {"fieldSelector": f"metadata.name={job.name}"}, self._see_job)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    @property
    def newest(self) -> int:
        """The newest plan's version; 0 before the first."""
        return max(self.plans, default=0)

    def pods_made(self) -> Mapping[str, int]:
        """How many pods of each name there were."""
        names = list(self.pods.values())
        return {name: names.count(name) for name in sorted(set(names))}

    def _follow(self, path: str, query: Mapping[str, object], see: Callable[[Document], None]) -> None:
        arguments = (self._api, path, query, see)
        threading.Thread(target=self._run, args=arguments, name=f"watch {path}", daemon=True).start()

    def _run(self, api: Api, path: str, query: Mapping[str, Any], see: Callable[[Document], None]) -> None:
        while not self._ended.is_set():
            try:
                found = api.get(path, **query)
                for item in found["items"]:
                    see(item)
                for event in api.watch(path, found["metadata"]["resourceVersion"], **query):
                    if self._ended.is_set():
                        return
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        see(event["object"])
            except ApiError:
                time.sleep(RETRY_SECONDS)

    def _see_plan(self, body: Document) -> None:
        try:
            plan = parse_plan((body.get("data") or {})[PLAN_FILE])
        except (PlanError, KeyError):
            return  # a test has spoilt it
        if plan.version not in self.plans:
            self.written[plan.version] = time.time()
            self.plans[plan.version] = plan

    def _see_pod(self, body: Document) -> None:
        uid = body["metadata"]["uid"]
        self.pods[uid] = body["metadata"]["name"]
        self.last_seen[uid] = body
        if "deletionTimestamp" in body["metadata"]:
            self.leaving.setdefault(uid, time.time())

    def _see_job(self, body: Document) -> None:
        phase = (body.get("status") or {}).get("phase", "")
        if phase and phase != (self.phases or [""])[-1]:
            self.phases.append(phase)
            self.entered.setdefault(phase, time.time())
