"""The operator as an administrator installs it: by helm, from the charts of this repository."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from e2e.api import CORE, Api, ApiError, Document
from e2e.cluster import Cluster, condition
from e2e.helm import CHART, REPOSITORY
from e2e.programs import run
from e2e.waiting import wait_for

HELM_SECONDS = 180.0
METRICS_PORT = 9090

PROCESS = "heterotrain_operator.main"
"""What the operator's command line holds."""


def apply_resource(cluster: Cluster) -> None:
    """Have the resource in the cluster, for installations that do not bring it."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename", str(REPOSITORY / "crds"))


def steering_only(*namespaces: str) -> tuple[str, ...]:
    """Values of an installation beside others, which steers the jobs of these namespaces."""
    return f"watchNamespaces={json.dumps(namespaces)}", "crds.enabled=false"


class Installation:
    """One release of the chart, in a namespace that enforces the *restricted* standard."""

    def __init__(
        self, cluster: Cluster, namespace: str, release: str = "heterotrain", values: Sequence[str] = ()
    ) -> None:
        """`values` hold for it whatever else is chosen."""
        self.cluster = cluster
        self.namespace = namespace
        self.release = release
        self._values = values

    @property
    def account(self) -> str:
        """The user name of the operator's ServiceAccount."""
        return f"system:serviceaccount:{self.namespace}:{self.release}"

    def install(self, *values: str) -> None:
        """Install or change it, with `--set-json` values instead of the defaults, and wait until it is ready."""
        self.cluster.make_namespace(self.namespace)
        # These tests read metrics through the API server, which is no pod.
        anybody = 'networkPolicy.metricsFrom=[{"ipBlock":{"cidr":"0.0.0.0/0"}},{"ipBlock":{"cidr":"::/0"}}]'
        settings = [argument for value in (anybody, *self._values, *values) for argument in ("--set-json", value)]
        # The resource may be there from an earlier installation, which has left it with the jobs.
        where = (
            "--namespace",
            self.namespace,
            "--reset-values",
            "--take-ownership",
            "--wait",
            "--timeout",
            f"{HELM_SECONDS:.0f}s",
        )
        run("helm", "upgrade", "--install", self.release, CHART, *where, *settings, seconds=HELM_SECONDS + 30)

    def uninstall(self, *, wait: bool = True) -> None:
        """Remove it with its namespace; the resource and the jobs stay."""
        waiting = ["--wait"] if wait else []
        run("helm", "uninstall", self.release, "--namespace", self.namespace, *waiting, seconds=HELM_SECONDS)
        self.cluster.kubectl("delete", "namespace", self.namespace, f"--wait={str(wait).lower()}", seconds=120)

    def others(self) -> list[str]:
        """Pods of operators of other namespaces."""
        labels = "app.kubernetes.io/name=heterotrain,app.kubernetes.io/component=operator"
        found = [pod["metadata"] for pod in self.cluster.api.items(f"{CORE}/pods", labelSelector=labels)]
        return [f"{pod['namespace']}/{pod['name']}" for pod in found if pod["namespace"] != self.namespace]

    def pods(self) -> list[Document]:
        """The operator's pods, the leading one first."""
        labels = f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component=operator"
        found = self.cluster.api.items(f"{CORE}/namespaces/{self.namespace}/pods", labelSelector=labels)
        leader = self.leader
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]) != leader)

    @property
    def leader(self) -> str:
        """Name of the pod that holds the Lease; empty if none does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.release}"
        return str(((self.cluster.api.find(path) or {}).get("spec") or {}).get("holderIdentity") or "")

    def steal_lease(self, holder: str) -> None:
        """Write another holder into the Lease, which renews it just now and never again."""
        now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = json.dumps({"spec": {"holderIdentity": holder, "renewTime": now, "acquireTime": now}})
        where = (self.release, f"--namespace={self.namespace}")
        self.cluster.kubectl("patch", "lease", *where, "--type=merge", f"--patch={spec}")

    def wait_until_ready(self, replicas: int = 1, seconds: float = 120.0) -> None:
        """Wait for so many pods, all of them ready."""

        def ready() -> bool:
            pods = self.pods()
            return len(pods) == replicas and all(condition(pod, "Ready").get("status") == "True" for pod in pods)

        wait_for(ready, seconds, f"{replicas} ready pods of {self.namespace}/{self.release}")

    def remove_at_once(self, pod: Document) -> None:
        """Delete one of its pods without waiting for its end."""
        where = (f"--namespace={self.namespace}", "--grace-period=0", "--force")
        self.cluster.kubectl("delete", "pod", pod["metadata"]["name"], *where)

    def metrics(self, pod: str) -> dict[str, float]:
        """What the operator's pod exports, with the labels as Prometheus writes them. Raises ApiError."""
        path = f"{CORE}/namespaces/{self.namespace}/pods/{pod}:{METRICS_PORT}/proxy/metrics"
        return series(self.cluster.api, path)

    def log(self, lines: int = 60) -> str:
        """The newest lines of all its pods."""
        texts = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            try:
                text = self.cluster.api.text(
                    f"{CORE}/namespaces/{self.namespace}/pods/{name}/log", tailLines=lines, container="operator"
                )
            except ApiError as error:
                text = str(error)
            texts.append(f"--- {name}\n{text}")
        return "\n".join(texts)


def series(api: Api, path: str) -> dict[str, float]:
    """The series at a path, by name and labels. Raises ApiError."""
    found = {}
    for family in text_string_to_metric_families(api.text(path)):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
