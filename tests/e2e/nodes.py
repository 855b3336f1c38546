"""Reach into nodes that are Docker containers, as kind's are: to stop them, and to send signals to what runs there."""

from __future__ import annotations

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.programs import run
from e2e.waiting import wait_for

START_SECONDS = 90.0
API_SERVER = "kube-apiserver"
MANIFESTS = "/etc/kubernetes/manifests"
"""Whose pods a control plane's kubelet runs."""

_SIGNAL_POD = """
found=
for process in $(pgrep -f "$1"); do
  if tr - _ <"/proc/$process/cgroup" | grep -q "$2"; then kill "-$3" "$process"; found=yes; fi
done
[ -n "$found" ]
"""


class Nodes:
    """The nodes of a kind cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stopped: set[str] = set()
        names = set(run("docker", "ps", "--format", "{{.Names}}").split())
        foreign = [node["metadata"]["name"] for node in cluster.nodes() if node["metadata"]["name"] not in names]
        assert not foreign, f"these tests stop nodes, so they need a kind cluster; {', '.join(foreign)} is no container"
        # Once it is stopped, it cannot be asked where it is.
        (control_plane,) = cluster.nodes("node-role.kubernetes.io/control-plane")
        self._api_server_node: str = control_plane["metadata"]["name"]

    def named(self, machine: str) -> str:
        """The node labelled as the fast, the slow or the GPU machine."""
        (node,) = self._cluster.nodes(f"heterotrain.dev/machine={machine}")
        name: str = node["metadata"]["name"]
        return name

    def execute(self, node: str, *command: str) -> str:
        """Run a command on a node, outside of any pod."""
        return run("docker", "exec", node, *command)

    def stop(self, node: str) -> None:
        """Pull the plug of a node; `start` or the end of the test puts it back."""
        self._stopped.add(node)
        run("docker", "kill", node)

    def shut_down(self, node: str) -> None:
        """Let a node end in order, as far as it gets in a few seconds; `start` as above."""
        self._stopped.add(node)
        run("docker", "stop", "--time", "10", node)

    def start(self, node: str) -> None:
        """Start a stopped node, and wait until it is Ready again."""
        run("docker", "start", node)
        wait_for(lambda: self._cluster.node_is_ready(node), START_SECONDS, f"node {node} to be Ready again")
        self._stopped.discard(node)

    def signal(self, pod: Document, signal: str, process: str) -> None:
        """Send a signal to the processes of a pod whose command line matches a pattern, however it is taken."""
        uid = pod["metadata"]["uid"].replace("-", "_")
        self.execute(pod["spec"]["nodeName"], "sh", "-c", _SIGNAL_POD, "sh", process, uid, signal)

    def stop_api_server(self) -> None:
        """Stop it as an administrator does, and wait until its process is gone."""
        node = self._api_server_node
        self.execute(node, "mv", f"{MANIFESTS}/{API_SERVER}.yaml", "/etc/kubernetes/")
        wait_for(lambda: not self._runs(node, API_SERVER), 60, "the API server to end")

    def start_api_server(self) -> None:
        """Have it started again; it takes a while until it answers."""
        self.execute(self._api_server_node, "mv", f"/etc/kubernetes/{API_SERVER}.yaml", MANIFESTS)

    def _runs(self, node: str, process: str) -> bool:
        return run("docker", "exec", node, "sh", "-c", 'pgrep "$1" || true', "sh", process) != ""

    def restore(self) -> None:
        """Start what was stopped, and open all nodes for pods."""
        for name in list(self._stopped):
            self.start(name)
        for node in self._cluster.nodes():
            if node["spec"].get("unschedulable"):
                self._cluster.kubectl("uncordon", node["metadata"]["name"])
