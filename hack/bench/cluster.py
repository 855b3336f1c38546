"""Measure the operator on the cluster that KUBECONFIG names: how soon it balances, what that gains, what it costs.

    .venv/bin/python hack/bench/cluster.py record            one job from apply to its end
    .venv/bin/python hack/bench/cluster.py compare           the same job with Uniform, then with Optimal
    .venv/bin/python hack/bench/cluster.py cost --jobs 20    CPU, memory and API writes of the operator in steady state

It needs kubectl, the chart installed, and nothing else on the cluster that takes CPU time. Figures go to standard
output as JSON, what happens to standard error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

MANIFEST = Path("examples/digits-hetero.yaml")
NAMESPACE = "heterotrain-bench"
POLL_SECONDS = 0.5
FINAL = ("Succeeded", "Failed")
STEADY_AFTER_SECONDS = 60.0
WORKER_PORT, OPERATOR_PORT = 9400, 9090
OPERATOR = "app.kubernetes.io/name=heterotrain,app.kubernetes.io/component=operator"

Document = dict[str, Any]


def kubectl(*arguments: str, text: str | None = None) -> str:
    """What kubectl prints. Raises CalledProcessError, after its own words on standard error, if it fails."""
    run = subprocess.run(["kubectl", *arguments], input=text, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def say(text: str) -> None:
    """To whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def fresh_namespace() -> Iterator[None]:
    """A namespace for the measurement alone, which goes with it."""
    kubectl("create", "namespace", NAMESPACE)
    try:
        yield
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--wait=true")


def apply(job: Document) -> None:
    """Create or change a job."""
    kubectl("apply", "--namespace", NAMESPACE, "--filename", "-", text=yaml.safe_dump(job))


def read(name: str) -> Document:
    """A job as it is now."""
    document: Document = json.loads(kubectl("get", "htj", name, "--namespace", NAMESPACE, "--output", "json"))
    return document


def scraped(namespace: str, pod: str, port: int) -> dict[str, float]:
    """Series of a pod through the API server, summed over labels; empty while it does not answer."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics"
    run = subprocess.run(["kubectl", "get", "--raw", path], capture_output=True, text=True, check=False)
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(run.stdout if run.returncode == 0 else ""):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def operator_metrics() -> dict[str, float]:
    """Of the operator, summed over its replicas. Raises RuntimeError if there is none."""
    pods = json.loads(kubectl("get", "pods", "--all-namespaces", "--selector", OPERATOR, "--output", "json"))["items"]
    if not pods:
        raise RuntimeError("no operator is installed on this cluster")
    sums: dict[str, float] = {}
    for pod in pods:
        metadata = pod["metadata"]
        for name, value in scraped(metadata["namespace"], metadata["name"], OPERATOR_PORT).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def condition(job: Document, kind: str) -> bool:
    """Whether a condition of the job is true."""
    entries = job.get("status", {}).get("conditions", [])
    return any(entry["type"] == kind and entry["status"] == "True" for entry in entries)


def followed_seconds(before: dict[str, float], after: dict[str, float]) -> float | None:
    """Mean time from the write of a plan until all its workers follow it, as the operator saw it."""
    name = "heterotrain_operator_plan_follow_seconds"
    count = after.get(f"{name}_count", 0) - before.get(f"{name}_count", 0)
    total = after.get(f"{name}_sum", 0) - before.get(f"{name}_sum", 0)
    return round(total / count, 2) if count else None


def follow(name: str, on_look: Callable[[Document], None]) -> Document:
    """Look at a job until it ends."""
    while True:
        job = read(name)
        on_look(job)
        if job.get("status", {}).get("phase") in FINAL:
            return job
        time.sleep(POLL_SECONDS)


def record(manifest: Document) -> Document:
    """One job from apply to its end. Seconds count from apply."""
    name = manifest["metadata"]["name"]
    moments: dict[str, float] = {}
    plans: dict[int, Document] = {}
    rows: list[str] = []
    before = operator_metrics()
    began = time.monotonic()
    apply(manifest)

    def reached(what: str, yes: bool) -> None:
        if yes and what not in moments:
            moments[what] = round(time.monotonic() - began, 1)
            say(f"{what} after {moments[what]} s")

    def look(job: Document) -> None:
        status = job.get("status", {})
        workers = status.get("workers", [])
        version = status.get("planVersion")
        reached("running", status.get("phase") == "Running")
        reached("first metrics", any("ownMilliseconds" in worker for worker in workers))
        reached("balanced", condition(job, "Balanced"))
        if version is not None and version not in plans:
            plans[version] = {
                "seconds": round(time.monotonic() - began, 1),
                "batches": [worker.get("batchSize") for worker in workers],
            }
        row = kubectl("get", "htj", name, "--namespace", NAMESPACE, "--no-headers").split(maxsplit=1)[-1].strip()
        shown = row.rsplit(maxsplit=1)[0]  # the age differs every time
        if not rows or rows[-1].split(maxsplit=1)[-1] != shown:
            rows.append(f"{time.monotonic() - began:6.1f} {shown}")
            say(shown)

    job = follow(name, look)
    reached("ended", True)
    return {
        "moments_seconds": moments,
        "plans": plans,
        "imbalance_percent": job["status"].get("imbalancePercent"),
        "followed_seconds": followed_seconds(before, operator_metrics()),
        "rows": rows,
        "phase": job["status"]["phase"],
    }


def throughput(manifest: Document) -> Document:
    """Samples per second of one job, over its steps after the tenth and over those after its last adjustment."""
    name = manifest["metadata"]["name"]
    leader = f"{name}-{manifest['spec']['workerGroups'][0]['name']}-0"
    seen: list[tuple[float, float, float]] = []
    apply(manifest)

    def look(job: Document) -> None:
        figures = scraped(NAMESPACE, leader, WORKER_PORT)
        if figures.get("heterotrain_worker_committed_step", 0) >= 10:
            version = figures["heterotrain_worker_plan_version"]
            seen.append((time.monotonic(), figures["heterotrain_worker_committed_step"], version))

    job = follow(name, look)
    batch = manifest["spec"]["training"]["globalBatchSize"]
    last = [entry for entry in seen if entry[2] == seen[-1][2]]
    kubectl("delete", "htj", name, "--namespace", NAMESPACE, "--wait=true")
    return {
        "samples_per_second": _rate(seen, batch),
        "samples_per_second_under_last_plan": _rate(last, batch),
        "plans": int(seen[-1][2]),
        "imbalance_percent": job["status"].get("imbalancePercent"),
        "phase": job["status"]["phase"],
    }


def _rate(seen: list[tuple[float, float, float]], batch: int) -> float | None:
    if len(seen) < 2 or seen[-1][0] == seen[0][0]:
        return None
    return round(batch * (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]), 1)


def compare(manifest: Document) -> Document:
    """The same job by both policies, in one run."""
    results = {}
    for policy in ("Uniform", "Optimal"):
        job = json.loads(json.dumps(manifest))
        job["metadata"]["name"] = policy.lower()
        job["spec"]["batching"]["policy"] = policy
        results[policy] = throughput(job)
        say(f"{policy}: {results[policy]}")
    optimal, uniform = (results[policy]["samples_per_second"] for policy in ("Optimal", "Uniform"))
    return {**results, "ratio": round(optimal / uniform, 2) if optimal and uniform else None}


def cost(manifest: Document, jobs: int, seconds: float) -> Document:
    """What the operator takes for so many jobs of one small worker that all train on."""
    for number in range(jobs):
        job = json.loads(json.dumps(manifest))
        job["metadata"]["name"] = f"small-{number}"
        group = job["spec"]["workerGroups"][-1]
        container = group["template"]["spec"]["containers"][0]
        container["command"] = ["python", "examples/digits.py", "--width", "4"]
        # Together they leave the operator the machine; each trains on for hours.
        container["resources"]["limits"]["cpu"] = f"{max(1000 // jobs, 10)}m"
        container["resources"]["requests"] = {"cpu": "10m", "memory": "200Mi"}
        job["spec"]["workerGroups"] = [group]
        job["spec"]["training"].update(globalBatchSize=8, steps=10_000_000)
        apply(job)
    names = [f"small-{number}" for number in range(jobs)]
    while waiting := [name for name in names if read(name).get("status", {}).get("ready") != "1/1"]:
        say(f"{len(waiting)} of {jobs} jobs do not train yet")
        time.sleep(5)
    say(f"all train; measuring for {seconds:g} s after {STEADY_AFTER_SECONDS:g} s")
    time.sleep(STEADY_AFTER_SECONDS)
    before, began = operator_metrics(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = operator_metrics(), time.monotonic() - began
    spent = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    writes = after["heterotrain_operator_api_writes_total"] - before["heterotrain_operator_api_writes_total"]
    return {
        "jobs": jobs,
        "measured_seconds": round(elapsed),
        "cpu_seconds_per_job_and_hour": round(spent / elapsed * 3600 / jobs, 1),
        "cpu_cores": round(spent / elapsed, 4),
        "resident_mib": round(after["process_resident_memory_bytes"] / 2**20),
        "api_writes_per_job_and_minute": round(writes / elapsed * 60 / jobs, 2),
    }


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare", "cost"])
    parser.add_argument("--jobs", type=int, default=1, help="for cost: how many jobs (default: 1)")
    parser.add_argument("--seconds", type=float, default=120, help="for cost: how long to measure (default: 120)")
    parser.add_argument("--steps", type=int, help="instead of the manifest's")
    options = parser.parse_args()
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    if options.steps:
        manifest["spec"]["training"]["steps"] = options.steps
    with fresh_namespace():
        if options.what == "cost":
            result = cost(manifest, options.jobs, options.seconds)
        else:
            result = {"record": record, "compare": compare}[options.what](manifest)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
