"""One elastic job of `heterotrain run` as the benchmark of faults sees it from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from chaos_schedule import Variant

from heterotrain import contract
from heterotrain.contract import Plan, PlanError, StepRecord, parse_plan
from heterotrain_operator.experiments.control import ControlError, NotRunningError, ask

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "hack" / "bench" / "chaos_worker.py"
JOB = "chaos"
GROUPS = ("a", "b")
LOOK_SECONDS = 0.05
STEPS_OF_CALM = 10
COMPILED = "compiled"


@dataclass(frozen=True, slots=True)
class Setting:
    """What every job of a benchmark has in common: `workers`, `steps` of `batch` samples, seconds of silence that tell
    and of a step (`pace`), and how long to wait for a moment, for a job to be calm again, and for its end."""

    workers: int = 3
    steps: int = 500
    batch: int = 48
    heartbeat_timeout: int = 2
    pace: float = 0.08
    checkpoint_steps: int = 30
    moment_seconds: float = 12.0
    calm_seconds: float = 120.0
    end_seconds: float = 240.0

    @property
    def reserve(self) -> int:
        """Steps after which a job goes slowly until its faults are over."""
        return self.steps * 3 // 4


def environment(folder: Path) -> dict[str, str]:
    """Of a command of ours that leaves its temporary files in a folder."""
    packages = os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer-image"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HETEROTRAIN_")}
    own = {"PYTHONPATH": packages, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return inherited | own | {"TORCHINDUCTOR_CACHE_DIR": str(folder / COMPILED)}  # which torch leaves there


def manifest(folder: Path, setting: Setting, variant: Variant) -> dict[str, Any]:
    """The job's; two groups, the first with all workers but one."""
    notes = folder / "notes"
    command = ["python", str(WORKER), "--out", str(notes), "--loaders", str(variant.loaders)]

    def group(name: str, replicas: int) -> dict[str, Any]:
        container = {
            "name": "trainer",
            "image": "none",
            "command": [*command, "--pace", str(setting.pace), "--reserve", str(setting.reserve)],
            "resources": {"limits": {"cpu": "1", "memory": "4Gi"}},
        }
        template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 20}}
        return {"name": name, "replicas": replicas, "template": template}

    replicas = zip(GROUPS, (setting.workers - 1, 1), strict=True)
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "workerGroups": [group(name, count) for name, count in replicas],
            "training": {"globalBatchSize": setting.batch, "steps": setting.steps, "seed": 7},
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": setting.checkpoint_steps},
            "runPolicy": {"backoffLimit": 50},
            "membership": {"heartbeatTimeoutSeconds": setting.heartbeat_timeout},
        },
    }


class Job:
    """A job of real processes in a folder of its own, as it is seen from outside."""

    def __init__(self, folder: Path, setting: Setting, variant: Variant) -> None:
        self.folder, self.setting = folder, setting
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        # A short path, wherever the folder is: loaders bind sockets below it.
        self.temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        (folder / "job.yaml").write_text(yaml.safe_dump(manifest(folder, setting, variant)))
        with (folder / "messages").open("wb") as messages, (folder / "summary").open("wb") as summary:
            self.command = subprocess.Popen(
                [sys.executable, "-m", "heterotrain_operator.cli.main", "run", "job.yaml", "--out", "out", "--json"],
                cwd=folder,
                env=environment(self.temporary),
                stdin=subprocess.DEVNULL,
                stdout=summary,
                stderr=messages,
            )
        self._reached: dict[str, int] = {}
        self._leavers: set[str] = set()

    def plan(self) -> Plan | None:
        """The active one."""
        for path in self.folder.glob(f"out/arms/*/plan/{contract.PLAN_FILE}"):
            with contextlib.suppress(OSError, PlanError):
                return parse_plan(path.read_text())
        return None

    def last_record(self, name: str, uid: str) -> StepRecord | None:
        """The newest step that a process has recorded."""
        for path in self.folder.glob(f"out/arms/*/workers/{name}/{uid}.jsonl"):
            for line in reversed(_tail(path)):
                with contextlib.suppress(ValueError):
                    return StepRecord.from_json(line)
        return None

    def ask(self) -> dict[str, Any]:
        """What the run says of its workers and groups; nothing once it is over."""
        try:
            return ask(self.folder / "out", {"do": "list"})
        except (NotRunningError, ControlError):
            return {}

    def listed(self) -> list[dict[str, Any]]:
        """The workers that run, with their faults."""
        return [each for each in self.ask().get("workers", []) if each["running"]]

    def newcomers(self) -> list[str]:
        """Workers that run and are in no plan yet, the youngest last."""
        plan = self.plan()
        members = {member.name for member in plan.members} if plan is not None else set()
        return [each["worker"] for each in self.listed() if each["worker"] not in members]

    def is_calm(self) -> bool:
        """Whether as many as are wanted train by a plan that names them, none of them was asked to leave, no fault
        stands, and all have trained on since that was first so."""
        plan = self.plan()
        answer = self.ask()
        listed = [each for each in answer.get("workers", []) if each["running"]]
        stands = bool(answer.get("added")) or any(each["faults"] for each in listed)
        members = (
            {} if plan is None else {member.uid: self.last_record(member.name, member.uid) for member in plan.members}
        )
        steps = {uid: record.step for uid, record in members.items() if record is not None}
        leave = not self._leavers.isdisjoint(members)  # they train on until others have taken their places
        if len(steps) != self.setting.workers or len(listed) != self.setting.workers or stands or leave:
            self._reached = {}
            return False
        if steps.keys() != self._reached.keys():
            self._reached = steps
        return all(step >= self._reached[uid] + STEPS_OF_CALM for uid, step in steps.items())

    def disturbed(self) -> None:
        """A fault has come, so that it is to be calm again only after steps to come."""
        self._reached = {}

    def asked_to_leave(self, worker: str) -> None:
        """So was the process that this worker is by now."""
        plan = self.plan()
        self._leavers |= {member.uid for member in plan.members if member.name == worker} if plan is not None else set()

    def descriptors(self) -> int:
        """How many the run has open."""
        return len(list(Path(f"/proc/{self.command.pid}/fd").iterdir()))

    def ended(self) -> bool:
        """Whether the command is over."""
        return self.command.poll() is not None

    def kill(self) -> None:
        """End it at once if it still runs; its guardian ends what it has left."""
        if not self.ended():
            self.command.kill()
        self.command.wait()


def _tail(path: Path, most: int = 2000) -> list[str]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read().decode(errors="replace").splitlines()
    return []


def until(job: Job, condition: Callable[[], Any], seconds: float) -> bool:
    """Wait for a condition. Returns whether it came true in time, and before the job ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if job.ended() or time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True
