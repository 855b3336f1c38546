"""How jobs of real workers end, with the real decisions: each fault has a clear message, and loses nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from heterotrain import contract
from heterotrain_operator.clusters.local.limits import detect
from jobs.worlds import LASTING, running
from unit.cli.commands import eventually, start

pytestmark = pytest.mark.processes

TWO = ["500m", "500m"]


def once(folder: Path, first: str, then: str = "pass") -> str:
    """What the first process of each name does, and what those do that come in its place."""
    marker = f"{str(folder / 'done-')!r} + name"
    begun = f"open({marker}, 'x').close(); {first}"
    return f"exec({then!r} if os.path.exists({marker}) else {begun!r})"


@pytest.mark.parametrize(
    ("killed", "environment"),
    [("job-", {}), pytest.param("job-g1-0", {contract.ENV_ELASTIC: "0"}, marks=pytest.mark.long)],
    ids=["all", "one is needed"],
)
def test_killed_workers_cost_a_restart_from_the_last_checkpoint_and_one_that_hangs_is_named(
    tmp_path: Path, killed: str, environment: dict[str, str]
) -> None:
    first = f"{str(tmp_path / 'checkpoints' / 'job' / 'step-0000000020.pt')!r}"
    written = f"any(os.path.exists({first}) or time.sleep(0.05) for _ in range(1200))"
    fault = once(tmp_path, f"{written}; os.kill(os.getpid(), signal.SIGKILL)", "name == 'job-g1-0' and time.sleep(600)")
    limits = {"runPolicy": {"backoffLimit": 1}, "membership": {"progressTimeoutSeconds": 5}}
    job: dict[str, Any] = {"fault": fault, "worker": killed, "at": 27, "environment": environment, **limits}
    with running(tmp_path, TWO, training={"globalBatchSize": 96, "steps": 800, "seed": 7}, **job) as run:
        code, _, said = run.ends()
        assert code == 1
        assert "RestartingWorkers" in said
        _, second = run.lives("job-g0-0")
        assert 20 <= second[0].step <= 27, "the last checkpoint that the first life wrote, be it on its way out"
        assert "WorkerHung" in said
        assert "job-g1-0" in said.split("WorkerHung", 1)[1].splitlines()[0]
        assert 40 in run.checkpoints(), "of the second life"


def test_worker_out_of_memory_comes_back_with_what_it_holds_and_a_full_disk_ends_the_job(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk, and like it strikes in the middle of a write."""
    limited = "CPU and memory" in detect().describe()
    disk = "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    job: dict[str, Any] = {
        "fault": once(tmp_path, "bytearray(2 << 30)" if limited else "os.kill(os.getpid(), signal.SIGKILL)"),
        "worker": "job-g1-0",
        "at": 30,
        "each": f"os.path.exists({str(tmp_path / 'full')!r}) and {disk}",
        "lasting": True,
        "memory": "1Gi",
        "batching": {"policy": "Uniform"},
        "runPolicy": {"backoffLimit": 1},
    }
    with running(tmp_path, TWO, training=LASTING, **job) as run:
        eventually(lambda: len(run.lives("job-g1-")) == 2 and run.lives("job-g1-")[-1])
        (tmp_path / "full").touch()
        run.hurry()
        code, _, said = run.ends()
        assert "job-g1-0 was killed by SIGKILL" in said
        if limited:
            assert "out of memory: over its limits.memory of 1024 MiB" in said
            assert "job-g1-0 gets at most 24 samples instead of 48" in said
        first, second, *_ = run.lives("job-g1-")
        assert {record.batch for record in first} == {48}
        assert second[0].batch == (24 if limited else 48)
        assert code == 1
        assert "RestartingWorkers" not in said, "who leads next would meet the same"
        failed = re.findall(rf"cannot write the checkpoint of step (\d+) to {tmp_path}/\S+: File too large", said)
        assert 20 <= run.checkpoints()[-1] < min(map(int, failed)), "the last good one stays"


def test_leader_that_is_killed_while_it_saves_its_result_fails_the_job_and_a_resumed_one_saves_it(
    tmp_path: Path,
) -> None:
    """Nobody starts again, though restarts are left. What each saves it saves once the loop is over."""
    killed = once(tmp_path, "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGKILL)")
    job: dict[str, Any] = {"fault": killed, "worker": "job-g0-0", "at": 60, "runPolicy": {"backoffLimit": 3}}
    with running(tmp_path, TWO, **job) as run:
        code, _, said = run.ends()
        assert code == 1
        assert "training finished at step 60, but the script failed afterwards on job-g0-0: it was killed by" in said
        assert "RestartingWorkers" not in said
        assert "--resume" in said.splitlines()[-1]
        assert 60 in run.checkpoints()
    model = tmp_path / "results" / "job-g0-0.pt"
    model.unlink()
    with start(tmp_path, "run", "job.yaml", "--out", "again", "--resume", "--json") as command:
        assert command.wait(120) == 0
    assert model.is_file()


def test_script_that_raises_wherever_it_gets_a_sample_fails_the_job(tmp_path: Path) -> None:
    """The others do the step again, and so meet the sample that the first could not read; none may restart the job for
    that more than once. Without a checkpoint before it, each process meets it at the same step."""
    fault = "raise ValueError('label 17 is out of range')"
    with running(tmp_path, TWO, fault=fault, worker="job-", at=15, runPolicy={"backoffLimit": 9}) as run:
        code, _, said = run.ends()
        assert code == 1
        assert "ValueError: label 17 is out of range" in said
        assert said.count("RestartingWorkers") <= 1, said
        assert "ScriptFailed" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise ValueError('label 17 is out of range')", "ValueError: label 17 is out of range"),
        ("sys.exit(0)", "a script that wants to end the job calls session.stop()"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
    ids=["raises", "exits with 0 early", "is killed"],
)
def test_worker_that_ends_early_is_named_and_the_checkpoint_stays(tmp_path: Path, fault: str, says: str) -> None:
    with running(tmp_path, TWO, fault=fault, worker="job-g1-0", at=30, lasting=True, training=LASTING) as run:
        code, _, said = run.ends()
        assert code == 1
        assert "job-g1-0" in said
        assert says in said
        assert 20 in run.checkpoints()
