"""Whole jobs for the tests: a manifest around the test's training script, with faults that a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heterotrain_operator.api import HeteroTrainingJob, parse_manifest

SCRIPT = Path(__file__).resolve().parents[1] / "trainer" / "scripts" / "train.py"

FAULTY = """
import os, resource, runpy, signal, sys, time
import torch
from heterotrain.training.optimizer import ElasticOptimizer

commit, calls, name = ElasticOptimizer.step, 0, os.environ["HETEROTRAIN_WORKER"]

def step(self, closure=None):
    global calls
    calls += 1
    if calls == {at} and name.startswith({worker!r}):
        {fault}
    return commit(self, closure)

ElasticOptimizer.step = step
sys.argv = [{script!r}, *sys.argv[1:]]
runpy.run_path({script!r}, run_name="__main__")
"""


def digits_job(
    out: Path,
    cpus: Sequence[str],
    *,
    fault: str = "",
    worker: str = "",
    at: int = 0,
    width: int = 16,
    memory: str = "4Gi",
    environment: Mapping[str, str] | None = None,
    **spec: Any,
) -> HeteroTrainingJob:
    """One group per entry of `cpus`; `fault` is a statement that each whose name begins with `worker` executes in its
    `at`-th step, those of a warm-up included."""
    out.mkdir(parents=True, exist_ok=True)
    program = FAULTY.format(at=at, worker=worker, fault=fault or "pass", script=str(SCRIPT))
    command = ["python", "-c", program, "--out", str(out), "--width", str(width)]

    def group(index: int, cpu: str) -> dict[str, Any]:
        limits = {"cpu": cpu, "memory": memory}
        env = [{"name": name, "value": value} for name, value in (environment or {}).items()]
        container = {"name": "t", "image": "none", "command": command, "env": env, "resources": {"limits": limits}}
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 20}}
        return {"name": f"g{index}", "replicas": 1, "template": template}

    return parse_manifest(
        {
            "apiVersion": "heterotrain.dev/v1alpha1",
            "kind": "HeteroTrainingJob",
            "metadata": {"name": "job"},
            "spec": {
                "workerGroups": [group(index, cpu) for index, cpu in enumerate(cpus)],
                "training": {"globalBatchSize": 96, "steps": 60, "seed": 7},
                "runPolicy": {"backoffLimit": 0},
                **spec,
            },
        }
    )
