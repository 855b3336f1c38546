"""Elastic jobs under random faults: whatever befalls their workers, they end with the model of the undisturbed run.

    .venv/bin/python hack/bench/chaos.py --seeds 50 --out hack/bench/results/elastic/chaos.json

Runs that many jobs of real processes by `heterotrain run`, and puts `--faults` faults on each by `heterotrain chaos`:
workers that are killed, stopped, cut off, slowed, starved, or asked to leave, and others that join. A seed draws the
faults and how close they are to one another, so that they also meet newcomers and changes of plans. Afterwards each job
must have ended well, with every sample of every step committed, the weights of one process alone (float64, 1e-10), and
with no process, file or descriptor left (`chaos_findings.py`). The exit code is 1 if a job has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import runner
import tables_measured
import yaml
from chaos_findings import SHARED_MEMORY, Expected, Outcome, faults_found, files_in, samples_in, weights_in

from heterotrain import contract
from heterotrain.contract import Plan, PlanError, StepRecord, parse_plan
from heterotrain_operator.experiments.control import ControlError, NotRunningError, ask

WORKER = Path(__file__).with_name("chaos_worker.py")
COMMAND = (sys.executable, "-m", "heterotrain_operator.cli.main")
GROUPS = ("a", "b")
LOOK_SECONDS = 0.05
STEPS_OF_CALM = 20
"""For so long all must have trained on: longer than it takes until one that was asked to leave is replaced."""

MORE_DESCRIPTORS = 4
"""The run may have so many more open after the faults than before them."""

FAULTS = "kill,kill,stop,stop,partition,leave,leave,slow,starve,join"
"""Drawn from; those that change the members oftener."""

HURRY_SHARE, LOADER_SHARE = 0.25, 0.35


@dataclass(frozen=True, slots=True)
class Setting:
    """What every job of a benchmark has in common: `workers`, `steps` of `batch` samples, seconds of silence that tell
    and of a step (`pace`), and how long to wait for a job to be calm, and for its end."""

    workers: int = 3
    faults: int = 4
    steps: int = 500
    batch: int = 48
    heartbeat_timeout: int = 2
    pace: float = 0.08
    checkpoint_steps: int = 30
    calm_seconds: float = 180.0
    end_seconds: float = 240.0

    @property
    def reserve(self) -> int:
        """Steps after which a job goes slowly until its faults are over."""
        return self.steps * 3 // 4


@dataclass(frozen=True, slots=True)
class Variant:
    """How a job of a seed trains, and how its faults come: one about `every` so many seconds, those that last for
    `lasts` seconds, which is shorter or longer than the silence that tells; if it is `hurried` the last one meets its
    end; `loaders` processes of each worker load samples."""

    every: float
    lasts: float
    hurried: bool
    loaders: int


def variant(seed: int, setting: Setting) -> Variant:
    """The variant of a seed."""
    draws = random.Random(f"variant {seed}")
    hurried, loaders = draws.random() < HURRY_SHARE, int(draws.random() < LOADER_SHARE)
    lasts = setting.heartbeat_timeout * draws.choice((0.5, 2.0))
    return Variant(draws.choice((0.5, 2.0, 6.0)), lasts, hurried, loaders)


def environment(folder: Path) -> dict[str, str]:
    """Of a command of ours that leaves its temporary files in a folder."""
    packages = os.pathsep.join(str(runner.REPOSITORY / part) for part in ("operator", "trainer-image"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HETEROTRAIN_")}
    own = {"PYTHONPATH": packages, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return inherited | own | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}  # which torch leaves there


def manifest(folder: Path, setting: Setting, loaders: int) -> dict[str, Any]:
    """The job's; two groups, the first with all workers but one."""
    command = ["python", str(WORKER), "--out", str(folder / "notes"), "--loaders", str(loaders)]
    command += ["--pace", str(setting.pace), "--reserve", str(setting.reserve)]
    limits = {"limits": {"cpu": "1", "memory": "4Gi"}}
    container = {"name": "trainer", "image": "none", "command": command, "resources": limits}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 20}}
    replicas = zip(GROUPS, (setting.workers - 1, 1), strict=True)
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": "chaos"},
        "spec": {
            "workerGroups": [{"name": name, "replicas": count, "template": template} for name, count in replicas],
            "training": {"globalBatchSize": setting.batch, "steps": setting.steps, "seed": 7},
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": setting.checkpoint_steps},
            "runPolicy": {"backoffLimit": 50},
            "membership": {"heartbeatTimeoutSeconds": setting.heartbeat_timeout},
            "stragglers": {"action": "Report"},  # members change by the faults alone
        },
    }


class Job:
    """A job of real processes in a folder of its own, as it is seen from outside."""

    def __init__(self, folder: Path, setting: Setting, loaders: int) -> None:
        self.folder, self.setting = folder, setting
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        # A short path, wherever the folder is: loaders bind sockets below it.
        self.temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.environment = environment(self.temporary)
        (folder / "job.yaml").write_text(yaml.safe_dump(manifest(folder, setting, loaders)))
        with (folder / "messages").open("wb") as messages, (folder / "summary").open("wb") as summary:
            self.command = subprocess.Popen(
                [*COMMAND, "run", "job.yaml", "--out", "out", "--json"],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=summary,
                stderr=messages,
            )
        self._reached: dict[str, int] = {}

    def plan(self) -> Plan | None:
        """The active one."""
        for path in self.folder.glob(f"out/arms/*/plan/{contract.PLAN_FILE}"):
            with contextlib.suppress(OSError, PlanError):
                return parse_plan(path.read_text())
        return None

    def is_calm(self) -> bool:
        """Whether as many as are wanted train by a plan that names them, no fault stands, and all have trained on since
        that was first so."""
        try:
            answer = ask(self.folder / "out", {"do": "list"})
        except (NotRunningError, ControlError):
            return False
        plan = self.plan()
        running = [each for each in answer["workers"] if each["running"]]
        members = plan.members if plan is not None else ()
        reached = {one.uid: step for one in members if (step := self._last_step(one.name, one.uid)) is not None}
        stands = bool(answer.get("added")) or any(each["faults"] for each in running)
        if stands or {len(running), len(reached)} != {self.setting.workers}:
            self._reached = {}
            return False
        if reached.keys() != self._reached.keys():
            self._reached = reached
        return all(step >= self._reached[uid] + STEPS_OF_CALM for uid, step in reached.items())

    def _last_step(self, name: str, uid: str) -> int | None:
        """The newest step that a process has recorded."""
        for path in self.folder.glob(f"out/arms/*/workers/{name}/{uid}.jsonl"):
            for line in reversed(path.read_text(errors="replace").splitlines()):
                with contextlib.suppress(ValueError):
                    return StepRecord.from_json(line).step
        return None

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition. Returns whether it came true in time, and before the job ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.ended() or time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def disturb(self, seed: int, how: Variant) -> list[dict[str, Any]]:
        """Put a seed's faults on its workers; what was done, as `heterotrain chaos --json` tells it."""
        options = ["--seed", seed, "--every", how.every, "--for", how.lasts, "--faults", FAULTS]
        words = [*COMMAND, "chaos", self.folder / "out", *options, "--count", self.setting.faults, "--json"]
        done = subprocess.run(
            list(map(str, words)), env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        )
        self._reached = {}
        return [json.loads(line) for line in done.stdout.splitlines()]

    def descriptors(self) -> int:
        """How many the run has open."""
        return len(list(Path(f"/proc/{self.command.pid}/fd").iterdir()))

    def ended(self) -> bool:
        """Whether the command is over."""
        return self.command.poll() is not None

    def close(self) -> None:
        """End it at once if it still runs; its guardian ends what it has left."""
        if not self.ended():
            self.command.kill()
        self.command.wait()


def undisturbed(folder: Path, setting: Setting) -> Expected:
    """What one process alone comes to."""
    folder.mkdir(parents=True)
    words = [sys.executable, WORKER, "--out", folder, "--steps", setting.steps, "--batch", setting.batch]
    subprocess.run(list(map(str, words)), check=True, env=environment(folder), timeout=setting.end_seconds)
    return Expected(weights_in(folder / "alone.pt"), samples_in([folder / "alone.samples"]))


def run(folder: Path, setting: Setting, seed: int, expected: Expected) -> Outcome:
    """Run a job under a seed's faults in a folder of its own, and look at its end."""
    outcome, began, how = Outcome(), time.monotonic(), variant(seed, setting)
    shared = files_in(SHARED_MEMORY)
    job = Job(folder, setting, how.loaders)
    try:
        if job.until(job.is_calm, setting.calm_seconds):
            opened = job.descriptors()
            outcome.done = job.disturb(seed, how)
            if not how.hurried and not job.until(job.is_calm, setting.calm_seconds):
                outcome.wrong.append("it did not calm down after the last fault")
            elif not how.hurried and job.descriptors() > opened + MORE_DESCRIPTORS:
                outcome.wrong.append(f"the run has {job.descriptors()} descriptors open, at first {opened}")
        else:
            outcome.wrong.append("it did not start")
        (job.notes / "go").touch()
        if not job.until(job.ended, setting.end_seconds) and not job.ended():
            outcome.wrong.append("it did not end")
    finally:
        job.close()
    outcome.seconds = time.monotonic() - began
    outcome.wrong += faults_found(
        job.folder, job.temporary, job.command.returncode, outcome, expected=expected, shared=shared
    )
    shutil.rmtree(job.temporary)
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description="Run elastic jobs under random faults.")
    parser.add_argument("--seeds", type=int, default=50, help="jobs (50)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=4, help="of each job (4)")
    parser.add_argument("--workers", type=int, default=3, help="of each job, at least 2 (3)")
    parser.add_argument("--keep", type=Path, help="keep the folders of jobs that fail below this one")
    options = runner.options_of(parser).parse_args(arguments)
    setting, machine = Setting(workers=options.workers, faults=options.faults), runner.machine()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="heterotrain-chaos-") as folder:
        expected = undisturbed(Path(folder) / "alone", setting)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            place = Path(folder) / str(seed)
            outcome = run(place, setting, seed, expected)
            print(f"seed {seed}: {'; '.join(outcome.wrong) or 'ended well'}", file=sys.stderr, flush=True)
            if outcome.wrong and options.keep is not None:
                with contextlib.suppress(shutil.Error):  # sockets that are left cannot be copied
                    shutil.copytree(place, options.keep / str(seed), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(place)
            planned = [{"verb": each["do"]} for each in outcome.done]
            runs.append({"seed": seed, **asdict(variant(seed, setting)), "planned": planned, **asdict(outcome)})
    failed = [each["seed"] for each in runs if each["wrong"]]
    head = {"benchmark": "chaos", "machine": machine, "setting": asdict(setting)}
    document = head | {"failed": failed, "runs": runs}
    runner.report(document, tables_measured.chaos([document]), options)
    return 1 if failed else 0


if __name__ == "__main__":
    runner.command(main)
