"""One job on the tiny API server, steered round by round: with a clock in hand, and workers that say what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from heterotrain.contract import PHASE_TRAINING, PHASE_WAITING, Plan, parse_plan
from heterotrain_operator.api import HeteroTrainingJob, parse_manifest, to_core
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.cluster import KubeCluster
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB, PLAN_KEY
from heterotrain_operator.clusters.kube.objects.protection import Peers
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts, pod_facts
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.core.model import Decision, Seen, WorkerMetrics
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.loop import Loop
from heterotrain_operator.metrics.prometheus import Reading
from kube_server.api_server import ApiServer, Document, StatusError, merged
from unit.kube.documents import CONTAINER

NOW = 1769860800.0  # 2026-01-31T12:00:00Z
NAMES = ("digits-small-0", "digits-small-1", "digits-large-0")
PATH = {"path": "/checkpoints", "persistentVolumeClaim": "digits"}

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
TEMPLATE: Document = {"spec": {"containers": [CONTAINER]}}
JOB: Document = {
    "apiVersion": "heterotrain.dev/v1alpha1",
    "kind": "HeteroTrainingJob",
    "metadata": {"name": "digits"},
    "spec": {
        "workerGroups": [
            {"name": "small", "replicas": 2, "template": TEMPLATE},
            {"name": "large", "template": TEMPLATE},
        ],
        "training": {"globalBatchSize": 192, "steps": 150},
        "checkpoint": PATH,
    },
}
SCALED: Document = {"workerGroups": [{"name": "small", "replicas": 9, "template": TEMPLATE}], "replicas": 2}
"""A job of one group, whose own replicas are without effect."""


class Workers:
    """The source of metrics: what each worker says; those that are not in it are silent."""

    def __init__(self) -> None:
        self.reported: dict[str, WorkerMetrics] = {}
        self.problem = ""

    async def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        return self.reading(pods)

    def reading(self, pods: Sequence[PodFacts]) -> Reading:
        return Reading({pod.name: self.reported.get(pod.name) for pod in pods}, self.problem)

    def wait(self, *names: str) -> None:
        """They have joined, and wait for a plan."""
        self.reported |= {name: WorkerMetrics(plan_version=0, phase=PHASE_WAITING) for name in names}

    def follow(self, plan: Plan, *, own_seconds: float = 0.1, steps: int = 20) -> None:
        """All members train under the plan, and were measured."""
        for member in plan.members:
            self.reported[member.name] = WorkerMetrics(
                plan_version=plan.version,
                generation=plan.generation,
                batch_size=member.batch_size,
                step=steps,
                total_steps=150,
                phase=PHASE_TRAINING,
                steps=float(steps),
                samples=float(steps * member.batch_size),
                own_seconds=own_seconds * steps,
                own_seconds_squared=own_seconds**2 * steps,
                wait_seconds=0.01 * steps,
            )

    def train(self, *, steps: int = 10, slow: dict[str, float] | None = None) -> None:
        """So many steps more, each of a tenth of a second, of slow ones longer by a factor."""
        for name, metrics in self.reported.items():
            own = 0.1 * (slow or {}).get(name, 1.0)
            self.reported[name] = replace(
                metrics,
                step=metrics.step + steps,
                steps=metrics.steps + steps,
                samples=metrics.samples + steps * metrics.batch_size,
                own_seconds=metrics.own_seconds + own * steps,
                own_seconds_squared=metrics.own_seconds_squared + own**2 * steps,
                wait_seconds=metrics.wait_seconds + 0.01 * steps,
            )


class World:
    """A job and its cluster; `round` observes, decides and acts once."""

    def __init__(self, api: ApiServer, gateway: Gateway, spec: Document | None = None) -> None:
        self.api, self.gateway, self.now = api, gateway, NOW
        self.metrics_from: Peers | None = None
        self._parsed: dict[tuple[str, int], HeteroTrainingJob] = {}
        self._job = merged(JOB, {"spec": spec or {}})
        api.clock = lambda: self.now
        api.put("nodes", {"metadata": {"name": "node-1"}, "status": READY}, "")
        self.apply_job()

    def apply_job(self, *, leaving: str = "") -> None:
        """The job is created; if there is one, it was deleted just before, and its objects too but for one kind."""
        left = [(key, body) for key, body in self.api.objects.items() if key[0] == leaving]
        if self.api.get("heterotrainingjobs", "digits") is not None:
            self.api.remove("heterotrainingjobs", "digits")
        for (plural, namespace, _), body in left:
            self.api.put(plural, body, namespace)
        self.api.put("heterotrainingjobs", self._job)
        self.workers = Workers()
        self.api.writes.clear()
        self.restart_operator()

    def restart_operator(self) -> None:
        """Another operator, which knows nothing but what the cluster says."""
        self.cluster = KubeCluster(self.gateway, Nodes(self.gateway), lambda: self.now, self.metrics_from)
        self.loop = Loop(self.cluster, clock=lambda: self.now, monotonic=lambda: self.now)

    @property
    def body(self) -> Document:
        return self.api.the("heterotrainingjobs", "digits")

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def plan(self) -> Plan:
        return parse_plan(stored(self.api, PLAN_KEY))

    @property
    def status(self) -> Document:
        status: Document = self.body.get("status", {})
        return status

    @property
    def events(self) -> list[str]:
        """Reasons of the events, oldest first."""
        return [self.api.the("events", name)["reason"] for name in self.api.names("events")]

    @property
    def pods(self) -> list[PodFacts]:
        """As the watch shows them: those of this very job."""
        found = [pod_facts(body) for (kind, _, _), body in self.api.objects.items() if kind == "pods"]
        return [pod for pod in found if pod.owner_uid == self.uid]

    @property
    def versions(self) -> set[str]:
        """Resource versions of the plan, as the watch shows them."""
        found = [body for (kind, _, _), body in self.api.objects.items() if kind == "configmaps"]
        return {b["metadata"]["resourceVersion"] for b in found if LABEL_JOB in b["metadata"].get("labels", {})}

    def parsed(self, body: Document) -> HeteroTrainingJob:
        """The job in its models."""
        key = (body["metadata"]["uid"], body["metadata"]["generation"])
        if key not in self._parsed:
            self._parsed[key] = parse_manifest(body)
        return self._parsed[key]

    def look(
        self, pods: list[PodFacts] | None = None, versions: set[str] | None = None
    ) -> tuple[Seen, Remembered | None]:
        """Observe; `pods` and `versions` are what a late watch shows."""
        return self.cluster.observe(self.watched(pods, versions))

    def watched(self, pods: list[PodFacts] | None = None, versions: set[str] | None = None) -> Watched:
        """What there is to observe; `pods` and `versions` are what a late watch shows."""
        shown = self.versions if versions is None else versions
        body, pods = self.body, self.pods if pods is None else pods
        found = Watched(body, self.parsed(body), pods, shown)
        if self.cluster.may_lack_pods(found):
            found = self.cluster.with_lacking_pods(found)
        return replace(found, reading=self.workers.reading(self.cluster.readable(found)))

    def round(self, seconds: float = 1.0, **late: Any) -> Decision:
        """Observe, decide and act so many seconds later."""
        self.now += seconds
        done = self.loop.round(to_core(self.parsed(self.body)), self.watched(**late))
        assert done is not None, "somebody else wrote the plan"
        self._go_on()
        return done.decision

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Carry the decision out to its end."""
        self.cluster.act(decision, memory)
        self._go_on()

    def _go_on(self) -> None:
        while self.cluster.unfinished:
            self.cluster.go_on()

    def run_pods(self) -> None:
        """The kubelets start what was created."""
        for number, name in enumerate(self.api.names("pods"), start=1):
            if self.api.the("pods", name).get("status", {}).get("phase"):
                continue
            running = {"name": "trainer", "state": {"running": {}}}
            status = {"phase": "Running", "podIP": f"10.0.0.{number}", "containerStatuses": [running]}
            self.api.change("pods", name, {"spec": {"nodeName": "node-1"}, "status": status})

    def end_pods(self) -> None:
        """The kubelets have ended what was deleted."""
        for name in self.api.names("pods"):
            if self.api.the("pods", name)["metadata"].get("deletionTimestamp"):
                self.api.remove("pods", name)

    def train(self, *names: str) -> Plan:
        """From nothing to a plan that all follow and that was written of in the status; its write is forgotten.

        `names` are those of its workers, if the job is not the usual one.
        """
        self.round()
        self.run_pods()
        self.workers.wait(*(names or NAMES))
        self.round()
        self.workers.follow(self.plan)
        self.round()
        self.api.writes.clear()
        return self.plan


def written(api: ApiServer, *plurals: str) -> list[tuple[str, str, str]]:
    """Verb, kind and name of every write, in order; of these kinds, or all."""
    return [(verb, plural, name) for verb, plural, name, _ in api.writes if not plurals or plural in plurals]


def refusing(verb: str, plural: str, code: int = 500, reason: str = "why not") -> Callable[[str, str, str], None]:
    """What `ApiServer.refuse` may be, to refuse one verb, or all (`*`), or all that write (`write`), on one kind."""

    def refuse(asked: str, kind: str, name: str) -> None:
        if kind == plural and (verb in (asked, "*") or (verb == "write" and asked not in ("get", "list"))):
            raise StatusError(code, "Refused", f"{reason}: {name}")

    return refuse


def rebalance(world: World) -> None:
    """The large worker becomes slow, until the batches follow."""
    before = world.plan.version
    while world.plan.version == before:
        world.workers.train(slow={NAMES[2]: 3.0})
        world.round()
        assert world.now < NOW + 600, "the batches do not follow"


def owner(api: ApiServer, plural: str, name: str) -> str:
    """UID of an object's owner."""
    return str(api.the(plural, name)["metadata"]["ownerReferences"][0]["uid"])


def stored(api: ApiServer, key: str) -> str:
    """What the plan's ConfigMap holds."""
    return str(api.the("configmaps", "digits-plan")["data"][key])
