"""What other tenants can do to one's own job through the operator: rounds per second of a job that trains, the longest
wait between two of them and between two renewals of the Lease, CPU and peak memory of the operator's process.

The operator is a process of its own, beside the tests' API server and a job whose workers answer; its pauses between
rounds are those of a job that is looked at often, so that a lost round shows. Each attack is a row of `ATTACKS`. What
an attack stores is there before the operator starts (`at_start`), or comes while the job trains. The CPUs are shared
with the API server of this process, so compare rows of one run.

    PYTHONPATH=tests .venv/bin/python hack/bench/hostile_jobs.py [--only WORD] [--seconds N] [--json]
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import functools
import gzip
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.operators import Workers, free_port, plan_of, serving_workers, status_of
from heterotrain_operator.clusters.kube.objects.names import LABEL_GROUP, LABEL_INDEX, LABEL_JOB
from heterotrain_operator.controller import rounds
from heterotrain_operator.main import main as run_operator
from kube_server.api_server import ApiServer, Document, merged
from kube_server.serving import kubeconfig, serving
from unit.kube.documents import read
from unit.kube.worlds import JOB, NAMES, READY, TEMPLATE

OURS, THEIRS = "team-a", "team-b"
PAUSE_SECONDS = 0.1
START_SECONDS = 120.0
SLOW_SECONDS = 0.05
"""An API server under load takes so long for one pod that is created or deleted."""


def training_job(name: str, entries: list[Document], **policy: Any) -> Document:
    """A job of another tenant whose only container has these variables."""
    container = {"name": "t", "image": "x", "command": ["x"], "env": entries}
    group = {"name": "w", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    spec = {"workerGroups": [group], "training": {"globalBatchSize": 8, "steps": 10}, "runPolicy": policy}
    return {**JOB, "metadata": {"name": name}, "spec": spec}


def valid_variables(number: int) -> list[Document]:
    """So many variables of some 28 bytes."""
    return [{"name": f"V{index}", "value": "x"} for index in range(number)]


def jobs_with(number: int, entries: list[Document], **policy: Any) -> Callable[[ApiServer], None]:
    """As many jobs whose containers have these variables."""

    def store(api: ApiServer) -> None:
        for index in range(number):
            api.put("heterotrainingjobs", training_job(f"theirs-{index}", entries, **policy), THEIRS)

    return store


def labelled(plural: str, number: int, content: Document) -> Callable[[ApiServer], None]:
    """Objects that bear the label of a job's objects, and are nobody's."""

    def store(api: ApiServer) -> None:
        labels = {LABEL_JOB: "digits"}
        for index in range(number):
            api.put(plural, {"metadata": {"name": f"labelled-{index}", "labels": labels}, **content}, THEIRS)

    return store


def job_with_pods(api: ApiServer, name: str, namespace: str, workers: int, **policy: Any) -> None:
    """A job and its pods, which wait for a node; documents as clusters have them."""
    group = {"name": "w", "replicas": workers, "template": TEMPLATE}
    training = {"globalBatchSize": 16 * workers, "steps": 10}
    spec = {"workerGroups": [group], "training": training, "runPolicy": policy}
    uid = api.put("heterotrainingjobs", {**JOB, "metadata": {"name": name}, "spec": spec}, namespace)["metadata"]["uid"]
    owner = {"apiVersion": JOB["apiVersion"], "kind": JOB["kind"], "name": name, "controller": True, "uid": uid}
    for number in range(workers):
        labels = {LABEL_JOB: name, LABEL_GROUP: "w", LABEL_INDEX: str(number)}
        metadata = {"name": f"{name}-w-{number}", "labels": labels, "ownerReferences": [owner]}
        pod = merged(read("pod.yaml"), {"metadata": metadata, "status": None})
        api.put("pods", merged(pod, {"spec": {"nodeName": None}, "status": {"phase": "Pending"}}), namespace)


def many_jobs(api: ApiServer) -> None:
    """A thousand usual jobs of five workers."""
    for index in range(1000):
        job_with_pods(api, f"job-{index}", THEIRS, 5)


def suspended_jobs(api: ApiServer) -> None:
    """32 jobs of 60 pods each in 4 namespaces: all are suspended, and each deletion takes its time."""
    for index in range(32):
        job_with_pods(api, f"theirs-{index}", f"team-{'bcde'[index // 8]}", 60, suspend=True)


def filled_statuses(api: ApiServer) -> None:
    """200 jobs that are refused, with statuses as large as the schema admits conditions."""
    since = "2026-01-31T12:00:00Z"
    condition = {"status": "True", "reason": "x", "message": "m" * 32768, "lastTransitionTime": since}
    conditions = [{"type": f"T{number}", **condition} for number in range(16)]
    for index in range(200):
        job = training_job(f"theirs-{index}", [{}])
        api.put("heterotrainingjobs", {**job, "status": {"conditions": conditions}}, THEIRS)


SPACES = tuple(f"small-{number}" for number in range(16))


def small_jobs(api: ApiServer, *, suspend: bool) -> None:
    """256 jobs of 31 workers in 16 namespaces: all are to be created, or are there and suspended."""
    group = {"name": "w", "replicas": 31, "template": TEMPLATE}
    spec = {"workerGroups": [group], "training": {"globalBatchSize": 496, "steps": 10}}
    for index in range(256):
        name, namespace = f"theirs-{index}", SPACES[index % len(SPACES)]
        if suspend:
            job_with_pods(api, name, namespace, 31, suspend=True)
        else:
            api.put("heterotrainingjobs", {**JOB, "metadata": {"name": name}, "spec": spec}, namespace)


def edited_plans(api: ApiServer) -> None:
    """Eight suspended jobs whose stored memories somebody replaces again and again, by 2 MiB once they are unpacked."""
    for index in range(8):
        api.put("heterotrainingjobs", training_job(f"theirs-{index}", [], suspend=True), THEIRS)
    rows = ",".join(f"[{','.join(['1.5'] * 120)}]" for _ in range(4096))
    text = f'{{"schema": 1, "workers": [{rows}]}}'
    packed = base64.b64encode(gzip.compress(text.encode())).decode()

    def edit() -> None:
        for number in range(400):
            body = {"data": {"memory.json": ""}, "binaryData": {"memory.json.gz": packed}, "number": number}
            with suppress(KeyError):  # it is not there yet
                api.change("configmaps", f"theirs-{number % 8}-plan", body, THEIRS)
            time.sleep(0.05)

    threading.Thread(target=edit, daemon=True).start()


@functools.cache
def ports() -> tuple[int, int]:
    """Where the operator answers probes and readers of metrics."""
    return free_port(), free_port()


held: list[socket.socket] = []


def idle_connections(_: ApiServer) -> None:
    """1,500 connections to each of the operator's ports, which never end their request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for port in ports():
        for _ in range(1500):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            held[-1].send(b"GET /metrics HTTP/1.1\r\nX: ")


BIG = "x" * 1_000_000


@dataclass(frozen=True, slots=True)
class Attack:
    """One row: what is stored, and whether it is there when the operator starts."""

    name: str
    store: Callable[[ApiServer], None]
    at_start: bool = False


ATTACKS = (
    Attack("nothing", lambda api: None),
    Attack("8 jobs of 200,000 empty variables", jobs_with(8, [{}] * 200_000)),
    Attack("8 jobs of 30,000 valid variables", jobs_with(8, valid_variables(30_000))),
    Attack("8 jobs of 6,000 valid variables", jobs_with(8, valid_variables(6_000))),
    Attack("10 suspended jobs of 1 MB", jobs_with(10, valid_variables(32_000), suspend=True), at_start=True),
    Attack("150 labelled ConfigMaps of 1 MB", labelled("configmaps", 150, {"data": {"x": BIG}}), at_start=True),
    Attack("200 refused jobs with statuses of 0.5 MB", filled_statuses, at_start=True),
    Attack(
        "150 labelled pods of 1 MB",
        labelled("pods", 150, {"spec": {"containers": [{"name": "t", "args": [BIG]}]}}),
        at_start=True,
    ),
    Attack("32 suspended jobs of 60 pods in 4 namespaces", suspended_jobs),
    Attack("256 suspended jobs of 31 pods in 16 namespaces", functools.partial(small_jobs, suspend=True)),
    Attack("256 new jobs of 31 workers in 16 namespaces", functools.partial(small_jobs, suspend=False)),
    Attack("3,000 idle connections to its ports", idle_connections),
    Attack("8 memories of 2 MiB, edited all the time", edited_plans),
    Attack("1,000 jobs of 5 workers", many_jobs, at_start=True),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one attack: rounds per second before and during it, seconds without a round and without a renewal of the
    Lease, CPU seconds per second, and MiB of the process at most."""

    attack: str
    rounds_before: float
    rounds_during: float
    longest_wait: float
    longest_lease_wait: float
    cpu: float
    peak_mib: int


class Moments:
    """When something happened, by a clock that never leaps."""

    def __init__(self) -> None:
        self.all: list[float] = []

    def add(self) -> None:
        """Now."""
        self.all.append(time.monotonic())

    def per_second(self, since: float, until: float) -> float:
        """How often in that time."""
        return sum(since <= moment <= until for moment in self.all) / (until - since)

    def longest(self, since: float, until: float) -> float:
        """The longest time without any."""
        marks = [since, *(moment for moment in self.all if since <= moment <= until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(marks))


def usage(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """CPU seconds so far, and the most MiB that were resident."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return ticks / os.sysconf("SC_CLK_TCK"), int(status["VmHWM"].split()[0]) >> 10


@contextmanager
def operator(config: Path, log: Path, script: str = __file__) -> Iterator[subprocess.Popen[bytes]]:
    """The operator's process, as long as the block lasts."""
    health, metrics = map(str, ports())
    listens = {"HETEROTRAIN_HEALTH_PORT": health, "HETEROTRAIN_METRICS_PORT": metrics}
    environment = {**os.environ, **listens, "KUBECONFIG": str(config), "POD_NAMESPACE": "ops", "POD_NAME": "a"}
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, script, "--operator"], env=environment, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def wait_for(true: Callable[[], Any], process: subprocess.Popen[bytes], what: str) -> None:
    """Until it is true. Raises RuntimeError if the operator ends meanwhile, or it takes too long."""
    ends = time.monotonic() + START_SECONDS
    while not true():
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"{what}: not within {START_SECONDS:g} s, or the operator ended: {process.poll()}")
        time.sleep(0.05)


def counted(workers: Workers, moments: Moments) -> None:
    """Count how often the first worker is read: each round reads it once."""
    first = workers.workers[NAMES[0]]
    collect = first.collect

    def counting() -> Any:
        moments.add()
        return collect()

    first.collect = counting  # type: ignore[method-assign]


def train(api: ApiServer, workers: Workers, process: subprocess.Popen[bytes]) -> None:
    """The job's pods run and follow its plan."""
    wait_for(lambda: set(NAMES) <= set(api.names("pods")), process, "pods")
    workers.run_pods()
    wait_for(lambda: status_of(api).get("planVersion"), process, "plan")
    workers.follow(plan_of(api))
    wait_for(lambda: status_of(api).get("ready") == "3/3", process, "training")


def measured(attack: Attack, seconds: float, log: Path) -> Figures:
    """One attack on a fresh operator."""
    api, reads, renewals = ApiServer(), Moments(), Moments()
    for name in (OURS, THEIRS, "team-c", "team-d", "team-e", *SPACES):
        api.put("namespaces", {"metadata": {"name": name}}, "")
    api.put("nodes", {"metadata": {"name": "node-1"}, "status": READY}, "")

    def on_request(verb: str, plural: str, name: str) -> None:
        if plural == "leases" and verb != "get":
            renewals.add()
        if verb in ("create", "delete") and plural == "pods":
            time.sleep(SLOW_SECONDS)

    api.refuse = on_request
    with tempfile.TemporaryDirectory() as folder, serving(api) as url, serving_workers(api) as workers:
        config = kubeconfig(Path(folder) / "kubeconfig", url)
        api.put("heterotrainingjobs", merged(JOB, {}), OURS)
        if attack.at_start:
            attack.store(api)
        with operator(config, log) as process:
            train(api, workers, process)
            counted(workers, reads)
            began = time.monotonic()
            time.sleep(min(seconds, 5.0))
            attacked, (cpu, _) = time.monotonic(), usage(process)
            if not attack.at_start:
                attack.store(api)
            time.sleep(seconds)
            ended, (cpu_then, peak) = time.monotonic(), usage(process)
            alive = process.poll() is None
    return Figures(
        attack.name if alive else f"{attack.name} (the operator ended)",
        round(reads.per_second(began, attacked), 2),
        round(reads.per_second(attacked, ended), 2),
        round(reads.longest(attacked, ended), 2),
        round(renewals.longest(attacked, ended), 2),
        round((cpu_then - cpu) / (ended - attacked), 3),
        peak,
    )


HEADER = f"{'attack':<46} {'rounds/s':>9} {'during':>7} {'longest':>8} {'Lease':>6} {'CPU':>5} {'MiB':>5}"


def main() -> int:
    """Run the attacks one after another. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is watched")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="where the operator's log goes")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each")
    parser.add_argument("--operator", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.operator:
        rounds.PACE = dataclasses.replace(rounds.PACE, quiet_seconds=PAUSE_SECONDS)
        return run_operator()
    if not chosen.json:
        sys.stdout.write(f"{HEADER}\n")
    for attack in ATTACKS:
        if chosen.only not in attack.name:
            continue
        found = measured(attack, chosen.seconds, chosen.log)
        if chosen.json:
            line = json.dumps(dataclasses.asdict(found))
        else:
            line = (
                f"{found.attack:<46} {found.rounds_before:>9} {found.rounds_during:>7} {found.longest_wait:>8} "
                f"{found.longest_lease_wait:>6} {found.cpu:>5} {found.peak_mib:>5}"
            )
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
