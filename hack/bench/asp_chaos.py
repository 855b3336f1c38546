"""Asynchronous jobs under random faults: each sample is applied once an epoch, and a replay gives the model.

    .venv/bin/python hack/bench/asp_chaos.py --seeds 15 --out hack/bench/results/asp/chaos.json

Runs that many jobs of real processes by `heterotrain run`: a parameter server and three workers, which are slow until
their faults are over. A seed draws the job's options and its faults: workers that are killed, asked to leave, or
stopped for longer than the heartbeat, and servers that are killed or asked to leave. Afterwards each job must have
ended well, and the updates that its servers have recorded (those of a lost server up to the checkpoint that the next
one resumed from) must have applied each sample of each epoch once, and give, replayed by a plain loop, the final
weights of the server and of all workers (float64, 1e-10). The exit code is 1 if a job has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import runner
import tables_asp
import torch
import yaml
from asp_chaos_worker import RATE, SAMPLES, dataset, model_and_optimizer
from chaos import COMMAND, environment
from chaos_findings import SAME_WEIGHTS, difference, processes_that_mention, weights_in

from heterotrain.contract import UpdateRecord
from heterotrain.data.sampler import epoch_order

WORKER = Path(__file__).with_name("asp_chaos_worker.py")
WORKERS, BATCH, EPOCHS, SEED = 3, 24, 8, 7
HEARTBEAT_SECONDS = 2
PACE_SECONDS = 0.1
EVERY_STEPS = 10
PATIENCE_SECONDS = 150.0
KINDS = ("kill", "kill", "leave", "stop", "server kill", "server leave")
DECAY = 0.999


@dataclass(frozen=True, slots=True)
class Variant:
    """What a seed draws: the job's options, and its faults as (seconds after the one before, kind, which worker)."""

    asynchronous: dict[str, Any]
    carry: bool
    scaling: str
    loaders: int
    faults: list[tuple[float, str, int]]


@dataclass(slots=True)
class Outcome:
    """How a job ended: what is wrong with it in words, faults that met a process, updates that count and those that a
    lost server took with it, servers, processes, longest difference of weights, and seconds."""

    wrong: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    updates: int = 0
    lost: int = 0
    servers: int = 0
    lives: int = 0
    difference: float | None = None
    seconds: float = 0.0


def variant(seed: int) -> Variant:
    """The variant of a seed."""
    draws = random.Random(f"asp {seed}")
    bounds: tuple[dict[str, Any], ...] = (
        {}, {"maxStaleness": 0}, {"maxStaleness": 3}, {"maxStaleness": 4, "late": "Discard"}
    )  # fmt: skip
    faults = [
        (draws.choice((0.05, 0.5, 2.0)), draws.choice(KINDS), draws.randrange(WORKERS))
        for _ in range(draws.choice((3, 4)))
    ]
    return Variant(
        bounds[seed % len(bounds)],
        draws.random() < 0.3,
        draws.choice(("Linear", "None")),
        int(draws.random() < 0.25),
        faults,
    )


def manifest(folder: Path, how: Variant) -> dict[str, Any]:
    """The job's."""
    command = ["python", str(WORKER), "--out", str(folder), "--pace", str(PACE_SECONDS), "--loaders", str(how.loaders)]
    container = {"name": "trainer", "image": "none", "command": command}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 10}}
    training = {"mode": "ASP", "globalBatchSize": BATCH, "epochs": EPOCHS, "seed": SEED}
    if how.asynchronous:
        training["asynchronous"] = how.asynchronous
    if how.scaling != "None":
        training["learningRateScaling"] = how.scaling
    if how.carry:
        training["lastStep"] = "Carry"
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": "asp"},
        "spec": {
            "workerGroups": [{"name": "a", "replicas": WORKERS, "template": template}],
            "parameterServer": {},
            "training": training,
            "checkpoint": {"path": str(folder / "checkpoints"), "everySteps": EVERY_STEPS},
            "runPolicy": {"backoffLimit": 50},
            "membership": {"heartbeatTimeoutSeconds": HEARTBEAT_SECONDS},
            "stragglers": {"action": "Report"},
        },
    }


class Job:
    """A job of real processes, as it is seen from outside."""

    def __init__(self, folder: Path, how: Variant) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        (folder / "job.yaml").write_text(yaml.safe_dump(manifest(folder, how)))
        with (folder / "messages").open("wb") as messages, (folder / "summary").open("wb") as summary:
            self.command = subprocess.Popen(
                [*COMMAND, "run", "job.yaml", "--out", "out", "--json"],
                cwd=folder,
                env=environment(self.temporary),
                stdin=subprocess.DEVNULL,
                stdout=summary,
                stderr=messages,
            )

    def processes(self) -> dict[str, int]:
        """UID -> process of all that train; those that load for it are younger."""
        found: dict[str, int] = {}
        for pid in sorted(processes_that_mention(str(self.folder))):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                known = dict(
                    each.partition(b"=")[::2] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                )
                uid = known.get(b"HETEROTRAIN_UID", b"").decode()
                if uid and str(WORKER).encode() in words:
                    found.setdefault(uid, pid)
        return found

    def files(self, *, of_servers: bool) -> list[Path]:
        """The records of all processes of one kind."""
        return [
            path
            for path in self.folder.glob("out/arms/*/workers/*/*.jsonl")
            if ("server" in path.parent.name) is of_servers
        ]

    def applied(self) -> dict[str, int]:
        """Server's UID -> how many updates it has recorded."""
        return {path.stem: len(updates_in(path)) for path in self.files(of_servers=True)}

    def is_calm(self) -> bool:
        """Whether a server that lives has applied updates of three that live, lately."""
        here = self.processes()
        for path in self.files(of_servers=True):
            if path.stem not in here:
                continue
            if len({each.worker for each in updates_in(path)[-4 * WORKERS :]}) == WORKERS:
                return True
        return False

    def strike(self, kind: str, which: int) -> str:
        """Do one fault; what was done, in words, or nothing if its process is not there."""
        servers = {path.stem for path in self.files(of_servers=True)}
        here = self.processes()
        fit = sorted(uid for uid in here if (uid in servers) is kind.startswith("server"))
        if not fit:
            return ""
        pid = here[fit[which % len(fit)]]
        with contextlib.suppress(ProcessLookupError):
            if kind.endswith("leave"):
                os.kill(pid, signal.SIGTERM)
            elif kind == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(HEARTBEAT_SECONDS * 1.6)
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, signal.SIGKILL)
            return kind
        return ""

    def until(self, condition: Any) -> bool:
        """Wait for a condition; whether it came true in time, and before the job ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self.command.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def close(self) -> None:
        """End it at once if it still runs; its guardian ends what it has left."""
        if self.command.poll() is None:
            self.command.kill()
        self.command.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)


def updates_in(path: Path) -> list[UpdateRecord]:
    """What a server has recorded as applied, without a last line that it was killed in."""
    lines = path.read_text().splitlines(keepends=True)
    return [UpdateRecord.from_json(line) for line in lines if '"staleness"' in line and line.endswith("\n")]


def that_count(lives: Sequence[Sequence[UpdateRecord]]) -> list[UpdateRecord]:
    """The updates of which the final model is made, of those of all servers."""
    counted: list[UpdateRecord] = []
    for life in sorted((life for life in lives if life), key=lambda life: life[0].time):
        counted = [*(each for each in counted if each.step < life[0].step), *life]
    return counted


def replay(updates: Sequence[UpdateRecord]) -> dict[str, torch.Tensor]:
    """The weights after these updates, by a plain loop: each gradient is that of the weights of its version."""
    data = dataset()
    model, optimizer = model_and_optimizer()
    versions = [deepcopy(model.state_dict())]
    for number, update in enumerate(updates):
        order = torch.cat([epoch_order(SAMPLES, SEED, update.epoch + later) for later in (0, 1)])
        inputs, targets = data[order[update.start : update.stop]]
        model.load_state_dict(versions[update.version])
        optimizer.zero_grad()
        torch.autograd.backward((model(inputs) - targets).square().mean())
        model.load_state_dict(versions[number])
        optimizer.param_groups[0]["lr"] = RATE * DECAY**number * update.factor
        optimizer.step()
        versions.append(deepcopy(model.state_dict()))
    return versions[-1]


def look(job: Job, outcome: Outcome) -> None:
    """What is wrong with the end of a job."""
    if job.command.returncode != 0:
        last = (job.folder / "messages").read_text(errors="replace").splitlines()[-1:]
        outcome.wrong.append(f"exit code {job.command.returncode}: {''.join(last)}")
    lives = [updates_in(path) for path in job.files(of_servers=True)]
    outcome.servers, outcome.lives = len(lives), len(lives) + len(job.files(of_servers=False))
    updates = that_count(lives)
    outcome.updates, outcome.lost = len(updates), sum(map(len, lives)) - len(updates)
    if [each.step for each in updates] != list(range(len(updates))):
        outcome.wrong.append("the records of updates have gaps")
        return
    counts = Counter(
        place
        for each in updates
        for place in range(each.epoch * SAMPLES + each.start, each.epoch * SAMPLES + each.stop)
    )
    twice, never = [place for place, count in counts.items() if count > 1], EPOCHS * SAMPLES - len(counts)
    if twice or never:
        outcome.wrong.append(f"{len(twice)} samples were applied twice, {never} never")
    saved = sorted(job.folder.glob("*.pt"))
    if not any(".server." in path.name for path in saved):
        outcome.wrong.append("the server saved no model")
    if saved:
        expected = replay(updates)
        outcome.difference = max(difference(weights_in(path), expected) for path in saved)
        if not outcome.difference <= SAME_WEIGHTS:
            outcome.wrong.append(f"weights differ from the replay by {outcome.difference:.1e}")
    if left := processes_that_mention(str(job.folder)):
        outcome.wrong.append(f"processes are left: {left}")


def run(folder: Path, seed: int) -> Outcome:
    """Run a job under a seed's faults in a folder of its own, and look at its end."""
    folder.mkdir()
    outcome, began, how = Outcome(), time.monotonic(), variant(seed)
    job = Job(folder, how)
    try:
        if job.until(job.is_calm):
            for seconds, kind, which in how.faults:
                time.sleep(seconds)
                outcome.done.append(job.strike(kind, which) or f"no {kind}")
        else:
            outcome.wrong.append("it did not start")
        (folder / "go").touch()
        if not job.until(lambda: job.command.poll() is not None) and job.command.poll() is None:
            outcome.wrong.append("it did not end")
    finally:
        job.close()
    outcome.seconds = round(time.monotonic() - began, 1)
    look(job, outcome)
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description="Run asynchronous jobs under random faults.")
    parser.add_argument("--seeds", type=int, default=16, help="jobs (16)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the folders of jobs that fail below this one")
    options = runner.options_of(parser).parse_args(arguments)
    machine = runner.machine()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="heterotrain-chaos-") as folder:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            place = Path(folder) / str(seed)
            outcome = run(place, seed)
            print(
                f"seed {seed}: {outcome.done} {'; '.join(outcome.wrong) or 'ended well'}", file=sys.stderr, flush=True
            )
            if outcome.wrong and options.keep is not None:
                with contextlib.suppress(shutil.Error):
                    shutil.copytree(place, options.keep / str(seed), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            runs.append({"seed": seed, **asdict(variant(seed)), **asdict(outcome)})
    failed = [each["seed"] for each in runs if each["wrong"]]
    document = {"benchmark": "asp_chaos", "machine": machine, "failed": failed, "runs": runs}
    runner.report(document, tables_asp.chaos([document]), options)
    return 1 if failed else 0


if __name__ == "__main__":
    runner.command(main)
