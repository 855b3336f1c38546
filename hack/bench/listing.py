"""What listing many pods costs the operator: the peak of its process's memory, with pages of several sizes.

The operator is a process of its own, as in its pod, started beside pods that are there already. The API server is one
more, the tests' tiny one, and the pods are as large as a cluster's: with managed fields, a status and all that
admission has added.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from handlers.operators import free_port
from heterotrain_operator import main
from heterotrain_operator.clusters.kube.objects.names import LABEL_GROUP, LABEL_INDEX, LABEL_JOB
from heterotrain_operator.controller import handlers
from kube_server.api_server import ApiServer
from kube_server.serving import kubeconfig, serving

NAMESPACE = "bench"
PER_JOB = 50
PATIENCE_SECONDS = 300.0
SETTLED_SECONDS = 8.0
"""After all is listed, so that kopf has let all objects go."""


def pod_of(number: int) -> dict[str, Any]:
    """A worker's pod as a cluster shows it, of a job that is not there."""
    job, index = f"job-{number // PER_JOB}", str(number % PER_JOB)
    name = f"{job}-cpu-{index}"
    labels = {LABEL_JOB: job, LABEL_GROUP: "cpu", LABEL_INDEX: index, "app.kubernetes.io/name": "heterotrain"}
    owner = {"apiVersion": "heterotrain.dev/v1alpha1", "kind": "HeteroTrainingJob", "name": job, "uid": f"uid-{job}"}
    moment = "2026-01-01T00:00:00Z"
    variables = [{"name": f"HETEROTRAIN_SETTING_{each}", "value": f"value of setting {each}"} for each in range(20)]
    mounts = [{"name": f"volume-{each}", "mountPath": f"/var/volumes/{each}", "readOnly": True} for each in range(5)]
    container = {
        "name": "trainer",
        "image": "registry.example.com/team/trainer@sha256:" + "0" * 64,
        "command": ["python", "/app/train.py"],
        "env": variables,
        "resources": {
            kind: {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "1Gi"} for kind in ("limits", "requests")
        },
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    managed = {
        f"k:{json.dumps({'name': each['name']})}": {".": {}, "f:name": {}, "f:value": {}, "f:mountPath": {}}
        for each in (*variables, *mounts)
    }
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    times = {"lastProbeTime": None, "lastTransitionTime": moment, "status": "True"}
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "managedFields": [
                {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": moment, "fieldsV1": fields}
                for manager, fields in {
                    "heterotrain-operator": {
                        "f:metadata": {"f:labels": {f"f:{each}": {} for each in labels}},
                        "f:spec": managed,
                    },
                    "kubelet": {
                        "f:status": {
                            f"k:{json.dumps({'type': each})}": {key: {} for key in times} for each in conditions
                        }
                    },
                }.items()
            ],
        },
        "spec": {
            "containers": [container],
            "nodeName": f"node-{number % 100}",
            "restartPolicy": "Never",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{each}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for each in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": mount["name"], "configMap": {"name": name, "defaultMode": 420}} for mount in mounts],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "conditions": [{"type": each, **times} for each in conditions],
            "containerStatuses": [{"name": "trainer", "ready": True, "state": {"running": {"startedAt": moment}}}],
        },
    }


def serve(number: int, path: Path, started: Connection) -> None:
    """The API server's process: pods, and no jobs."""
    api = ApiServer()
    api.put("namespaces", {"metadata": {"name": NAMESPACE}}, "")
    for each in range(number):
        api.put("pods", pod_of(each), NAMESPACE)
    some = [len(json.dumps(body)) for (kind, *_), body in api.objects.items() if kind == "pods"]
    with serving(api) as url:
        kubeconfig(path, url)
        started.send(statistics.mean(some) if some else 0.0)
        started.recv()


def operate(chunk: int) -> int:
    """The operator's process; 0 asks for all at once, as the API server takes it."""
    handlers.CHUNK_SIZE = chunk
    return main.main()


def measured(path: Path, chunk: int) -> tuple[float, float, float]:
    """MiB of the operator's process once it has seen all, and at most; and seconds until then."""
    port = free_port()
    environment = {
        **os.environ,
        "KUBECONFIG": str(path),
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "operator-a",
        "HETEROTRAIN_HEALTH_PORT": str(port),
        "HETEROTRAIN_METRICS_PORT": str(free_port()),
    }
    command = [sys.executable, __file__, "--operate", str(chunk)]
    began = time.monotonic()
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as operator:
        try:
            while not _ready(port):
                if operator.poll() is not None or time.monotonic() - began > PATIENCE_SECONDS:
                    raise RuntimeError("the operator does not start")
                time.sleep(0.05)
            seconds = time.monotonic() - began
            time.sleep(SETTLED_SECONDS)
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{operator.pid}/status").read_text().splitlines())
        finally:
            operator.terminate()
    settled, peak = (float(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return settled, peak, seconds


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--chunks", default=f"0,{handlers.CHUNK_SIZE}", help="sizes of a page; 0: all at once")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--operate", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(pods: int, chunks: list[int], repetitions: int) -> None:
    """Print a line for each size, and for no pods at all."""
    spawn = multiprocessing.get_context("spawn")
    for number, sizes in ((0, chunks[-1:]), (pods, chunks)):
        ours, theirs = spawn.Pipe()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kubeconfig"
            server = spawn.Process(target=serve, args=(number, path, theirs))
            server.start()
            print(f"{number} pods of {ours.recv() / 1024:.1f} KiB", flush=True)
            for chunk in sizes:
                found = [measured(path, chunk) for _ in range(repetitions)]
                settled, peak, seconds = (
                    f"{statistics.median(each):.1f} ({min(each):.1f} .. {max(each):.1f})"
                    for each in zip(*found, strict=True)
                )
                print(
                    f"  pages of {chunk or 'all'}: settled {settled} MiB, peak {peak} MiB, ready after {seconds} s",
                    flush=True,
                )
            ours.send(None)
            server.join()


if __name__ == "__main__":
    arguments = parsed()
    if arguments.operate is not None:
        sys.exit(operate(arguments.operate))
    compare(arguments.pods, [int(size) for size in arguments.chunks.split(",")], arguments.repetitions)
