"""Jobs of real workers that go on when one of them ends, with the real decisions, by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain.contract import StepRecord
from jobs.worlds import digits_job
from unit.cli.commands import processes_that_mention, start

pytestmark = pytest.mark.processes

STEPS, AT = 800, 30
ONCE = {"backoffLimit": 1}


def run(tmp_path: Path, workers: int, *, least: int | None = None, **job: Any) -> tuple[int, str]:
    """Run a job by the command line: its exit code, and what it said. `least`: of each group of one worker."""
    training = {"globalBatchSize": 96, "steps": STEPS, "seed": 7}
    document = digits_job(tmp_path / "results", ["500m"] * workers, training=training, **job).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    for group in document["spec"]["workerGroups"] if least is not None else ():
        group["minReplicas"] = least
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    command = start(tmp_path, "run", "job.yaml", "--out", "out")
    _, said = command.communicate(timeout=240)
    assert not processes_that_mention(str(tmp_path)), "a stray process"
    return command.returncode, said


def lives(tmp_path: Path, worker: str) -> list[list[StepRecord]]:
    """What each process of this name has recorded."""
    paths = sorted((tmp_path / "out").glob(f"arms/*/workers/{worker}/*.jsonl"), key=lambda path: path.stat().st_mtime)
    return [[StepRecord.from_json(line) for line in path.read_text().splitlines()] for path in paths]


def assert_replaced(tmp_path: Path, said: str, worker: str) -> None:
    """The others did every step once, and a worker of the next index takes part in the last one."""
    assert "RestartingWorkers" not in said
    for other in {"job-g0-0", "job-g1-0", "job-g2-0"} - {worker}:
        (life,) = lives(tmp_path, other)
        assert [record.step for record in life] == list(range(STEPS))
    (successor,) = lives(tmp_path, f"{worker.removesuffix('-0')}-1")
    assert successor[0].step > AT
    assert successor[-1].step == STEPS - 1


def at_first(tmp_path: Path, sent: str) -> str:
    """What a script does so that only its first process is sent a signal."""
    once = f"open(marker, 'x').close() or os.kill(os.getpid(), signal.{sent})"
    return f"marker = {str(tmp_path / 'sent')!r}; os.path.exists(marker) or ({once})"


@pytest.mark.parametrize("worker", ["job-g0-0", "job-g1-0"], ids=["the leader", "a follower"])
def test_a_killed_worker_is_replaced_while_the_others_train_on(tmp_path: Path, worker: str) -> None:
    code, said = run(tmp_path, 3, fault=at_first(tmp_path, "SIGKILL"), worker=worker, at=AT, runPolicy=ONCE)
    assert code == 0, said
    assert_replaced(tmp_path, said, worker)


def test_the_others_hold_below_the_least_and_go_on_with_the_successor(tmp_path: Path) -> None:
    fault = at_first(tmp_path, "SIGKILL")
    code, said = run(tmp_path, 3, least=1, fault=fault, worker="job-g1-0", at=AT, runPolicy=ONCE)
    assert code == 0, said
    assert "training holds until others have joined: group g1 has 0 of at least 1 workers" in said
    assert_replaced(tmp_path, said, "job-g1-0")


def test_a_stopped_worker_is_replaced_while_the_others_train_on(tmp_path: Path) -> None:
    """Nobody lets it go on, so it never ends by itself."""
    fault, members = at_first(tmp_path, "SIGSTOP"), {"heartbeatTimeoutSeconds": 2}
    code, said = run(tmp_path, 3, fault=fault, worker="job-g1-0", at=AT, membership=members, runPolicy=ONCE)
    assert code == 0, said
    assert "job-g1-0 does not answer, and the others train without it" in said
    assert_replaced(tmp_path, said, "job-g1-0")
