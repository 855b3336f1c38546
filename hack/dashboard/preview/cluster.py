"""A cluster for the pictures: the operator as it is deployed, the tests' API server, a kubelet, and a real Prometheus.

The kubelet starts pods as processes of this machine, each at a loopback address of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import emulated_law
import yaml

from e2e.programs import program
from e2e.waiting import wait_for
from handlers.operators import free_port
from heterotrain import contract
from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB, PLAN_KEY, plan_name
from kube_server.api_server import ApiServer, Document
from kube_server.serving import kubeconfig, serving
from unit.kube.worlds import READY

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
SCRAPE_SECONDS = 2
PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Pod:
    """A pod that runs, or ran; `folder` has its plan, its share of a machine, and what it says at its end."""

    uid: str
    job: str
    ip: str
    folder: Path
    process: subprocess.Popen[bytes]
    over: bool = False


class Kubelet:
    """Runs what the API server has of pods; call `look` again and again."""

    def __init__(self, api: ApiServer, folder: Path, log: IO[bytes]) -> None:
        self.api, self.pods = api, dict[tuple[str, str], Pod]()
        self._folder, self._log, self._made = folder, log, 0

    def look(self) -> None:
        """Start pods that are new, bring plans, and say which have ended."""
        there = {key[1:]: body for key, body in list(self.api.objects.items()) if key[0] == "pods"}
        for key, pod in list(self.pods.items()):
            if there.get(key, {}).get("metadata", {}).get("uid") != pod.uid:
                pod.process.kill()
                pod.process.wait()
                del self.pods[key]
        for key, body in there.items():
            if key not in self.pods:
                self._start(key, body)
            pod = self.pods[key]
            self._bring_plan(key[0], pod)
            if body["metadata"].get("deletionTimestamp") and pod.process.poll() is None:
                pod.process.send_signal(signal.SIGTERM)
            if pod.process.poll() is not None and not pod.over:
                pod.over = True
                self._ended(key, pod)
            if body["metadata"].get("deletionTimestamp") and pod.over:
                with suppress(KeyError):
                    self.api.remove("pods", key[1], key[0])

    def give(self, namespace: str, name: str, cores: float, neighbours: int = 0) -> None:
        """A pod has so much of a machine from now on."""
        _write(self.pods[namespace, name].folder / "share", f"{cores} {neighbours}")

    def kill(self, namespace: str, prefix: str) -> None:
        """SIGKILL to the newest pod that runs and whose name begins so."""
        names = [
            key for key, pod in self.pods.items() if key[0] == namespace and key[1].startswith(prefix) and not pod.over
        ]
        self.pods[names[-1]].process.kill()

    def close(self) -> None:
        """End all."""
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait()

    def _start(self, key: tuple[str, str], body: Document) -> None:
        self._made += 1
        metadata, (container, *_) = body["metadata"], body["spec"]["containers"]
        folder = self._folder / f"{key[1]}-{self._made}"
        folder.mkdir()
        ip = f"127.{os.getpid() // 256 % 200 + 20}.{os.getpid() % 256}.{self._made + 1}"
        variables = {entry["name"]: self._value(key[0], body, entry) for entry in container["env"]}
        _write(folder / "share", f"{variables.get(contract.ENV_CPU_LIMIT, '1')} 0")
        ours = {
            contract.ENV_PLAN_DIR: str(folder),
            contract.ENV_TERMINATION_LOG: str(folder / "end"),
            emulated_law.ENV_SHARE: str(folder / "share"),
            "POD_IP": ip,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY / "hack" / "bench"),
        }
        process = subprocess.Popen(
            [sys.executable, *container["command"][1:]],
            cwd=REPOSITORY,
            env={**os.environ, **variables, **ours},
            stdout=self._log,
            stderr=self._log,
        )
        self.pods[key] = Pod(metadata["uid"], metadata["labels"][LABEL_JOB], ip, folder, process)
        self._say(key, {"phase": "Running", "podIP": ip}, {"running": {}}, node=f"node-{self._made}")

    def _value(self, namespace: str, body: Document, entry: Document) -> str:
        if "valueFrom" not in entry:
            return str(entry["value"]).replace("$$", "$")
        wanted = entry["valueFrom"]
        if "fieldRef" in wanted:
            return str(body["metadata"][wanted["fieldRef"]["fieldPath"].rpartition(".")[2]])
        secret = self.api.the("secrets", wanted["secretKeyRef"]["name"], namespace)
        return str(secret["stringData"][wanted["secretKeyRef"]["key"]])

    def _bring_plan(self, namespace: str, pod: Pod) -> None:
        stored = self.api.get("configmaps", plan_name(pod.job), namespace)
        text = (stored or {}).get("data", {}).get(PLAN_KEY)
        file = pod.folder / contract.PLAN_FILE
        if text is not None and (not file.exists() or file.read_text() != text):
            _write(file, text)

    def _ended(self, key: tuple[str, str], pod: Pod) -> None:
        said = pod.folder / "end"
        code = pod.process.returncode
        ended = {"exitCode": code if code >= 0 else 128 - code, "message": said.read_text() if said.exists() else ""}
        phase = "Succeeded" if code == 0 else "Failed"
        self._say(key, {"phase": phase, "podIP": pod.ip}, {"terminated": ended})

    def _say(self, key: tuple[str, str], status: Document, state: Document, node: str = "") -> None:
        status["containerStatuses"] = [{"name": "trainer", "state": state}]
        if node:
            self.api.put("nodes", {"metadata": {"name": node}, "status": READY}, "")
        spec = {"spec": {"nodeName": node}} if node else {}
        with suppress(KeyError):
            self.api.change("pods", key[1], {**spec, "status": status}, key[0])


class Cluster:
    """Apply jobs, and `pass_` time."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.api = ApiServer()
        log = stack.enter_context((folder / "log").open("ab"))
        self.kubelet = Kubelet(self.api, folder, log)
        stack.callback(self.kubelet.close)
        config = kubeconfig(folder / "kubeconfig", stack.enter_context(serving(self.api)))
        metrics, health = free_port(), free_port()
        environment = {**os.environ, "KUBECONFIG": str(config), "POD_NAMESPACE": "heterotrain-system"}
        environment |= {"HETEROTRAIN_METRICS_PORT": str(metrics), "HETEROTRAIN_HEALTH_PORT": str(health)}
        _run(stack, [sys.executable, "-m", "heterotrain_operator.main"], log, environment)
        self._targets = folder / "targets.json"
        self._targets.write_text("[]")
        own = {"targets": [f"127.0.0.1:{metrics}"], "labels": {"namespace": "heterotrain-system"}}
        workers = {"files": [str(self._targets)], "refresh_interval": "1s"}
        prometheus(
            folder,
            stack,
            {"job_name": "workers", "file_sd_configs": [workers]},
            {"job_name": "operator", "honor_labels": True, "static_configs": [own]},
        )

    def apply(self, job: Document) -> None:
        """As kubectl does."""
        namespace = job["metadata"]["namespace"]
        self.api.put("namespaces", {"metadata": {"name": namespace}}, "")
        self.api.put("heterotrainingjobs", job, namespace)

    def all_train(self) -> bool:
        """Whether all jobs do by now."""
        jobs = [body for key, body in list(self.api.objects.items()) if key[0] == "heterotrainingjobs"]
        return all(body.get("status", {}).get("phase") == "Running" for body in jobs)

    def pass_(self, seconds: float) -> None:
        """Let pods run."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.kubelet.look()
            targets = [
                {"targets": [f"{pod.ip}:{contract.DEFAULT_METRICS_PORT}"], "labels": {"namespace": namespace}}
                for (namespace, _), pod in self.kubelet.pods.items()
                if not pod.over
            ]
            if targets != json.loads(self._targets.read_text()):
                _write(self._targets, json.dumps(targets))
            time.sleep(0.2)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """It lives as long as the block lasts."""
    with ExitStack() as stack:
        yield Cluster(folder, stack)


def prometheus(folder: Path, stack: ExitStack, *scraped: Document) -> str:
    """The URL of a Prometheus that keeps its data in a folder, and goes with the stack."""
    every = f"{SCRAPE_SECONDS}s"
    settings = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(REPOSITORY / "helm/heterotrain/files/rules.yaml")] if scraped else [],
        "scrape_configs": list(scraped),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    words = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
    words += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    log = stack.enter_context((folder / "prometheus.log").open("ab"))
    _run(stack, words, log, dict(os.environ))

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
            return True
        return False

    wait_for(answers, PATIENCE_SECONDS, "Prometheus to answer", every=0.1)
    return f"http://{address}"


def _run(stack: ExitStack, words: list[str], log: IO[bytes], environment: dict[str, str]) -> None:
    process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _write(file: Path, text: str) -> None:
    """At once, so that nobody reads half of it."""
    spare = file.with_suffix(".new")
    spare.write_text(text)
    spare.replace(file)
