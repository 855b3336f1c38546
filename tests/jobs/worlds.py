"""Whole jobs for the tests: a manifest around the test's training script, with faults that a test asks for; runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from heterotrain import contract
from heterotrain.contract import StepRecord
from heterotrain_operator.api import HeteroTrainingJob, parse_manifest
from heterotrain_operator.clusters.local import leftovers
from unit.cli.commands import eventually, processes_that_mention, start

SCRIPT = Path(__file__).resolve().parents[1] / "trainer" / "scripts" / "train.py"

FAULTY = """
import os, resource, runpy, signal, sys, time
import torch
from heterotrain.training.optimizer import ElasticOptimizer

commit, calls, name = ElasticOptimizer.step, 0, os.environ["HETEROTRAIN_WORKER"]

def step(self, closure=None):
    global calls
    calls += 1
    {each}
    if calls == {at} and name.startswith({worker!r}):
        {fault}
    return commit(self, closure)

ElasticOptimizer.step = step
sys.argv = [{script!r}, *sys.argv[1:]]
runpy.run_path({script!r}, run_name="__main__")
"""

LASTING = {"globalBatchSize": 96, "steps": 300, "seed": 7}
"""Training that takes its time from step 60 on until there is a file `go`, where the script is to last."""


def digits_job(
    out: Path,
    cpus: Sequence[str],
    *,
    each: str = "pass",
    fault: str = "pass",
    worker: str = "",
    at: int = 0,
    width: int = 16,
    lasting: bool = False,
    memory: str = "4Gi",
    environment: Mapping[str, str] | None = None,
    **spec: Any,
) -> HeteroTrainingJob:
    """One group per entry of `cpus`. `each` is a statement that every worker executes in every step, `fault` one that
    each whose name begins with `worker` does in its `at`-th step, those of a warm-up included."""
    out.mkdir(parents=True, exist_ok=True)
    program = FAULTY.format(each=each, at=at, worker=worker, fault=fault, script=str(SCRIPT))
    command = ["python", "-c", program, "--out", str(out), "--width", str(width), *(["--lasting"] if lasting else [])]

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
                "stragglers": {"action": "Report"},
                **spec,
            },
        }
    )


class Run:
    """A job that the command line runs in a folder, as it is seen from outside."""

    def __init__(self, folder: Path, command: subprocess.Popen[str]) -> None:
        self.folder, self.command = folder, command

    def ends(self) -> tuple[int, str, str]:
        """Its exit code, what it printed and what it said, once it has ended and left no process and no socket."""
        out, said = self.command.communicate(timeout=240)
        assert not processes_that_mention(str(self.folder)), "a stray process"
        assert not [path for path in (self.folder / "out").iterdir() if path.is_socket()]
        return self.command.returncode, out, said

    def hurry(self) -> None:
        """Let a script that is to last come to its end."""
        (self.folder / "results" / "go").touch()

    def lives(self, worker: str) -> list[list[StepRecord]]:
        """What each process whose name begins so has recorded, in whole lines."""
        paths = (self.folder / "out").glob(f"arms/*/workers/{worker}*/*.jsonl")
        texts = [path.read_text() for path in sorted(paths, key=lambda path: path.stat().st_mtime)]
        return [[StepRecord.from_json(line) for line in text[: text.rfind("\n") + 1].splitlines()] for text in texts]

    def trains(self, by: int, worker: str = "job-") -> None:
        """Wait for so many more steps of a worker, which may not have begun yet."""

        def step() -> int:
            return max((life[-1].step + 1 for life in self.lives(worker) if life), default=0)

        reached = step() + by
        eventually(lambda: self.command.poll() is not None or step() >= reached)
        assert self.command.poll() is None, self.command.communicate()[1]

    def worker(self, name: str) -> dict[int, dict[str, str]]:
        """A worker's processes, with their environments."""
        mark = f"{contract.ENV_WORKER}={name}"
        environments = {pid: leftovers.environment(pid) for pid in processes_that_mention(str(self.folder))}
        return {
            pid: dict(entry.partition("=")[::2] for entry in entries)
            for pid, entries in environments.items()
            if mark in entries
        }

    def checkpoints(self) -> list[int]:
        """The steps of which there are checkpoints."""
        return sorted(int(path.stem.removeprefix("step-")) for path in self.folder.glob("checkpoints/job/*.pt"))


@contextmanager
def running(folder: Path, cpus: Sequence[str], *, least: str = "", **job: Any) -> Iterator[Run]:
    """Run a job that keeps checkpoints by the command line; the group `least` is to have a worker at all times."""
    checkpoint = {"path": str(folder / "checkpoints"), "everySteps": 20, "keep": 9}
    found = digits_job(folder / "results", cpus, **{"checkpoint": checkpoint, **job})
    document = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for group in document["spec"]["workerGroups"]:
        if group["name"] == least:
            group["minReplicas"] = 1
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    with start(folder, "run", "job.yaml", "--out", "out", "--json") as command:
        yield Run(folder, command)
        command.kill()


def summary(out: str) -> dict[str, Any]:
    """The only trial of a run, as the run printed it."""
    (trial,) = json.loads(out)["arms"]
    assert isinstance(trial, dict)
    return trial
