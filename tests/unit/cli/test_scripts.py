"""Jobs that are a script and a few words, and where scripts are found."""

from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_operator.api import ManifestError, load_manifest, parse_manifest
from heterotrain_operator.api.document import document_in
from heterotrain_operator.cli.local.checks import Options, prepare, script_at
from heterotrain_operator.cli.local.run import crowding, in_force
from heterotrain_operator.cli.main import main
from heterotrain_operator.cli.script_job import ScriptJob, WorkerSpec, document_of, job_name
from heterotrain_operator.cli.script_look import Asked
from heterotrain_operator.clusters.local.limits import machine_cores
from unit.cli.commands import TRAIN, manifest, start, write_manifest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "My_Train 2.py"
    path.touch()
    return path


# --- without a manifest ---------------------------------------------------------------------------------------------


def test_script_is_a_job_by_itself(script: Path) -> None:
    job = parse_manifest(document_of(ScriptJob(script)))
    assert job.metadata.name == "my-train-2"
    assert [(group.name, group.replicas) for group in job.spec.worker_groups] == [
        ("cpu-1000m", 1),
        ("cpu-500m", 1),
        ("cpu-250m", 1),
    ]
    assert (job.spec.global_batch_size, job.spec.training.epochs, job.spec.training.steps) == (192, 1, None)


def test_workers_and_the_end_are_as_asked(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--workers", "0.5,1.0,500m", "--global-batch", "30", "--steps", "7", "--", "--lr", "1e-3"]
    assert main(["run", script.name, "--print-manifest", *asked]) == 0
    job = parse_manifest(document_in(capsys.readouterr().out, script))
    assert [(group.name, group.replicas) for group in job.spec.worker_groups] == [("cpu-1000m", 1), ("cpu-500m", 2)]
    assert (job.spec.global_batch_size, job.spec.training.steps) == (30, 7)
    container = job.spec.worker_groups[1].template["spec"]["containers"][0]
    assert container["command"] == ["python", script.name, "--lr", "1e-3"]
    assert container["resources"]["limits"] == {"cpu": "500m"}


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        ("3", [("cpu-1000m", 3)]),
        ("3x1.0, 2x0.5", [("cpu-1000m", 3), ("cpu-500m", 2)]),
        ("2x250m,cpu:2.0", [("cpu-2000m", 1), ("cpu-250m", 2)]),
        ("2xgpu,cpu:1", [("gpu", 2), ("cpu-1000m", 1)]),
    ],
)
def test_workers_are_counted(
    asked: str, workers: list[tuple[str, int]], script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", script.name, "--print-manifest", "--workers", asked]) == 0
    job = parse_manifest(yaml.safe_load(capsys.readouterr().out))
    assert [(group.name, group.replicas) for group in job.spec.worker_groups] == workers


def test_checkpoints_of_a_script_are_kept_where_it_is_said(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script.name, "--print-manifest", "--checkpoints", "kept"]) == 0
    job = parse_manifest(yaml.safe_load(capsys.readouterr().out))
    assert job.spec.checkpoint.path == str(script.parent / "kept")
    assert Options(script, script=ScriptJob(script)).how_to_resume() == "the same command and --resume"


def test_a_script_that_is_looked_at_ends_with_the_command(script: Path) -> None:
    say = "print(os.getpid(), file=open('pid', 'w'), flush=True)"
    ask = f"os.kill({os.getpid()}, signal.SIGTERM)"
    script.write_text(f"import os, signal, time\n{say}\n{ask}\ntime.sleep(600)\n", "utf-8")
    assert main(["run", script.name]) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text("utf-8")), 0)


def test_what_is_in_force_is_said_first_with_who_said_it(script: Path) -> None:
    asked = Asked(epochs=5, seed=3, loader_batch_size=256)
    job = ScriptJob(script, epochs=None, steps=None, asked=asked)
    said = in_force(prepare(Options(script, script=job), script.parent), Options(script, script=job))
    assert said == (
        "my-train-2: 3 workers (default), 5 epochs (join() in My_Train 2.py), "
        "global batch 256 (the DataLoader in My_Train 2.py), seed 3 (join() in My_Train 2.py), policy Optimal (default)"
    )
    path = write_manifest(script.parent, manifest())
    options = Options(path, seed=9)
    assert in_force(prepare(options, script.parent), options) == (
        "job: 2 workers, 10 steps, global batch 32 (job.yaml), seed 9 (--seed), policy Optimal (job.yaml); "
        "what scripts give to join() counts only outside of jobs"
    )


@pytest.mark.parametrize(
    ("stem", "name"), [("train", "train"), ("Train_CNN.v2", "train-cnn-v2"), ("3d", "job-3d"), ("__", "job")]
)
def test_name_of_the_job_is_that_of_the_script(stem: str, name: str) -> None:
    assert job_name(Path(f"{stem}.py")) == name


@pytest.mark.processes
def test_script_trains_to_its_end_without_a_manifest_and_with_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "My_Train.py").write_text(f"import sys\nprint('arguments', sys.argv[1:], flush=True)\n{TRAIN}", "utf-8")
    words = ["--workers", "2", "--steps", "20", "--seed", "7", "--json", "--", "--lr", "--json"]
    command = start(tmp_path, "run", "My_Train.py", *words)
    out, err = command.communicate(timeout=240)
    assert command.returncode == 0, err
    assert "my-train-cpu-1000m-0 | arguments ['--lr', '--json']" in err
    found = json.loads(out)
    assert found["phase"] == "Succeeded"
    assert found["arms"][0]["steps"] == 20
    assert "too few; try --steps" in found["verdict"] or "Batches" in found["verdict"]
    first, *_, last = err.splitlines()
    assert first.startswith(
        "my-train: 2 workers (--workers), 20 steps (--steps), global batch 128 (default, 64 for each"
    )
    assert last == found["verdict"]
    assert "WorkersStarted: creating" in err
    explained, _ = start(tmp_path, "explain", "my-train").communicate(timeout=60)
    assert explained.splitlines()[-1] == last
    assert "PlanPublished: plan 1 starts generation 1 of 2 workers" in explained
    listed, _ = start(tmp_path, "runs").communicate(timeout=60)
    assert " ".join(listed.split()).count("Succeeded") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "gone.py"], "gone.py: there is no such file"),
        (["run", "my_train2.py"], "my_train2.py: there is no such file; did you mean My_Train 2.py?"),
        (["run", "job.yaml", "--workers", "1", "--steps", "3"], "--workers: is for a script; a manifest says it"),
        (["run", "job.yaml", "--", "--lr"], "--: is for a script"),
        (["run", "My_Train 2.py", "--global-batch", "2"], "spec.training.globalBatchSize: 2 samples are too few"),
        (["init", "job.yaml"], "is no Python script (*.py)"),
        (["init", "My_Train 2.py", "-o", "job.yaml"], "job.yaml: is there already; name another file with -o"),
        (["init", "My_Train 2.py", "-o", "no/job.yaml"], "no/job.yaml: cannot be written: No such file"),
    ],
)
def test_what_makes_no_job_is_refused(
    arguments: list[str], words: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_manifest(script.parent, manifest()).read_text("utf-8")
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert (script.parent / "job.yaml").read_text("utf-8") == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "x.py", "--workers", "1,fast"], "--workers: must be CPU limits or GPUs, such as 3, 1.0,0.5,250m"),
        (["run", "x.py", "--workers", "gpsu"], "found 'gpsu'; did you mean gpu?"),
        (["run", "x.py", "--workers", "0"], "--workers: a number of workers is at least 1, found 0"),
        (["run", "x.py", "--workers", "gpu:1,gpu:1"], "--workers: gpu:1 is named twice; a GPU has one worker"),
        (["run", "x.py", "--workers", "gpus,gpu"], "gpus is a worker on each GPU; no other worker can have one"),
        (["run", "x.py", "--workers", "1,0"], "--workers: a CPU limit must be at least 1m"),
        (["run", "x.py", "--epochs", "0"], "--epochs: must be a whole number of at least 1, found '0'"),
        (["run", "x.py", "--epochs", "1", "--steps", "1"], "--steps: not allowed with argument --epochs"),
        (["run", "x.py", "--lr", "0.1"], "unrecognized arguments: --lr 0.1; a script's own come after --"),
    ],
)
def test_usage_is_that_of_the_command_that_is_meant(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: heterotrain run [options] JOB.yaml")
    assert words in said


def test_manifest_is_written_once_and_is_valid(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", script.name, "--epochs", "2", "--image", "team/trainer:1", "--claim", "results"]) == 0
    written = script.with_suffix(".yaml")
    assert capsys.readouterr().out.startswith(f"{written.name} is written; run it here with: heterotrain run")
    text = written.read_text("utf-8")
    assert text.startswith("# ")
    assert "&" not in text, "no anchors"
    job = load_manifest(written)
    assert job.spec.training.epochs == 2
    (image,) = {group.template["spec"]["containers"][0]["image"] for group in job.spec.worker_groups}
    assert image == "team/trainer:1"
    assert (job.spec.checkpoint.path, job.spec.checkpoint.persistent_volume_claim) == ("/checkpoints", "results")
    prepare(Options(written), script.parent)
    assert main(["init", script.name]) == 2
    assert written.read_text("utf-8") == text


def test_limits_that_the_machine_cannot_keep_are_said(script: Path) -> None:
    crowded = ScriptJob(script, (WorkerSpec(Decimal(machine_cores())), WorkerSpec(Decimal(machine_cores()))))
    said = crowding(prepare(Options(script, script=crowded), script.parent).experiment, of_script=True)
    assert f"add up to {2 * machine_cores()} cores, more than the {machine_cores()} of this machine" in said
    assert said.endswith(f"; --workers 2x{machine_cores() / 2:g} would fit")
    fitting = ScriptJob(script, (WorkerSpec(Decimal(machine_cores())),))
    assert not crowding(prepare(Options(script, script=fitting), script.parent).experiment, of_script=True)


# --- where scripts are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "position"),
    [
        (["python", "train.py", "--x"], 1),
        (["/usr/bin/python3.11", "-u", "-W", "error", "train.py"], 4),
        (["python", "-m", "train.py"], None),
        (["python", "-c", "pass", "a.py"], None),
        (["bash", "-c", "python train.py"], None),
        (["python", "train"], None),
        (["python"], None),
        ([], None),
    ],
)
def test_script_of_a_command_is_found(words: list[str], position: int | None) -> None:
    assert script_at(words) == position


def job_with(command: list[str], **container: Any) -> dict[str, Any]:
    job = manifest()
    job["spec"]["workerGroups"][0]["template"]["spec"]["containers"][0] |= {"command": command, **container}
    return job


def commands(path: Path, here: Path) -> tuple[str, ...]:
    return prepare(Options(path), here).templates["cpu"].command


def test_script_is_looked_for_here_then_beside_the_manifest(tmp_path: Path) -> None:
    here, beside = tmp_path / "here", tmp_path / "repository" / "examples"
    for folder in (here, beside):
        folder.mkdir(parents=True)
    path = write_manifest(beside, job_with(["python", "-u"], args=["train.py", "train.py"]))
    with pytest.raises(ManifestError) as refused:
        commands(path, here)
    (problem,) = refused.value.problems
    assert problem.path == "spec.workerGroups[0].template.spec.containers[0].args"
    assert problem.reason == (
        f"there is no train.py in {here}, {beside}, {beside.parent}, {tmp_path}; name its folder in workingDir"
    )
    (beside.parent / "train.py").touch()
    assert commands(path, here) == ("python", "-u", str(beside.parent / "train.py"), "train.py")
    (beside / "train.py").touch()
    assert commands(path, here) == ("python", "-u", str(beside / "train.py"), "train.py")
    (here / "train.py").touch()
    assert commands(path, here) == ("python", "-u", "train.py", "train.py")


def test_working_dir_wins(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "train.py").touch()
    path = write_manifest(tmp_path, job_with(["python", "train.py"], workingDir=str(folder)))
    with pytest.raises(ManifestError, match=rf"there is no train\.py in {folder}$"):
        commands(path, tmp_path)
    (folder / "train.py").touch()
    assert commands(path, tmp_path) == ("python", "train.py")


def test_absolute_script_must_be_there(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, job_with(["python", "/opt/nowhere/train.py"]))
    with pytest.raises(ManifestError, match=r"there is no /opt/nowhere/train\.py$"):
        commands(path, tmp_path)


def test_references_are_left_to_the_worker(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, job_with(["python", "$(HOME)/train.py"]))
    assert commands(path, tmp_path) == ("python", "$(HOME)/train.py")


NO_JOBS = ("schedules", "scenarios")
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if path.parent.name not in NO_JOBS]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_from_anywhere(example: Path, tmp_path: Path) -> None:
    for template in prepare(Options(example), tmp_path).templates.values():
        position = script_at(template.command)
        assert position is not None
        assert Path(template.command[position]).is_relative_to(ROOT / "examples")
