"""Whole runs of the command with real workers: how they end, and what they leave."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from heterotrain_operator.experiments.checkpoints import newest_step
from unit.cli.commands import TRAIN, eventually, manifest, processes_that_mention, said_until, start, write_manifest

pytestmark = pytest.mark.processes

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
TALK = """
import sys
for number in range(30):
    print('line', number, flush=True)
sys.exit('\\x1b[31mno data\\x1b[0m')
"""


def ups(folder: Path) -> int:
    """How many workers of the runs below a folder have said that they are up."""
    return sum("up" in log.read_text("utf-8") for log in folder.glob("**/workers/*/log"))


def steps(out: Path) -> int:
    """Records in the longest series of the only trial."""
    return max((len(path.read_bytes().splitlines()) for path in out.glob("arms/*/workers/*/*.jsonl")), default=0)


def test_run_that_fails_names_its_worker_and_ends_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, manifest(TALK, runPolicy={"backoffLimit": 0}))
    command = start(tmp_path, "run", str(path), "--json", "--logs", "all")
    out, err = command.communicate(timeout=240)
    assert command.returncode == 1
    assert json.loads(out)["phase"] == "Failed"
    logs = list((tmp_path / ".heterotrain" / "runs" / "job").glob("*/arms/optimal-1/workers/*/log"))
    assert {log.parent.name for log in logs} == {"job-cpu-0", "job-cpu-1"}
    assert {line.split()[0] for line in err.splitlines() if line.endswith(" | line 0")} == {"job-cpu-0", "job-cpu-1"}
    assert " | job-cpu" not in err, "no line has two prefixes"

    (log,) = (log for log in logs if f"The last lines of {log.parent.name}, " in err)
    assert log.parent.name in json.loads(out)["message"]
    assert log.read_text("utf-8").startswith("line 0\n")
    _, ending = err.split(f"The last lines of {log.parent.name}, all of {log.relative_to(tmp_path)}:\n")
    assert ending.splitlines()[:20] == [*(f"  line {number}" for number in range(11, 30)), "  no data"]
    assert "job failed: " in ending
    asked = start(tmp_path, "logs", "job", log.parent.name, "--tail", "1")
    out, _ = asked.communicate(timeout=60)
    assert out == "\x1b[31mno data\x1b[0m\n"
    assert not processes_that_mention(str(tmp_path))


def test_a_machine_without_home_programs_and_a_folder_that_can_be_written_trains(tmp_path: Path) -> None:
    """No HOME, no nvidia-smi or other program in PATH; the current folder, as of a read-only file system, can hold
    neither logs nor checkpoints. Temporary files have a place."""
    path = write_manifest(tmp_path, manifest(TRAIN))
    bare = {"PATH": "/nonexistent", "TMPDIR": str(tmp_path)}
    command = start(Path("/proc"), "run", str(path), "--json", inherited=bare)
    out, err = command.communicate(timeout=240)
    assert command.returncode == 0, err
    assert json.loads(out)["phase"] == "Succeeded"
    assert "logs cannot be kept in /proc/.heterotrain/runs/job" in err
    assert not list(tmp_path.rglob("step-*")), "checkpoints went with the run"


def test_signal_ends_a_run_in_order_and_a_second_one_at_once_and_its_folders_are_its_own(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("willing", "deaf")}
    for folder in folders.values():
        folder.mkdir()
    volume = folders["willing"] / "checkpoints" / "job"
    keeping = manifest(SLEEP, checkpoint={"path": str(volume.parent)})
    first, path = folders["willing"], write_manifest(folders["willing"], keeping)
    willing = start(first, "run", str(path), "--out", "out")
    second, job = folders["deaf"], manifest(DEAF, replicas=1)
    job["spec"]["workerGroups"][0]["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    deaf = start(second, "run", str(write_manifest(second, job)), "--logs", "none")

    try:
        eventually(lambda: ups(first) == 2)
        unfinished = volume / ".step-0000000001.pt.0.partial"
        unfinished.touch()
        for asked in ("--resume", "--fresh"):
            second_run = start(first, "run", str(path), asked, "--out", "out")
            _, err = second_run.communicate(timeout=120)
            assert second_run.returncode == 2
            assert f"{volume} belongs to another run, which still goes on (process {willing.pid} on " in err
            assert "out belongs to another run" in err
        assert unfinished.exists()
        willing.send_signal(signal.SIGTERM)
        _, err = willing.communicate(timeout=120)
        assert willing.returncode == 143
        assert "stopped after 0 steps; no checkpoint was written" in err
        assert "killing the workers" not in err

        eventually(lambda: ups(second) == 1)
        deaf.send_signal(signal.SIGINT)
        said = said_until(deaf, "stopping: the workers finish their step, within 600 s")
    finally:
        for command in (willing, deaf):
            command.send_signal(signal.SIGINT)
    _, err = deaf.communicate(timeout=240)  # less than the grace period
    assert deaf.returncode == 130
    assert "killing the workers" in err
    assert "stopped after 0 steps; nothing can be resumed, for the job keeps no checkpoints" in err
    assert "write a checkpoint" not in said + err
    assert " | up" not in said + err, "the output of none"
    assert not processes_that_mention(str(tmp_path))


def test_run_under_a_schedule_is_interrupted_and_resumes_where_it_stopped(tmp_path: Path) -> None:
    job = manifest(
        TRAIN,
        training={"globalBatchSize": 32, "steps": 200},
        batching={"policy": "Uniform"},
        checkpoint={"path": "/checkpoints", "persistentVolumeClaim": "weights"},
    )
    path = write_manifest(tmp_path, job)
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text("changes: [{atStep: 40, label: less, cpuLimits: {job-cpu-1: 300m}}]", "utf-8")
    command = start(tmp_path, "run", str(path), "--schedule", str(schedule), "--json", "--out", "first")
    said_until(command, "LimitsChanged: CPU limits less: none / 0.3")
    eventually(lambda: steps(tmp_path / "first") >= 80)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=120)
    assert command.returncode == 130
    interrupted = json.loads(out)
    assert interrupted["phase"] == "Interrupted"
    (trial,) = interrupted["arms"]
    saved = newest_step(tmp_path / ".heterotrain" / "volumes" / "weights" / "job")
    assert saved == trial["steps"]
    assert f"stopped after {saved} steps; the newest checkpoint holds {saved} steps" in err
    assert [phase["label"] for phase in trial["phases"]] == ["declared", "less"]
    (change,) = trial["changes"]
    assert change["step"] >= 40
    assert change["limits"] == {"job-cpu-0": None, "job-cpu-1": 0.3}
    kept = tmp_path / "first"
    records = [json.loads(line) for line in (kept / "uniform-1-series.jsonl").read_text().splitlines()]
    limited = [record for record in records if record.get("cpuLimit") == 0.3]
    assert {record["worker"] for record in limited} == {"job-cpu-1"}
    assert all(record["time"] >= change["seconds"] for record in limited)
    assert (kept / "schedule.yaml").read_text() == schedule.read_text()
    assert "<h2>Schedule</h2>" in (kept / "report.html").read_text()
    assert not processes_that_mention(str(tmp_path))

    command = start(tmp_path, "run", str(path), "--json", "--resume")
    out, err = command.communicate(timeout=240)
    assert command.returncode == 0, err
    assert f"Resuming after {saved} steps" in err
    (trial,) = json.loads(out)["arms"]
    assert (trial["steps"], trial["policy"]) == (200 - saved, "Uniform")
    assert not processes_that_mention(str(tmp_path))
