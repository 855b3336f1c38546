"""Workers of one job as real processes, steered by the test instead of by an operator.

The test writes the plans that an operator would write, so that it decides when batch sizes change.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import EvaluationRecord, Member, Plan, StepRecord, Termination, TrainingConfig
from heterotrain.metric import Metric
from heterotrain_operator.clusters.local.starting import Ports
from trainer.warm import STACKS, Process, WarmServer

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120
SECRET = "5ec2e7" * 8
STAY = {contract.ENV_ELASTIC: "0"}
"""Of workers that need one another until all of them start again, as users may ask for."""


_ports = Ports()


def free_port() -> int:
    """A port that no outgoing connection is given until a worker listens there, nor a gang of another of pytest's
    processes."""
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while (port := _ports.take()) % processes != own % processes:
        pass
    return port


WARM_MODULES = ("torch", "torch.distributed", "torch._dynamo", "numpy", "prometheus_client")
"""What a worker of these tests imports, also by way of DistributedDataParallel; nothing of this project, so that every
test imports that itself."""


@cache
def warm_server() -> WarmServer:
    """One server for all tests."""
    server = WarmServer(WARM_MODULES)
    atexit.register(server.close)
    return server


def start_cold(command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int) -> Process:
    """As `WarmServer.start`, with a process that has imported nothing."""
    started: Any = subprocess.Popen(
        [sys.executable, *command], env=dict(environment), cwd=folder, stdout=output, stderr=output
    )
    process: Process = started  # it has the same methods
    return process


def with_children(pid: int) -> set[int]:
    """A worker's process, and those that it has started: the one that speaks for it, and its loaders."""
    found = {pid}
    with contextlib.suppress(OSError):
        found |= set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return found


class Gang:
    """`len(batches)` workers running `command`; use as a context manager."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        batches: Sequence[int],
        config: TrainingConfig,
        *,
        apply_at: str = "step",
        environment: dict[str, str] | None = None,
        generation: int = 1,
        micro: Sequence[int] = (),
        cold: bool = False,
    ) -> None:
        """`cold`: workers import torch themselves, as real ones do, instead of being forked from a warm process."""
        self.folder = folder
        self.plan_dir = folder / "plan"
        self.plan_dir.mkdir(parents=True, exist_ok=True)
        self.members: list[Member] = []
        """All workers that were ever started; a worker's number is its place here, and at first its rank."""
        self.ports: list[int] = []
        self.processes: list[Process] = []
        self._command = command
        self._start_process = start_cold if cold else warm_server().start
        self._config = config
        self.generation = generation
        self._environment = {contract.ENV_SECRET: SECRET} | (environment or {})
        self._stack = contextlib.ExitStack()
        members = tuple(
            self.start(batch, most) for batch, most in zip(batches, micro or [0] * len(batches), strict=True)
        )
        self.plan = Plan(10 * generation, generation, apply_at, members)
        self.write(self.plan.to_json())

    def start(
        self, batch: int, micro: int = 0, command: Sequence[str] = (), more: Mapping[str, str] | None = None
    ) -> Member:
        """One worker more, which is in no plan yet; `more` of its environment."""
        number, port = len(self.members), free_port()
        member = Member(
            f"w-{number}", f"uid-{self.generation}-{number}", f"127.0.0.1:{free_port()}", "cpu", batch, micro
        )
        log = self._stack.enter_context((self.folder / f"{member.uid}.log").open("wb"))
        path = os.pathsep.join([str(REPOSITORY / "trainer-image"), str(REPOSITORY / "tests")])
        self.processes.append(
            self._start_process(
                command or self._command,
                os.environ
                | {
                    "PYTHONPATH": path,
                    "OMP_NUM_THREADS": "1",
                    contract.ENV_JOB: "test",
                    contract.ENV_WORKER: member.name,
                    contract.ENV_UID: member.uid,
                    contract.ENV_GROUP: "cpu",
                    contract.ENV_PLAN_DIR: str(self.plan_dir),
                    contract.ENV_CONFIG: self._config.to_json(),
                    contract.ENV_METRICS_PORT: str(port),
                    contract.ENV_TERMINATION_LOG: str(self.folder / f"{member.uid}.end"),
                    contract.ENV_SERIES: str(self.folder / f"{member.uid}.jsonl"),
                }
                | self._environment
                | (dict(more) if more else {}),
                REPOSITORY,
                log.fileno(),
            )
        )
        self.members.append(member)
        self.ports.append(port)
        return member

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._stack.close()

    def write(self, document: str) -> None:
        """Replace the plan's document atomically."""
        partial = self.plan_dir / "partial"
        partial.write_text(document)
        partial.replace(self.plan_dir / contract.PLAN_FILE)

    def publish(self, *batches: int, micro: Sequence[int] = (), holds: bool = False) -> Plan:
        """The next version, with these batch sizes, and limits of micro-batches."""
        members = tuple(
            Member(m.name, m.uid, m.address, m.group, batch, most)
            for m, batch, most in zip(self.plan.members, batches, micro or [0] * len(batches), strict=True)
        )
        self.plan = replace(self.plan, version=self.plan.version + 1, members=members, holds=holds)
        self.write(self.plan.to_json())
        return self.plan

    def change(
        self,
        batches: Mapping[int, int],
        continues: int | None = None,
        *,
        holds: bool = False,
        evicted: Sequence[int] = (),
    ) -> Plan:
        """The next generation: the workers of these numbers, in this order, with these batch sizes, go on. `continues`
        is the present generation; the workers of the numbers `evicted` were seen to end."""
        members = tuple(replace(self.members[number], batch_size=batch) for number, batch in batches.items())
        self.plan = Plan(
            self.plan.version + 1,
            self.plan.generation + 1,
            self.plan.apply_at,
            members,
            self.plan.generation if continues is None else continues,
            holds,
            tuple(self.members[number].uid for number in evicted),
        )
        self.write(self.plan.to_json())
        return self.plan

    def await_generation(self, *numbers: int) -> None:
        """Wait until these workers train in the newest generation."""
        for number in numbers:
            self.await_metric(number, table.GENERATION.name, self.plan.generation)

    def follow(self, *batches: int, micro: Sequence[int] = ()) -> Plan:
        """Publish these batch sizes and wait until all follow them."""
        plan = self.publish(*batches, micro=micro)
        for rank in range(len(batches)):
            self.await_metric(rank, table.PLAN_VERSION.name, plan.version)
        return plan

    def metric(self, rank: int, name: str) -> float | None:
        """A series of a worker as its metrics server shows it; None if the server does not answer, or has no such
        series."""
        text = self._metrics(rank)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (name, f"{name}_total"):
                    return float(sample.value)
        return None

    def by_label(self, number: int, metric: Metric) -> dict[int, float]:
        """The values of a worker's metric by its own label, which is a number."""
        return {
            int(sample.labels[metric.further[0]]): sample.value
            for family in text_string_to_metric_families(self._metrics(number))
            for sample in family.samples
            if sample.name == metric.name
        }

    def _metrics(self, rank: int) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[rank]}/metrics", timeout=5) as response:
                text: str = response.read().decode()
                return text
        except OSError:
            return ""

    def await_phase(self, rank: int, phase: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while f'phase="{phase}"' not in self._metrics(rank):
            if time.monotonic() > deadline:
                raise AssertionError(f"w-{rank} never was {phase}:\n{self.logs()}")
            time.sleep(0.05)

    def await_metric(self, rank: int, name: str, at_least: float) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (self.metric(rank, name) or 0) < at_least:
            if self.processes[rank].poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{name} of w-{rank} never reached {at_least}:\n{self.logs()}")
            time.sleep(0.05)

    def said(self, rank: int, text: str) -> int:
        """How often a worker has said this."""
        return (self.folder / f"{self.members[rank].uid}.log").read_text().count(text)

    def await_log(self, rank: int, text: str, *, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.said(rank, text) < times:
            if time.monotonic() > deadline:
                raise AssertionError(f"w-{rank} never said {text!r}:\n{self.logs()}")
            time.sleep(0.05)

    def await_step(self, step: int) -> None:
        self.await_metric(0, table.STEP.name, step)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> None:
        for process in self.processes:
            process.send_signal(sent)

    def wait(self) -> list[int]:
        """Exit codes by rank."""
        return [self.wait_for(number) for number in range(len(self.processes))]

    def wait_for(self, number: int) -> int:
        """The exit code of one. Raises AssertionError with all logs, and where each live thread stands."""
        try:
            return self.processes[number].wait(timeout=PATIENCE_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired):
            for process in self.processes:
                process.send_signal(STACKS)
            time.sleep(1.0)  # for what they write
            raise AssertionError(f"w-{number} did not end:\n{self.logs()}") from None

    def succeed(self, *numbers: int) -> None:
        """Wait for these workers, or all; each must report that the job is done."""
        chosen = numbers or range(len(self.processes))
        codes = [self.wait_for(number) for number in chosen]
        assert codes == [0] * len(codes), self.logs()
        assert all(self.ending(number).finished for number in chosen)

    def ending(self, rank: int) -> Termination:
        return Termination.from_text((self.folder / f"{self.members[rank].uid}.end").read_text())

    def series(self, rank: int) -> list[StepRecord]:
        return [StepRecord.from_json(line) for line in self._lines(rank) if '"own"' in line]

    def evaluations(self, leader: int = 0) -> list[EvaluationRecord]:
        """The leader's records of evaluations."""
        return [EvaluationRecord.from_json(line) for line in self._lines(leader) if '"metrics"' in line]

    def _lines(self, rank: int) -> list[str]:
        """None of a worker that has not come to its first step."""
        path = self.folder / f"{self.members[rank].uid}.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def losses(self) -> dict[int, float]:
        """Global loss by step: the sum of the workers' shares."""
        losses: dict[int, float] = {}
        for rank in range(len(self.members)):
            for record in self.series(rank):
                losses[record.step] = losses.get(record.step, 0.0) + (record.loss or 0.0)
        return losses

    def has_said(self, text: str) -> bool:
        """Whether any worker has said this, at any time."""
        return any(text in path.read_text() for path in self.folder.glob("*.log"))

    def logs(self) -> str:
        """The end of what each worker said."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))

    def saved(self, rank: int = 0, name: str = "") -> dict[str, Any]:
        """The weights that a worker's script saved at its end (or, under a name, before)."""
        import torch

        loaded: dict[str, Any] = torch.load(self.folder / f"{self.members[rank].name}{name}.pt", weights_only=True)
        return loaded


def run_alone(folder: Path, command: Sequence[str]) -> dict[str, Any]:
    """Run a script outside any job; the weights that it saved."""
    import torch

    folder.mkdir()
    path = os.pathsep.join([str(REPOSITORY / "trainer-image"), str(REPOSITORY / "tests")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        process = warm_server().start([*command, "--out", str(folder)], environment, REPOSITORY, log.fileno())
        assert process.wait(2 * PATIENCE_SECONDS) == 0, (folder / "log").read_text()
    loaded: dict[str, Any] = torch.load(folder / "alone.pt", weights_only=True)
    return loaded
