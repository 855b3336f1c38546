"""Whole runs of the command with real workers: how they end, and what they leave."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain_operator.cli.main import main
from heterotrain_operator.experiments.checkpoints import newest_step
from unit.cli.commands import TRAIN, manifest, processes_that_mention, start, write_manifest

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP

pytestmark = pytest.mark.processes


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition to hold; the time bounds only a test that fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def logs(out: Path) -> str:
    """All that the workers of the only trial have printed."""
    return "".join(path.read_text("utf-8") for path in out.glob("arms/*/workers/*/log"))


def steps(out: Path) -> int:
    """Records in the longest series of the only trial."""
    return max((len(path.read_bytes().splitlines()) for path in out.glob("arms/*/workers/*/*.jsonl")), default=0)


def test_script_that_raises_fails_the_run_by_name(tmp_path: Path):
    path = write_manifest(tmp_path, manifest("raise ValueError('no data')", runPolicy={"backoffLimit": 0}))
    command = start(tmp_path, "run", str(path), "--json")
    out, err = command.communicate(timeout=120)
    assert command.returncode == 1
    assert json.loads(out)["phase"] == "Failed"
    assert "job-cpu-" in json.loads(out)["message"]
    assert "ValueError: no data" in err
    assert not processes_that_mention(str(tmp_path))


def test_terminated_run_leaves_nothing(tmp_path: Path):
    path = write_manifest(tmp_path, manifest(SLEEP))
    command = start(tmp_path, "run", str(path), "--out", "out")
    until(lambda: logs(tmp_path / "out").count("up") == 2)
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 143
    assert "stopped after 0 steps; no checkpoint was written" in err
    assert not processes_that_mention(str(tmp_path))


def test_second_signal_kills(tmp_path: Path):
    path = write_manifest(tmp_path, manifest(DEAF, replicas=1))
    command = start(tmp_path, "run", str(path), "--out", "out")
    until(lambda: "up" in logs(tmp_path / "out"))
    command.send_signal(signal.SIGINT)
    assert command.stderr is not None
    while not command.stderr.readline().startswith("stopping:"):
        assert command.poll() is None
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)  # the grace period would be 60 s
    assert command.returncode == 130
    assert "killing the workers" in err
    assert not processes_that_mention(str(tmp_path))


def test_interrupted_run_resumes_where_it_stopped(tmp_path: Path):
    job = manifest(
        TRAIN,
        training={"globalBatchSize": 32, "steps": 150},
        batching={"policy": "Uniform"},
        checkpoint={"path": "/checkpoints", "persistentVolumeClaim": "weights"},
    )
    path = write_manifest(tmp_path, job)
    command = start(tmp_path, "run", str(path), "--json", "--out", "first")
    until(lambda: steps(tmp_path / "first") >= 20)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    interrupted = json.loads(out)
    assert interrupted["phase"] == "Interrupted"
    saved = newest_step(tmp_path / ".heterotrain" / "volumes" / "weights" / "job")
    assert saved == interrupted["arms"][0]["steps"]
    assert f"stopped after {saved} steps; the newest checkpoint holds {saved} steps" in err
    assert (tmp_path / "first" / "report.html").exists()
    assert not processes_that_mention(str(tmp_path))

    command = start(tmp_path, "run", str(path), "--json", "--resume")
    out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    assert f"Resuming after {saved} steps" in err
    (trial,) = json.loads(out)["arms"]
    assert trial["steps"] == 150 - saved
    assert trial["policy"] == "Uniform"
    assert not processes_that_mention(str(tmp_path))


def test_scheduled_limits_are_imposed_and_reported(tmp_path: Path):
    job = manifest(TRAIN, training={"globalBatchSize": 32, "steps": 120}, batching={"policy": "Uniform"})
    path = write_manifest(tmp_path, job)
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text("changes: [{atStep: 40, label: less, cpuLimits: {job-cpu-1: 300m}}]", "utf-8")
    command = start(tmp_path, "run", str(path), "--schedule", str(schedule), "--json", "--out", "out")
    out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    (trial,) = json.loads(out)["arms"]
    assert [phase["label"] for phase in trial["phases"]] == ["declared", "less"]
    (change,) = trial["changes"]
    assert change["step"] >= 40
    assert change["limits"] == {"job-cpu-0": None, "job-cpu-1": 0.3}
    assert "LimitsChanged: CPU limits less: none / 0.3" in err
    series = [json.loads(line) for line in (tmp_path / "out" / "uniform-1-series.jsonl").read_text().splitlines()]
    limited = [record for record in series if record.get("cpuLimit") == 0.3]
    assert {record["worker"] for record in limited} == {"job-cpu-1"}
    assert all(record["time"] >= change["seconds"] for record in limited)
    assert (tmp_path / "out" / "schedule.yaml").read_text() == schedule.read_text()
    assert "<h2>Schedule</h2>" in (tmp_path / "out" / "report.html").read_text()


TALK = """
import sys
for number in range(30):
    print('line', number, flush=True)
sys.exit('\\x1b[31mno data\\x1b[0m')
"""


def test_failure_ends_with_the_last_lines_of_the_worker_and_the_place_of_its_log(tmp_path: Path):
    path = write_manifest(tmp_path, manifest(TALK, replicas=1, runPolicy={"backoffLimit": 0}))
    command = start(tmp_path, "run", str(path))
    _, err = command.communicate(timeout=120)
    assert command.returncode == 1
    (log,) = (tmp_path / ".heterotrain" / "runs" / "job").glob("*/arms/optimal-1/workers/job-cpu-0/log")
    assert log.read_text("utf-8").startswith("line 0\n")
    assert "job-cpu-0 | line 0\n" in err, "the leader's output is shown"
    _, ending = err.split(f"The last lines of job-cpu-0, all of {log.relative_to(tmp_path)}:\n")
    assert ending.splitlines()[:20] == [*(f"  line {number}" for number in range(11, 30)), "  no data"]
    assert "job failed: " in ending

    asked = start(tmp_path, "logs", "job", "cpu-0", "--tail", "1")
    out, _ = asked.communicate(timeout=60)
    assert out == "\x1b[31mno data\x1b[0m\n"


@pytest.mark.parametrize(("shown", "names"), [("all", {"job-cpu-0", "job-cpu-1"}), ("none", set())])
def test_output_of_all_workers_or_of_none_is_shown_as_asked(shown: str, names: set[str], tmp_path: Path):
    path = write_manifest(tmp_path, manifest("print('up'); raise SystemExit(3)", runPolicy={"backoffLimit": 0}))
    command = start(tmp_path, "run", str(path), "--logs", shown)
    _, err = command.communicate(timeout=120)
    assert {line.split()[0] for line in err.splitlines() if line.endswith(" | up")} == names
    assert " | job-cpu" not in err, "no line has two prefixes"
    logs_kept = (tmp_path / ".heterotrain" / "runs" / "job").glob("*/arms/*/workers/*/log")
    assert {log.parent.name for log in logs_kept} == {"job-cpu-0", "job-cpu-1"}


def test_output_of_a_leader_that_is_gone_is_followed_by_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talking = TRAIN.replace("    time.sleep(0.01)", "    time.sleep(0.01)\n    print('a batch', flush=True)")
    job = manifest(talking, replicas=3, training={"globalBatchSize": 30, "steps": 1000})
    command = start(tmp_path, "run", str(write_manifest(tmp_path, job)), "--out", "out")
    assert command.stderr is not None
    lines = iter(command.stderr.readline, "")
    assert any(line == "job-cpu-0 | a batch\n" for line in lines)
    assert main(["chaos", "job", "kill", "cpu-0"]) == 0
    assert any(line.endswith(" | a batch\n") and not line.startswith("job-cpu-0 ") for line in lines)
    command.send_signal(signal.SIGTERM)
    command.communicate(timeout=60)
    assert not processes_that_mention(str(tmp_path))


def test_interrupted_run_without_checkpoints_promises_none(tmp_path: Path):
    path = write_manifest(tmp_path, manifest(SLEEP, replicas=1))
    command = start(tmp_path, "run", str(path))
    assert command.stderr is not None
    while " | up" not in (line := command.stderr.readline()):
        assert line, "the run ended"
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "stopping: the workers finish their step, within 60 s" in err
    assert "stopped after 0 steps; nothing can be resumed, for the job keeps no checkpoints" in err
    assert "write a checkpoint" not in err
    assert "removed" not in err
