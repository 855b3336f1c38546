"""Jobs for the tests: small variants of examples/digits-hetero.yaml, and workers with a fault that a test asks for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from heterotrain import contract

Document = dict[str, Any]

IMAGE = "heterotrain-trainer:0.1.0"
CLAIM = "checkpoints"
MOUNTED = "/checkpoints"

RESTRICTED_POD: Document = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
RESTRICTED_CONTAINER: Document = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What the *restricted* Pod Security Standard wants to be said."""

WIDTH, BATCH = 40, 192
"""A model and a batch that are large enough for a step's time to lie in its samples, not in what every step costs, and
for a step to span many periods of a CPU quota."""

ENDLESS = 1_000_000
"""Steps of a job that a test ends itself."""

KEEP_ALL = {"keep": 100}
"""A checkpoint section: as many as a test writes."""

SERIES = {"name": contract.ENV_SERIES, "value": f"{MOUNTED}/$({contract.ENV_WORKER}).jsonl"}
"""Makes workers write a line for every step, so that a test can say afterwards what happened when."""

_FAULTY = """
import os, runpy, sys, time
from heterotrain.training.optimizer import ElasticOptimizer

commit, calls = ElasticOptimizer.step, 0

def step(self, closure=None):
    global calls
    calls += 1
    if calls == {at} and os.environ["HETEROTRAIN_GROUP"] == {group!r}:
        {fault}
    return commit(self, closure)

ElasticOptimizer.step = step
sys.argv = ["examples/digits.py", "--width", "{width}"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


_EVALUATING = """
import runpy, sys
from heterotrain.session import Session
from heterotrain.workloads.digits import digits

prepare = Session.prepare

def measure(model, batch):
    return {{"accuracy": (model(batch[0]).argmax(1) == batch[1]).sum()}}

def prepare_and_evaluate(session, *arguments, **options):
    prepared = prepare(session, *arguments, **options)
    session.evaluate(digits(train=False), measure, every_steps=20)
    return prepared

Session.prepare = prepare_and_evaluate
sys.argv = ["examples/digits.py", "--width", "{width}"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def digits(width: int = WIDTH) -> list[str]:
    """The command of a worker that trains on digits."""
    return ["python", "examples/digits.py", "--width", str(width)]


def digits_evaluated(width: int = WIDTH) -> list[str]:
    """The same, and workers measure the model's accuracy now and then."""
    return ["python", "-c", _EVALUATING.format(width=width)]


def digits_with_fault(group: str, at: int, fault: str, width: int = WIDTH) -> list[str]:
    """The same, but workers of a group execute a statement instead of committing their `at`-th step."""
    return ["python", "-c", _FAULTY.format(group=group, at=at, fault=fault, width=width)]


def group(
    name: str,
    cpu: str,
    *,
    command: Sequence[str] = (),
    memory: str = "1Gi",
    replicas: int = 1,
    pod: Document | None = None,
    **fields: Any,
) -> Document:
    """One worker group; `pod` adds to its pods' spec, `fields` to the group."""
    container = {
        "name": "trainer",
        "image": IMAGE,
        "command": list(command) or digits(),
        "env": [SERIES],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": cpu, "memory": memory}},
        "securityContext": RESTRICTED_CONTAINER,
    }
    spec = {"securityContext": RESTRICTED_POD, "terminationGracePeriodSeconds": 15, "containers": [container]}
    return {
        "name": name,
        "replicas": replicas,
        "batchSize": {"min": 1, "max": 300},
        "template": {"spec": {**spec, **(pod or {})}},
        **fields,
    }


def job(name: str, *groups: Document, batch: int = BATCH, steps: int = ENDLESS, **spec: Any) -> Document:
    """A job with its checkpoints on the test's volume; `spec` adds to its sections, or replaces them."""
    defaults: Document = {
        "workerGroups": list(groups),
        "training": {"globalBatchSize": batch, "steps": steps, "seed": 7},
        # From equal batches there is something to balance. On a busy machine workers do become slow by fault.
        "batching": {"policy": "Optimal", "initial": "Uniform", "applyAt": "step"},
        "stragglers": {"action": "Report"},
        "checkpoint": {"path": MOUNTED, "persistentVolumeClaim": CLAIM, "everySteps": 20},
        "runPolicy": {"startupDeadlineSeconds": 240},
    }
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": name},
        "spec": merged(defaults, spec),
    }


def two_workers(name: str = "digits", **spec: Any) -> Document:
    """The job of most tests: two workers, one with twice the CPU of the other."""
    return job(name, group("large", "600m"), group("small", "300m"), **spec)


def staying(manifest: Document) -> Document:
    """The same job of workers that need one another: whatever ends one of them restarts all."""
    for each in manifest["spec"]["workerGroups"]:
        for container in each["template"]["spec"]["containers"]:
            container.setdefault("env", []).append({"name": contract.ENV_ELASTIC, "value": "0"})
    return manifest


def idle(name: str, **spec: Any) -> Document:
    """A job of one worker that never joins, for whatever happens before training."""
    return job(name, sleeper("idle"), **spec)


def sleeper(name: str) -> Document:
    """A group of one worker that never joins, and goes as soon as it is told to."""
    return group(name, "100m", command=["sleep", "600"], pod={"terminationGracePeriodSeconds": 1})


def merged(base: Document, over: Document) -> Document:
    """`base` with the values of `over`, section by section."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result
