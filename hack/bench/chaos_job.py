"""One elastic job of `heterotrain run` under a schedule of faults, and what is wrong with its end, if anything."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import yaml
from chaos_schedule import PlannedFault, Variant

from heterotrain import contract
from heterotrain.contract import Plan, PlanError, StepRecord, parse_plan
from heterotrain_operator.experiments.control import ControlError, NotRunningError, ask

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "hack" / "bench" / "chaos_worker.py"
JOB = "chaos"
GROUPS = ("a", "b")
LOOK_SECONDS = 0.05
STEPS_OF_CALM = 10
SAME_WEIGHTS = 1e-10
COMPILED = "compiled"
SHARED_MEMORY = Path("/dev/shm")
MORE_DESCRIPTORS, MORE_THREADS = 4, 2
"""A process may have so many more open at the end than when the job had begun."""
STEPS_OF_END = 100
"""While members change a process has the groups of two generations, so the least that it has open in so many last steps
is what it would keep."""


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


@dataclass(slots=True)
class Outcome:
    """How a job ended: what is wrong with it in words, the faults as they were done, its longest difference of weights,
    and what its run has counted."""

    wrong: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    difference: float | None = None
    steps: int = 0
    lives: int = 0
    generation: int = 0
    restarts: int = 0
    seconds: float = 0.0
    started_seconds: float = 0.0
    faults_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The undisturbed run: its weights by name, and the samples of each step."""

    weights: Mapping[str, Any]
    samples: Mapping[int, frozenset[int]]


def environment(folder: Path) -> dict[str, str]:
    """Of a command of ours that leaves its temporary files in a folder."""
    packages = os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer-image"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HETEROTRAIN_")}
    own = {"PYTHONPATH": packages, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return inherited | own | {"TORCHINDUCTOR_CACHE_DIR": str(folder / COMPILED)}  # which torch leaves there


def undisturbed(folder: Path, setting: Setting) -> Expected:
    """What one process alone comes to."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(WORKER), "--out", str(folder), "--steps", str(setting.steps)]
    subprocess.run(
        [*command, "--batch", str(setting.batch)], check=True, env=environment(folder), timeout=setting.end_seconds
    )
    return Expected(weights_in(folder / "alone.pt"), samples_in([folder / "alone.samples"]))


def weights_in(path: Path) -> dict[str, Any]:
    """The parameters that a worker has saved."""
    import torch  # noqa: PLC0415 - whoever only draws schedules needs no torch

    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def samples_in(paths: Collection[Path]) -> dict[int, frozenset[int]]:
    """Step -> the samples that were trained on in it, by whomever."""
    found: dict[int, set[int]] = {}
    for path in paths:
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # its writer was killed
            step, indices = line.split()
            found.setdefault(int(step), set()).update(map(int, indices.split(",")))
    return {step: frozenset(samples) for step, samples in found.items()}


def steps_in(path: Path) -> list[int]:
    """The steps that a process has recorded as committed; without a last line that it was killed in."""
    lines = path.read_text().splitlines(keepends=True)
    return [StepRecord.from_json(line).step for line in lines if line.endswith("\n")]


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The greatest between two models."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


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
        with (folder / "said").open("wb") as said, (folder / "summary").open("wb") as summary:
            self.command = subprocess.Popen(
                [sys.executable, "-m", "heterotrain_operator.cli.main", "run", "job.yaml", "--out", "out", "--json"],
                cwd=folder,
                env=environment(self.temporary),
                stdin=subprocess.DEVNULL,
                stdout=summary,
                stderr=said,
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
        said = self.ask()
        listed = [each for each in said.get("workers", []) if each["running"]]
        stands = bool(said.get("added")) or any(each["faults"] for each in listed)
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


def _wait_for(job: Job, planned: PlannedFault, before: frozenset[str]) -> bool:
    """Wait for a fault's moment, as long as it may yet come. `before`: the plan's members at the fault before it."""
    setting = job.setting
    if planned.moment == "calm":
        if not until(job, job.is_calm, setting.calm_seconds):
            return False
    elif planned.moment == "newcomer":
        until(job, job.newcomers, setting.moment_seconds)
    elif planned.moment == "plan":
        until(job, lambda: _members(job) not in (before, frozenset()), setting.moment_seconds)
    time.sleep(planned.after)
    return not job.ended()


def _members(job: Job) -> frozenset[str]:
    plan = job.plan()
    return frozenset() if plan is None else frozenset(member.uid for member in plan.members)


def _victim(job: Job, planned: PlannedFault) -> str | None:
    """The worker that a fault is for."""
    plan = job.plan()
    running = {each["worker"] for each in job.listed()}
    members = [member.name for member in plan.members if member.name in running] if plan is not None else []
    newcomers = job.newcomers() if planned.role == "newcomer" else []
    if newcomers:
        return newcomers[-1]
    if not members:
        return None
    if planned.role == "leader":
        return members[0]
    if planned.role == "newcomer" or len(members) == 1:
        return members[-1]
    followers = members[1:]
    return followers[int(planned.pick * len(followers))]


def _done(job: Job, planned: PlannedFault) -> str:
    """Put a fault on a worker; how that went, in words."""
    worker = _victim(job, planned)
    if worker is None:
        return f"{planned}: nobody is there"
    question: dict[str, Any] = {"do": planned.verb, "worker": worker, "neighbours": 1}
    if planned.lasts is not None:
        question["seconds"] = planned.lasts
    try:
        answer = ask(job.folder / "out", question)
    except (NotRunningError, ControlError) as error:
        return f"{planned}: not done: {error}"
    if planned.verb == "leave" and "error" not in answer:
        job.asked_to_leave(worker)
    said = answer.get("error") or f"after step {answer['step']}"
    return f"{time.time():.1f} {planned} ({worker}: {said})"


def _disturb(job: Job, faults: Sequence[PlannedFault], outcome: Outcome, *, hurried: bool) -> None:
    """All faults, one after the other, until the job is calm again, or only to the last one if it is `hurried`."""
    if not until(job, job.is_calm, job.setting.calm_seconds):
        outcome.wrong.append("it did not start")
        return
    outcome.started_seconds = time.monotonic()
    opened = job.descriptors()
    before = _members(job)
    for planned in faults:
        if not _wait_for(job, planned, before):
            outcome.wrong.append(f"it ended before {planned}" if job.ended() else f"it did not calm before {planned}")
            return
        before = _members(job)
        outcome.done.append(_done(job, planned))
        job.disturbed()
    if hurried:
        return
    if not until(job, job.is_calm, job.setting.calm_seconds):
        outcome.wrong.append("it did not calm down after the last fault")
    elif job.descriptors() > opened + MORE_DESCRIPTORS:
        outcome.wrong.append(f"the run has {job.descriptors()} descriptors open, at first {opened}")
    outcome.faults_seconds = time.monotonic() - outcome.started_seconds


def run(
    folder: Path, setting: Setting, faults: Sequence[PlannedFault], expected: Expected, variant: Variant
) -> Outcome:
    """Run a job under faults in a folder of its own, and look at its end."""
    outcome, began = Outcome(), time.monotonic()
    shared = _files_in(SHARED_MEMORY)
    job = Job(folder, setting, variant)
    try:
        _disturb(job, faults, outcome, hurried=variant.hurried)
        outcome.started_seconds = max(outcome.started_seconds - began, 0.0)
        (job.notes / "go").touch()
        if not until(job, job.ended, setting.end_seconds) and not job.ended():
            outcome.wrong.append("it did not end")
    finally:
        job.kill()
    outcome.seconds = time.monotonic() - began
    outcome.wrong += [*_faults_of_end(job, outcome), *_faults_of_model(job, outcome, expected)]
    outcome.wrong += [*_left_behind(job, shared), *_grown(job)]
    shutil.rmtree(job.temporary)
    return outcome


def _faults_of_end(job: Job, outcome: Outcome) -> Iterator[str]:
    if job.command.returncode != 0:
        yield f"exit code {job.command.returncode}"
    with contextlib.suppress(ValueError, LookupError):
        (trial,) = json.loads((job.folder / "summary").read_text())["arms"]
        outcome.restarts = int(trial["restarts"])
    outcome.lives = len(list(job.folder.glob("out/arms/*/workers/*/*.jsonl")))
    plan = job.plan()
    outcome.generation = plan.generation if plan is not None else 0


def _faults_of_model(job: Job, outcome: Outcome, expected: Expected) -> Iterator[str]:
    """The samples of all steps that were committed, and the weights of all that reached the end."""
    saved = sorted(job.notes.glob("*.pt"))
    if not saved:
        yield "nobody saved a model"
    else:
        outcome.difference = max(difference(weights_in(path), expected.weights) for path in saved)
        if not outcome.difference <= SAME_WEIGHTS:
            yield f"weights differ by {outcome.difference:.1e}"
    lives = {path.stem: steps_in(path) for path in job.folder.glob("out/arms/*/workers/*/*.jsonl")}
    steps = set(chain.from_iterable(lives.values()))
    outcome.steps = len(steps)
    for uid, own in lives.items():
        if any(later <= sooner for sooner, later in pairwise(own)):
            yield f"{uid} has committed a step twice, or gone back"
    if lacking := expected.samples.keys() - steps:
        yield f"{len(lacking)} steps that nobody committed, the first is {min(lacking)}"
    seen = samples_in(list(job.notes.glob("*.samples")))
    if wrong := [step for step, samples in expected.samples.items() if seen.get(step) != samples]:
        yield f"{len(wrong)} steps with other samples, the first is {min(wrong)}"


def _left_behind(job: Job, shared: set[str]) -> Iterator[str]:
    mark = str(job.folder)
    deadline = time.monotonic() + 10
    while (pids := processes_that_mention(mark)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    if pids:
        yield f"processes are left: {pids}"
    if files := _files_in(SHARED_MEMORY) - shared:
        yield f"left in {SHARED_MEMORY}: {', '.join(sorted(files))}"
    if files := _files_in(job.temporary) - {COMPILED}:
        yield f"temporary files are left: {', '.join(sorted(files))}"
    if parts := [path.name for path in job.folder.rglob("*.partial*")]:
        yield f"partial files are left: {', '.join(sorted(parts))}"
    if sockets := [path.name for path in job.folder.rglob("*") if path.is_socket()]:
        yield f"sockets are left: {', '.join(sorted(sockets))}"


def _grown(job: Job) -> Iterator[str]:
    """Workers that have more open at the end than they had, or others, when they began."""
    ends, starts = [], []
    for path in job.notes.glob("*.open"):
        lines = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        if len(lines) > 2 and (job.notes / path.with_suffix(".pt").name).exists():
            starts.append(lines[1])
            ends.append((path.stem, open_at_end(lines)))
    if not starts:
        return
    files, threads = (max(start[place] for start in starts) for place in (1, 2))
    for uid, (at_end, threads_at_end) in ends:
        if at_end > files + MORE_DESCRIPTORS:
            yield f"{uid} has {at_end} descriptors open, at first {files}"
        if threads_at_end > threads + MORE_THREADS:
            yield f"{uid} has {threads_at_end} threads, at first {threads}"


def open_at_end(notes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Descriptors and threads that a process keeps, of its notes: step, descriptors, threads."""
    last = [note for note in notes if note[0] >= notes[-1][0] - STEPS_OF_END]
    return min(note[1] for note in last), min(note[2] for note in last)


def _files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def processes_that_mention(text: str) -> list[int]:
    """Live processes with this text in their command line or environment, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            known = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if text.encode() in known and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found
