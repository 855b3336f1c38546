"""The backends that the conformance suite runs on, each in a harness that plays the part of the world around it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from heterotrain.contract import PLAN_FILE, Plan
from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from heterotrain_operator.clusters.kube.objects.names import PLAN_KEY
from heterotrain_operator.clusters.kube.objects.plan_map import MEMORY_KEY
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.events import Unreadable
from heterotrain_operator.clusters.simulated.scenario import Scenario
from heterotrain_operator.core.model import Decision, Group, Job, Seen, WorkerKey
from heterotrain_operator.core.state import Remembered
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving
from unit.cli.commands import eventually
from unit.kube.worlds import World
from unit.local.small_jobs import SLEEP, make_job


class Harness(Protocol):
    """One job on one backend. `observe` and `act` are those of the port; the rest is what happens around it."""

    keys: tuple[WorkerKey, WorkerKey]

    def observe(self) -> tuple[Seen, Remembered | None]: ...

    def act(self, decision: Decision, memory: Remembered) -> None: ...

    def settle(self) -> None:
        """Workers that were created run, and those that were deleted are gone."""

    def kill(self, key: WorkerKey) -> None:
        """A running worker ends by SIGKILL."""

    def write_as_another(self, plan: Plan, memory: Remembered) -> None:
        """Somebody else replaces plan and memory."""

    def damage_plan(self) -> None:
        """Somebody else replaces the plan by what is none."""

    def observe_as_another(self) -> tuple[Seen, Remembered | None]:
        """What an operator observes that starts now."""


class OnKubernetes:
    """Pods of the API server of the handlers' tests; the kubelets' part is played by `World`."""

    keys = (WorkerKey("small", 0, "digits-small-0"), WorkerKey("small", 1, "digits-small-1"))

    def __init__(self, world: World) -> None:
        self._world = world

    def observe(self) -> tuple[Seen, Remembered | None]:
        return self._world.look()

    def act(self, decision: Decision, memory: Remembered) -> None:
        self._world.act(decision, memory)

    def settle(self) -> None:
        self._world.end_pods()
        self._world.run_pods()

    def kill(self, key: WorkerKey) -> None:
        ended = {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}
        self._world.api.change("pods", key.name, {"status": {"phase": "Failed", "containerStatuses": [ended]}})

    def write_as_another(self, plan: Plan, memory: Remembered) -> None:
        data = {PLAN_KEY: plan.to_json(), MEMORY_KEY: memory.to_json()}
        self._world.api.change("configmaps", "digits-plan", {"data": data})

    def damage_plan(self) -> None:
        self._world.api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: "{"}})

    def observe_as_another(self) -> tuple[Seen, Remembered | None]:
        self._world.restart_operator()
        return self._world.look()


class OnThisMachine:
    """Real processes, which only sleep."""

    keys = (WorkerKey("cpu", 0, "job-cpu-0"), WorkerKey("cpu", 1, "job-cpu-1"))

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._uids: dict[str, str] = {}
        self._deleted: set[str] = set()

    def observe(self) -> tuple[Seen, Remembered | None]:
        seen, memory = self._cluster.observe()
        self._uids = {worker.name: worker.uid for worker in seen.workers}
        return seen, memory

    def act(self, decision: Decision, memory: Remembered) -> None:
        self._cluster.act(decision, memory)
        self._deleted |= {self._uids[name] for name in decision.delete if name in self._uids}

    def settle(self) -> None:
        eventually(lambda: not self._deleted & {worker.uid for worker in self._cluster.observe()[0].workers})

    def kill(self, key: WorkerKey) -> None:
        os.kill(self._cluster.process(key.name).pid, signal.SIGKILL)
        self._cluster.wait(30)

    def write_as_another(self, plan: Plan, memory: Remembered) -> None:
        volume = PlanVolume(self._cluster.directory / "plan")
        volume.write(volume.read().version, plan, memory.to_json())

    def damage_plan(self) -> None:
        (self._cluster.directory / "plan" / "..data" / PLAN_FILE).write_text("{")

    def observe_as_another(self) -> tuple[Seen, Remembered | None]:
        with LocalCluster(self._cluster.job, self._cluster.directory, None) as other:
            return other.observe()


@contextmanager
def on_kubernetes(folder: Path) -> Iterator[Harness]:
    """A job of three workers, of which the suite creates two."""
    api = ApiServer()
    with serving(api) as url, connect(Access(str(kubeconfig(folder / "kubeconfig", url)))).api as plain:
        client = PatientClient(plain.configuration)
        try:
            yield OnKubernetes(World(api, Gateway(client, fence=lambda: None, wrote=lambda verb, kind: None)))
        finally:
            client.close()


@contextmanager
def on_this_machine(folder: Path) -> Iterator[Harness]:
    """A job of two workers."""
    with LocalCluster(make_job(SLEEP, replicas=2), folder / "run", None) as cluster:
        yield OnThisMachine(cluster)


class Simulated:
    """Values in virtual time, whose metrics nobody can read."""

    keys = (WorkerKey("cpu", 0, "job-cpu-0"), WorkerKey("cpu", 1, "job-cpu-1"))

    def __init__(self, *, forgetful: bool) -> None:
        scenario = Scenario(Job("job", (Group("cpu", 2),), 64), events=(Unreadable(()),))
        self._cluster = SimulatedCluster(scenario, forgetful=forgetful)
        self.observe, self.act = self._cluster.observe, self._cluster.act

    def settle(self) -> None:
        self._cluster.wait(10)

    def kill(self, key: WorkerKey) -> None:
        self._cluster.pods[key.name].end(137)

    def write_as_another(self, plan: Plan, memory: Remembered) -> None:
        self._cluster.write(plan, memory)

    def damage_plan(self) -> None:
        self._cluster.write("{", self._cluster.memory)

    def observe_as_another(self) -> tuple[Seen, Remembered | None]:
        self._cluster.forget()
        return self._cluster.observe()


@contextmanager
def simulated(folder: Path, *, forgetful: bool = False) -> Iterator[Harness]:
    """A job of two workers."""
    yield Simulated(forgetful=forgetful)


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Harness]]] = {
    "kubernetes": on_kubernetes,
    "local": on_this_machine,
    "simulated": simulated,
    "simulated-forgetful": partial(simulated, forgetful=True),
}
