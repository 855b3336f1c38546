"""The folder that all nodes share, as a network file system would be: volumes for jobs, and a pod that reads them."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.api import CORE, Document
from e2e.cluster import Cluster, condition
from e2e.manifests import IMAGE, RESTRICTED_CONTAINER, RESTRICTED_POD
from e2e.waiting import wait_for
from heterotrain.contract import StepRecord

FOLDER = "/var/heterotrain/checkpoints"
"""Where the nodes have it; any user may make folders there."""

NAMESPACE = "heterotrain-e2e"
POD = "files"
MOUNTED = "/files"


def volume(name: str, namespace: str, claim: str, folder: str) -> tuple[Document, Document]:
    """A PersistentVolume of a folder on the nodes, and the claim that is bound to it."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": namespace, "name": claim},
                "hostPath": {"path": folder, "type": "Directory"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        },
    )


def provide(cluster: Cluster, name: str, namespace: str, claim: str, folder: str) -> None:
    """Make both, and wait until they are bound: a pod that finds its claim unbound may be left waiting for minutes."""
    cluster.apply(*volume(name, namespace, claim, folder))
    path = f"{CORE}/namespaces/{namespace}/persistentvolumeclaims/{claim}"
    wait_for(
        lambda: cluster.api.get(path)["status"].get("phase") == "Bound", 60, f"claim {namespace}/{claim}", every=0.5
    )


class SharedFolder:
    """The folder, through a pod that mounts it: on whichever machine the tests run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: list[str] = []

    def provide(self) -> None:
        """Make the pod, its namespace and its volume, and wait until it runs."""
        cluster = self._cluster
        cluster.make_namespace(NAMESPACE)
        provide(cluster, f"{NAMESPACE}-files", NAMESPACE, "files", FOLDER)
        cluster.apply(self._pod())
        path = f"{CORE}/namespaces/{NAMESPACE}/pods/{POD}"
        wait_for(
            lambda: condition(cluster.api.get(path), "Ready").get("status") == "True",
            120,
            f"pod {NAMESPACE}/{POD}, which reads the folder that all nodes share ({FOLDER})",
        )

    def close(self) -> None:
        """Remove the pod and its volume."""
        self._cluster.kubectl("delete", "namespace", NAMESPACE, seconds=120)
        self._cluster.kubectl("delete", "persistentvolume", f"{NAMESPACE}-files")

    def make(self, name: str) -> None:
        """A folder in it."""
        self._made.append(f"{MOUNTED}/{name}")
        self._execute("mkdir", "-p", self._made[-1])

    def remove_all(self) -> None:
        """Remove the folders made, with all that is in them; workers may be about to end that still write there."""
        self._execute("sh", "-c", 'until rm -rf "$@"; do sleep 1; done', "sh", *self._made)

    def names(self, folder: str) -> list[str]:
        """What a folder holds."""
        return self._execute("ls", f"{MOUNTED}/{folder}").split()

    def records(self, path: str) -> Sequence[StepRecord]:
        """The steps that a worker has written down, oldest first; none if it has not begun."""
        text = self._execute("sh", "-c", 'cat "$1" 2>/dev/null || true', "sh", f"{MOUNTED}/{path}")
        # The last line may be half written.
        return [StepRecord.from_json(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _execute(self, *command: str) -> str:
        return self._cluster.kubectl("exec", "--namespace", NAMESPACE, POD, "--", *command)

    def _pod(self) -> Document:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "namespace": NAMESPACE},
            "spec": {
                # Out of the way of jobs, and of nodes that tests stop.
                "nodeSelector": {"heterotrain.dev/machine": "gpu"},
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "securityContext": {**RESTRICTED_POD, "runAsUser": 65532},
                "containers": [
                    {
                        "name": "files",
                        "image": IMAGE,
                        "command": ["sleep", "infinity"],
                        "securityContext": RESTRICTED_CONTAINER,
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                        "volumeMounts": [{"name": "files", "mountPath": MOUNTED}],
                    }
                ],
                "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": "files"}}],
            },
        }
