"""How jobs of real workers end, with the real decisions: each fault has a clear message, and loses nothing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain import contract
from heterotrain.contract import StepRecord
from heterotrain_operator.clusters.local.limits import detect
from jobs.worlds import digits_job
from unit.cli.commands import processes_that_mention, start

pytestmark = pytest.mark.processes

LASTING = {"globalBatchSize": 96, "steps": 800, "seed": 7}
"""Training that workers which go on without one that ended have not finished before anybody has seen that end."""


def run(tmp_path: Path, **job: Any) -> tuple[int, str]:
    """Run a job with two workers by the command line: its exit code, and what it said."""
    document = digits_job(tmp_path / "results", ["500m", "500m"], **job).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(document))
    command = start(tmp_path, "run", str(manifest), "--out", "out")
    _, said = command.communicate(timeout=240)
    assert not processes_that_mention(str(tmp_path)), "a stray process"
    return command.returncode, said


def checkpoints(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "checkpoints" / "job").glob("*"))


def spec_with_checkpoints(tmp_path: Path, **spec: Any) -> dict[str, Any]:
    return {"checkpoint": {"path": str(tmp_path / "checkpoints"), "everySteps": 20, "keep": 9}, **spec}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise ValueError('label 17 is out of range')", "ValueError: label 17 is out of range"),
        ("sys.exit(0)", "ended before the job's last step"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
    ids=["raises", "exits with 0 early", "is killed"],
)
def test_a_worker_that_ends_early_is_named_and_the_checkpoint_stays(tmp_path: Path, fault: str, says: str) -> None:
    spec = spec_with_checkpoints(tmp_path, training=LASTING)
    code, said = run(tmp_path, fault=fault, worker="job-g1-0", at=30, **spec)
    assert code == 1
    assert "job-g1-0" in said
    assert says in said
    assert "step-0000000020.pt" in checkpoints(tmp_path)


def test_a_script_that_hangs_is_named(tmp_path: Path) -> None:
    spec = spec_with_checkpoints(tmp_path, membership={"progressTimeoutSeconds": 3})
    code, said = run(tmp_path, fault="time.sleep(600)", worker="job-g1-0", at=30, **spec)
    assert code == 1
    assert "WorkerHung" in said
    assert "job-g1-0" in said.split("WorkerHung", 1)[1].splitlines()[0]
    assert "step-0000000020.pt" in checkpoints(tmp_path)


def test_a_script_that_raises_wherever_it_gets_a_sample_fails_the_job(tmp_path: Path) -> None:
    """The others do the step again, and so meet the sample that the first could not read; none may restart the job for
    that more than once. Without a checkpoint before it, each process meets it at the same step."""
    spec = {"training": LASTING, "runPolicy": {"backoffLimit": 9}}
    code, said = run(tmp_path, fault="raise ValueError('label 17 is out of range')", worker="job-", at=30, **spec)
    assert code == 1
    assert "ValueError: label 17 is out of range" in said
    assert said.count("RestartingWorkers") <= 1, said
    assert "ScriptFailed" in said


@pytest.mark.parametrize(
    ("killed", "environment"), [("job-", {}), ("job-g1-0", {contract.ENV_ELASTIC: "0"})], ids=["all", "one is needed"]
)
def test_killed_workers_cost_a_restart_from_the_last_checkpoint(
    tmp_path: Path, killed: str, environment: dict[str, str]
) -> None:
    once = "open(marker, 'x').close() or os.kill(os.getpid(), signal.SIGKILL)"
    fault = f"marker = {str(tmp_path / 'killed')!r} + name; os.path.exists(marker) or ({once})"
    spec = spec_with_checkpoints(tmp_path, runPolicy={"backoffLimit": 1})
    code, said = run(tmp_path, fault=fault, worker=killed, at=30, environment=environment, **spec)
    assert code == 0, said
    assert "RestartingWorkers" in said
    lives = sorted((tmp_path / "out").glob("arms/*/workers/job-g0-0/*.jsonl"), key=lambda path: path.stat().st_mtime)
    first, second = ([StepRecord.from_json(line) for line in path.read_text().splitlines()] for path in lives)
    assert second[0].step >= 20  # the last checkpoint that the first life wrote, be it on its way out
    assert second[0].step <= first[-1].step + 1
    assert second[-1].step == 59


def test_a_worker_out_of_memory_comes_back_with_what_it_is_sure_to_hold(tmp_path: Path) -> None:
    if "CPU and memory" not in detect().describe():
        pytest.skip("memory cannot be limited here")
    once = "open(marker, 'x').close() or bytearray(2 << 30)"
    fault = f"marker = {str(tmp_path / 'full')!r}; os.path.exists(marker) or ({once})"
    spec = spec_with_checkpoints(tmp_path, training=LASTING, runPolicy={"backoffLimit": 1})
    code, said = run(
        tmp_path, fault=fault, worker="job-g1-0", at=30, memory="1Gi", batching={"policy": "Uniform"}, **spec
    )
    assert code == 0, said
    assert "job-g1-0 was killed by SIGKILL: out of memory: over its limits.memory of 1024 MiB" in said
    assert "job-g1-0 gets at most 24 samples instead of 48" in said
    assert "RestartingWorkers" not in said
    lives = sorted((tmp_path / "out").glob("arms/*/workers/job-g1-*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    batches = [{StepRecord.from_json(line).batch for line in path.read_text().splitlines()} for path in lives]
    assert batches == [{48}, {24}]


def test_a_full_disk_ends_the_job_with_the_path_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    # A limit on the size of files stands in for the full disk, and like it strikes in the middle of a write. It strikes
    # all, for whoever is left leads.
    fault = "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    code, said = run(tmp_path, fault=fault, worker="job-", at=30, **spec_with_checkpoints(tmp_path))
    assert code == 1
    assert "cannot write the checkpoint of step 40" in said
    assert "spec.checkpoint.path" in said
    assert checkpoints(tmp_path) == ["step-0000000020.pt"]
