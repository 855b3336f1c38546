"""A job on the cluster, as a test sees it: its status, events, pods, plan, and what its workers measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from e2e.api import CORE, JOBS, ApiError, Document
from e2e.cluster import Cluster, condition, entry_of
from e2e.shared_folder import SharedFolder
from e2e.waiting import wait_for
from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import Plan, StepRecord, parse_plan

START_SECONDS = 150.0
"""From the creation of a job to its first steps, on a slow and busy machine."""

LABEL_JOB = "heterotrain.dev/job-name"
FINAL = ("Succeeded", "Failed", "Invalid")


class JobOnCluster:
    """One job, by namespace and name."""

    def __init__(self, cluster: Cluster, files: SharedFolder, namespace: str, manifest: Document) -> None:
        self.cluster = cluster
        self.files = files
        self.namespace = namespace
        self.name: str = manifest["metadata"]["name"]
        self._path = f"{JOBS}/namespaces/{namespace}/heterotrainingjobs/{self.name}"
        self._core = f"{CORE}/namespaces/{namespace}"
        self.uid: str = cluster.api.get(self._path)["metadata"]["uid"]

    # --- what is there ------------------------------------------------------------------------------------------

    def document(self) -> Document | None:
        """The object; None if it is gone."""
        return self.cluster.api.find(self._path)

    def scale_subresource(self) -> Document:
        """Its subresource scale, as autoscalers read it. Raises ApiError."""
        return self.cluster.api.get(f"{self._path}/scale")

    @property
    def status(self) -> Document:
        """Its status; empty before the operator has seen it."""
        return (self.document() or {}).get("status") or {}

    @property
    def phase(self) -> str:
        """Its phase; empty before the operator has seen it."""
        return str(self.status.get("phase", ""))

    def condition(self, kind: str) -> Document:
        """A condition of its status."""
        return condition(self.document() or {}, kind)

    def worker(self, group: str, index: int = 0) -> Document:
        """A worker's entry in its status."""
        return entry_of(self.status.get("workers") or (), "name", self.pod_name(group, index))

    def events(self, reason: str = "") -> list[Document]:
        """What the operator has told about it, all or with one reason, oldest first."""
        found = self.cluster.api.items(f"{self._core}/events", fieldSelector=f"involvedObject.uid={self.uid}")
        events = [event for event in found if reason in ("", event["reason"])]
        return sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def warnings(self) -> list[str]:
        """Reasons and messages of all warnings about it."""
        return [f"{event['reason']}: {event['message']}" for event in self.events() if event["type"] == "Warning"]

    def pod_name(self, group: str, index: int = 0) -> str:
        """The name of a worker's pod."""
        return f"{self.name}-{group}-{index}"

    def pods(self) -> list[Document]:
        """Its pods, by name."""
        pods = self.cluster.api.items(f"{self._core}/pods", labelSelector=f"{LABEL_JOB}={self.name}")
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, group: str, index: int = 0) -> Document:
        """The pod of a worker, which must be there."""
        return self.cluster.api.get(f"{self._core}/pods/{self.pod_name(group, index)}")

    def children(self) -> list[str]:
        """Kind and name of every object that is labelled as the job's."""
        paths = [f"{self._core}/{kind}" for kind in ("pods", "services", "configmaps", "endpoints", "secrets")]
        paths.append(f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies")
        return [
            f"{path.rpartition('/')[2]} {each['metadata']['name']}"
            for path in paths
            for each in self.cluster.api.items(path, labelSelector=f"{LABEL_JOB}={self.name}")
        ]

    @property
    def plan(self) -> Plan:
        """The plan in its ConfigMap. Raises AssertionError if there is none."""
        found = self.cluster.api.find(f"{self._core}/configmaps/{self.name}-plan")
        assert found is not None, f"job {self.name} has no plan"
        return parse_plan(found["data"][contract.PLAN_FILE])

    # --- what its workers say -------------------------------------------------------------------------------------

    def metrics(self, group: str, index: int = 0) -> Mapping[str, float]:
        """What a worker exports now, by the contract's names. Raises ApiError if it does not answer."""
        pod = f"{self.pod_name(group, index)}:{contract.DEFAULT_METRICS_PORT}"
        text = self.cluster.api.text(f"{self._core}/pods/{pod}/proxy/metrics")
        return {
            sample.name.removesuffix("_total"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def step(self) -> int:
        """Steps committed so far, as its workers say; -1 if none answers."""
        steps = [-1]
        for pod in self.pods():
            labels = pod["metadata"]["labels"]
            try:
                metrics = self.metrics(labels["heterotrain.dev/worker-group"], labels["heterotrain.dev/worker-index"])
            except ApiError:
                continue
            if metrics.get(table.PLAN_VERSION.name, 0) > 0:
                steps.append(int(metrics[table.STEP.name]))
        return max(steps)

    def records(self, group: str, index: int = 0) -> Sequence[StepRecord]:
        """All steps that a worker, or its predecessors of the same name, wrote down."""
        return self.files.records(f"{self.namespace}/{self.pod_name(group, index)}.jsonl")

    def log(self, pod: str) -> str:
        """What a worker has printed."""
        return self._kubectl("logs", pod)

    # --- what is done to it ---------------------------------------------------------------------------------------

    def patch(self, spec: Document) -> None:
        """Change its spec, as a user does."""
        self._kubectl("patch", "heterotrainingjob", self.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def scale(self, replicas: int, *preconditions: str) -> None:
        """`kubectl scale`. Raises AssertionError, with its reason, if it is refused."""
        self._kubectl("scale", "heterotrainingjob", self.name, f"--replicas={replicas}", *preconditions)

    def resize(self, group: str, cpu: str) -> None:
        """Change the CPU limit of a running worker in place."""
        resources = {"requests": {"cpu": "50m"}, "limits": {"cpu": cpu}}
        body = {"spec": {"containers": [{"name": "trainer", "resources": resources}]}}
        self._kubectl("patch", "pod", self.pod_name(group), "--subresource=resize", f"--patch={json.dumps(body)}")

    def execute(self, pod: str, *command: str) -> str:
        """Run a command in the container of a worker."""
        return self.cluster.kubectl("exec", f"--namespace={self.namespace}", pod, "--", *command)

    def delete(self) -> None:
        """Delete it, and wait until it and all its objects are gone."""
        self._kubectl("delete", "heterotrainingjob", self.name, seconds=60)
        wait_for(lambda: not self.children(), 90, lambda: f"{', '.join(self.children())} to go with job {self.name}")

    def _kubectl(self, *arguments: str, seconds: float = 60.0) -> str:
        return self.cluster.kubectl(*arguments, f"--namespace={self.namespace}", seconds=seconds)

    # --- what is waited for ---------------------------------------------------------------------------------------

    def wait_for_phase(self, phase: str, seconds: float = START_SECONDS) -> Document:
        """Its status once it is in a phase. Raises AssertionError at once if it ended in another."""

        def there() -> Document | None:
            status = self.status
            found = status.get("phase")
            assert found == phase or found not in FINAL, f"job {self.name} is {found}: {status.get('reason')}"
            return status if found == phase else None

        return wait_for(there, seconds, f"job {self.name} to be {phase}")

    def wait_for_step(self, step: int, seconds: float = START_SECONDS) -> int:
        """The step it has reached, once that is at least `step`."""

        def there() -> int | None:
            status = self.status
            assert status.get("phase") not in FINAL, f"job {self.name} is {status['phase']}: {status.get('reason')}"
            reached = self.step()
            return reached if reached >= step else None

        return wait_for(there, seconds, f"job {self.name} to reach step {step}")

    def wait_for_condition(self, kind: str, status: str, seconds: float) -> Document:
        """A condition, once its status is "True" or "False"."""

        def there() -> Document | None:
            found = self.condition(kind)
            return found if found.get("status") == status else None

        return wait_for(there, seconds, f"condition {kind} of job {self.name} to be {status}")

    def wait_for_event(self, reason: str, seconds: float) -> Document:
        """The newest event with a reason, once there is one."""
        return wait_for(lambda: self.events(reason), seconds, f"event {reason} of job {self.name}")[-1]

    def wait_for_plan(self, version: int, seconds: float) -> Plan:
        """The active plan, once it is of at least that version."""
        return wait_for(
            lambda: plan if (plan := self.plan).version >= version else None,
            seconds,
            f"plan {version} of job {self.name}",
        )


def own_seconds(records: Sequence[StepRecord], version: int) -> list[float]:
    """Own times of a worker's measured steps under one plan."""
    return [record.own for record in records if record.version == version and not record.mark]


def shares(plan: Plan) -> dict[str, Any]:
    """Each worker's share of the global batch."""
    return {member.name: member.batch_size / plan.global_batch_size for member in plan.members}
