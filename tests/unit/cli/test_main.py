"""What the command accepts, refuses and says, without starting anything."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from heterotrain_operator.cli.local.checks import Options, prepare
from heterotrain_operator.cli.local.run import ignored_fields
from heterotrain_operator.cli.main import main
from heterotrain_operator.experiments.runs import MARKER
from unit.cli.commands import manifest, write_manifest


def test_run_needs_neither_torch_nor_kubernetes():
    program = (
        "import sys\n"
        "from heterotrain_operator.cli.main import main\n"
        "assert main(['run', '/nonexistent/job.yaml']) == 2\n"
        "import heterotrain_operator.experiments.report.files\n"
        "print([name for name in ('torch', 'kopf', 'kubernetes') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_drawing_is_loaded_only_for_a_report():
    program = "import sys, heterotrain_operator.cli.main\nprint('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_unreadable_file_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(tmp_path / "none.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "none.yaml" in said.err


def test_all_faults_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = manifest()
    job["spec"]["workerGroups"][0]["replicas"] = 0
    job["spec"]["training"]["stepz"] = 3
    path = write_manifest(tmp_path, job)
    assert main(["run", str(path), "--compare", "Uniform,Best"]) == 2
    said = capsys.readouterr().err
    for words in ("spec.workerGroups[0].replicas", "spec.training.stepz", "--compare: 'Best' is no policy; known are"):
        assert words in said


@pytest.mark.parametrize("name", ["Profile", "uniform", "LBBSP"])
def test_policies_that_are_not_for_users_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(write_manifest(tmp_path, manifest())), "--policy", name]) == 2
    assert (
        f"--policy: '{name}' is no policy; known are Uniform, Static, Proportional, Optimal" in capsys.readouterr().err
    )


@pytest.mark.parametrize("compared", ["Optimal", "Uniform,Uniform"])
def test_no_policy_runs_twice(compared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run", str(write_manifest(tmp_path, manifest())), "--compare", compared]) == 2
    assert "would run twice" in capsys.readouterr().err


def test_fields_ignored_in_many_groups_are_named_once():
    manifest = Path(__file__).parents[3] / "examples" / "digits-hetero.yaml"
    assert ignored_fields(prepare(Options(manifest), manifest.parent)) == [
        "securityContext",
        "containers[0].image",
        "containers[0].securityContext",
        "containers[0].resources.requests",
    ]


def test_a_prometheus_server_is_named_as_ignored(tmp_path: Path):
    job = manifest()
    before = ignored_fields(prepare(Options(write_manifest(tmp_path, job)), tmp_path))
    job["spec"]["metrics"] = {"source": "Prometheus", "prometheus": {"url": "http://prometheus:9090"}}
    after = ignored_fields(prepare(Options(write_manifest(tmp_path, job)), tmp_path))
    (more,) = set(after) - set(before)
    assert more.startswith("spec.metrics.source")


@pytest.mark.parametrize(
    ("spec", "arguments", "words"),
    [
        ({"runPolicy": {"suspend": True}}, [], "spec.runPolicy.suspend: a suspended job does not run"),
        ({}, ["--rounds", "0"], "--rounds: must be at least 1, found 0"),
        ({}, ["--compare", "Uniform", "--resume"], "--resume: several trials each start from the beginning"),
        ({}, ["--resume"], "--resume: the job has no spec.checkpoint.path"),
        ({"checkpoint": {"path": "/dev/null/here"}}, [], "spec.checkpoint.path: no checkpoint can be written to"),
    ],
)
def test_what_cannot_run_is_refused(
    spec: dict[str, object], arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", str(write_manifest(tmp_path, manifest(**spec))), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_template_that_means_something_else_here_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = manifest()
    pod = job["spec"]["workerGroups"][0]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    path = write_manifest(tmp_path, job)
    assert main(["run", str(path)]) == 2
    assert "secretKeyRef" in capsys.readouterr().err
    assert main(["validate", str(path)]) == 0
    assert "cannot run on this machine" in capsys.readouterr().out


def test_folder_with_other_things_is_never_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", "utf-8")
    path = str(write_manifest(tmp_path, manifest()))
    assert main(["run", path, "--out", str(out), "--fresh"]) == 2
    assert "is not empty; name a new folder" in capsys.readouterr().err
    (out / MARKER).touch()
    assert main(["run", path, "--out", str(out)]) == 2
    assert "holds an earlier run" in capsys.readouterr().err
    assert (out / "thesis.txt").read_text("utf-8") == "mine"


def test_checkpoints_are_not_continued_or_lost_by_accident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    volume = tmp_path / ".heterotrain" / "volumes" / "digits" / "job"
    volume.mkdir(parents=True)
    (volume / "step-0000000120.pt").touch()
    job = manifest(checkpoint={"path": "/checkpoints", "persistentVolumeClaim": "digits"})
    assert main(["run", str(write_manifest(tmp_path, job))]) == 2
    said = capsys.readouterr().err
    assert "holds a checkpoint of 120 steps; go on with --resume or start with --fresh" in said


def test_invalid_manifest_is_refused_by_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod"}), "utf-8")
    assert main(["validate", str(path)]) == 2
    assert "kind: must be HeteroTrainingJob" in capsys.readouterr().err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("heterotrain ")


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["run", "x", "--compare", ","], ["run", "x", "--wide"]])
def test_unknown_usage_exits_with_2(arguments: list[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_command_that_resumes_repeats_the_options_of_the_run():
    options = Options(Path("my job.yaml"), policy="Static", schedule=Path("s.yaml"))
    assert shlex.join(options.words_to_resume()) == (
        "heterotrain run 'my job.yaml' --resume --policy Static --schedule s.yaml"
    )


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("heterotrain ")


@pytest.mark.parametrize(
    "arguments", [["run", "x.yaml", "--wide"], ["logs", "j", "--wide"], ["validate", "x", "--wide"]]
)
def test_errors_of_usage_show_that_of_the_subcommand(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert said.startswith(f"usage: heterotrain {arguments[0]} ")
    assert "unrecognized arguments: --wide" in said


def test_folder_that_cannot_be_made_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = str(write_manifest(tmp_path, manifest()))
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere/below")):
        assert main(["run", path, "--out", str(out)]) == 2
        assert f"--out: nothing can be written to {out}" in capsys.readouterr().err


def completed(folder: Path, words: list[str]) -> list[str]:
    """What bash offers for the last of these words."""
    script = folder / "completion.bash"
    source = [sys.executable, "-m", "heterotrain_operator.cli.main", "completion", "bash"]
    script.write_text(subprocess.run(source, capture_output=True, text=True, check=True).stdout, "utf-8")
    program = (
        f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
        "COMPREPLY=(); $(complete -p heterotrain | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["heterotrain", "va"], {"validate"}),
        (["heterotrain", "run", "--comp"], {"--compare"}),
        (["heterotrain", "run", "--logs", ""], {"leader", "all", "none"}),
        (["heterotrain", "validate", "jo"], {"job.yaml"}),
    ],
)
def test_bash_completes_commands_options_and_files(words: list[str], offered: set[str], tmp_path: Path):
    (tmp_path / "job.yaml").touch()
    assert set(completed(tmp_path, words)) == offered


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_too(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", shell]) == 0
    assert "validate" in capsys.readouterr().out


def test_faults_of_schedule_and_manifest_are_named_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    schedule = tmp_path / "schedule.yaml"
    schedule.write_text("changes: [{atStep: 1, cpuLimits: {gpu: 1}}]", "utf-8")
    job = write_manifest(tmp_path, manifest())
    assert main(["run", str(job), "--schedule", str(schedule), "--compare", "Best"]) == 2
    said = capsys.readouterr().err
    assert "changes[0].cpuLimits.gpu" in said
    assert "--compare: 'Best'" in said
