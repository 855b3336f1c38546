"""Faults by the command line on a job of real workers: it trains on after each, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain import contract
from heterotrain_operator.cli.main import main
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits.mechanism import NEIGHBOUR
from jobs.worlds import digits_job
from unit.cli.commands import processes_that_mention, start

pytestmark = pytest.mark.processes

WORKER = "job-g1-0"


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for a condition to hold and return its value; the time bounds only a test that fails."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


class Job:
    """A job that trains without an end in the current folder, as it is seen from outside."""

    def __init__(self, folder: Path, command: subprocess.Popen[str]) -> None:
        self.folder, self.command = folder, command

    def step(self) -> int:
        """The newest step that anybody has recorded."""
        last = [path.read_bytes().splitlines() for path in self.folder.glob("out/arms/*/workers/*/*.jsonl")]
        steps = [json.loads(line)["step"] for lines in last for line in lines[-2:-1] if b'"step"' in line]
        return max(steps, default=0)

    def trains(self, by: int = 20) -> None:
        """Wait for so many more steps."""
        reached = self.step() + by
        until(lambda: self.command.poll() is not None or self.step() >= reached)
        assert self.command.poll() is None, self.command.communicate()[1]

    def environments(self) -> dict[int, list[str]]:
        return {pid: leftovers.environment(pid) for pid in processes_that_mention(str(self.folder))}

    def worker(self, name: str = WORKER) -> dict[int, dict[str, str]]:
        """A worker's processes, with their environments."""
        mark = f"{contract.ENV_WORKER}={name}"
        return {
            pid: dict(entry.partition("=")[::2] for entry in entries)
            for pid, entries in self.environments().items()
            if mark in entries
        }


def neighbours_beside(token: str) -> list[int]:
    """The busy processes beside workers of a run, once they are what they are to be."""
    beside = [pid for pid in leftovers.all_pids() if f"{leftovers.ENV_RUNNER}={token}" in leftovers.environment(pid)]
    return [pid for pid in beside if NEIGHBOUR in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.chdir(tmp_path)
    document = digits_job(
        tmp_path / "results",
        ["500m", "500m"],
        training={"globalBatchSize": 96, "steps": 1_000_000, "seed": 7},
        checkpoint={"path": str(tmp_path / "checkpoints"), "everySteps": 20},
        runPolicy={"backoffLimit": 1},
        membership={"heartbeatTimeoutSeconds": 100},  # nobody is left behind for a fault that the test takes back
    ).model_dump(mode="json", by_alias=True, exclude_unset=True)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    with start(tmp_path, "run", "job.yaml", "--out", "out", "--json") as command:
        yield Job(tmp_path, command)
        command.kill()


def test_job_trains_on_after_every_fault_and_leaves_nothing(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    def chaos(*words: str) -> str:
        assert main(["chaos", "job", *words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    job.trains()

    chaos("stop", "g1-0")
    until(lambda: {leftovers._stat_fields(pid)[0] for pid in job.worker()} == {"T"})
    assert f"{WORKER}: stop\n" in chaos()
    chaos("continue", "g1-0")
    job.trains()

    chaos("slow", "g1-0", "--neighbours", "2")
    token = next(iter(job.worker().values()))[leftovers.ENV_RUNNER]
    busy = until(lambda: two if len(two := neighbours_beside(token)) == 2 else [])
    chaos("starve", "g1-0")
    assert f"{WORKER}: slow, starve\n" in chaos()
    chaos("restore", "g1-0")
    until(lambda: not any(map(leftovers.alive, busy)))
    job.trains()

    port = int(next(iter(job.worker().values()))[contract.ENV_METRICS_PORT])
    chaos("partition", "g1-0")
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
    chaos("partition", "g1-0", "--for", "0.5")
    job.trains()
    socket.create_connection(("127.0.0.1", port), timeout=30).close()
    assert f"{WORKER}: no fault\n" in chaos()

    # Of these only the one counts against the limit of 1.
    for fault, victim, successor in (("leave", "g1-0", "g1-1"), ("kill", "g1-1", "g1-0")):
        before = job.worker(f"job-{victim}").keys()
        chaos(fault, victim)
        until(lambda before=before: not any(map(leftovers.alive, before)))
        until(lambda successor=successor: job.worker(f"job-{successor}"))
        job.trains()

    chaos("stop", "g1-0")
    job.command.send_signal(signal.SIGTERM)
    out, said = job.command.communicate(timeout=100)
    assert job.command.returncode == 143, said
    assert "some workers did not end in time" not in said
    (trial,) = json.loads(out)["arms"]
    acts = [fault["act"] for fault in trial["faults"]]
    assert acts == [
        "stop",
        "continue",
        "slow",
        "starve",
        "restore",
        "partition",
        "partition",
        "heal",
        "leave",
        "kill",
        "stop",
    ]
    assert trial["restarts"] == 0
    assert f"{WORKER} is cut off from the network for 0.5 s" in (job.folder / "out" / "report.html").read_text()
    assert not processes_that_mention(str(job.folder))
    assert not [path for path in (job.folder / "out").iterdir() if path.is_socket()]
    assert main(["chaos", "job", "kill", "g1-0"]) == 2
