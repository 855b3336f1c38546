"""What the command accepts, refuses and says, without starting anything."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.cli.local.checks import Options, prepare
from heterotrain_operator.cli.local.run import ignored_fields
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.experiments.locks import held
from heterotrain_operator.experiments.runs import MARKER
from unit.cli.commands import manifest, write_manifest
from unit.cli.conftest import Run

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("program", "unneeded"),
    [
        ("assert main(['run', '/nonexistent/job.yaml']) == 2", ["torch", "kopf", "kubernetes", "numpy"]),
        ("import heterotrain_operator.experiments.report.simulated", ["torch", "kopf", "kubernetes"]),
        (
            "from heterotrain_operator.cli.cluster import explain, status, watch",
            ["torch", "kopf", "kubernetes", "urllib3"],
        ),
        (
            f"assert main(['simulate', '{EXAMPLES}/scenarios/jump.yaml', '--intervals', '1']) == 0",
            ["torch", "kopf", "kubernetes"],
        ),
    ],
)
def test_only_what_a_command_needs_is_loaded(program: str, unneeded: list[str]) -> None:
    loaded = f"print([name for name in {unneeded} if name in sys.modules])"
    text = f"import sys\nfrom heterotrain_operator.cli.main import main\n{program}\n{loaded}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("spec", "arguments", "words"),
    [
        ({"training": {"globalBatchSize": 32, "stepz": 3}}, [], ["spec.training.stepz: unknown field"]),
        ({"chekpoint": {}}, ["--compare", "Best"], ["spec.chekpoint", "--compare: 'Best' is no policy; known are"]),
        ({}, ["--policy", "Profile"], ["'Profile' is no policy; known are Uniform, Static, Proportional, Optimal"]),
        ({}, ["--policy", "uniform"], ["'uniform' is no policy", "did you mean Uniform?"]),
        ({}, ["--policy", "LBSP"], ["--policy: 'LBSP' is no policy", "did you mean LBBSP?"]),
        ({}, ["--compare", "Optimal"], ["would run twice"]),
        ({}, ["--compare", "Uniform,Uniform"], ["would run twice"]),
        ({"runPolicy": {"suspend": True}}, [], ["spec.runPolicy.suspend: a suspended job does not run"]),
        (
            {},
            ["--compare", "Uniform", "--resume"],
            ["--resume: several trials each start from the beginning"],
        ),
        ({}, ["--resume"], ["--resume: the job has no spec.checkpoint.path"]),
        ({"checkpoint": {"path": "/dev/null/here"}}, [], ["spec.checkpoint.path: no checkpoint can be written to"]),
        ({}, ["--schedule", "s.yaml", "--compare", "Best"], ["changes[0].cpuLimits.gpu", "--compare: 'Best'"]),
        ({}, ["--out", "file"], ["--out: nothing can be written to file"]),
        ({}, ["--out", "file/below"], ["--out: nothing can be written to file/below"]),
        ({}, ["--out", "/proc/nowhere/below"], ["--out: nothing can be written to /proc/nowhere/below"]),
    ],
)
def test_what_cannot_run_is_refused_with_all_its_faults_and_nothing_starts(
    spec: dict[str, Any],
    arguments: list[str],
    words: list[str],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heterotrain: Run,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "s.yaml").write_text("changes: [{atStep: 1, cpuLimits: {gpu: 1}}]", "utf-8")
    path = write_manifest(tmp_path, manifest(**spec))
    said = heterotrain("run", path, *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"{path} is refused:\n")
    assert all(each in said.err for each in words)


@pytest.mark.parametrize("command", ["run", "validate"])
def test_unreadable_file_is_bad_input(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").touch()
    said = heterotrain(command, "none.yaml")
    assert (said.code, said.out) == (2, "")
    assert "none.yaml: cannot be read: No such file or directory; did you mean one.yaml?" in said.err


def test_fields_ignored_in_many_groups_are_named_once() -> None:
    path = EXAMPLES / "digits-hetero.yaml"
    assert ignored_fields(prepare(Options(path), path.parent)) == [
        "securityContext",
        "containers[0].image",
        "containers[0].securityContext",
        "containers[0].resources.requests",
    ]


def test_a_prometheus_server_is_named_as_ignored(tmp_path: Path) -> None:
    job = manifest()
    before = ignored_fields(prepare(Options(write_manifest(tmp_path, job)), tmp_path))
    job["spec"]["metrics"] = {"source": "Prometheus", "prometheus": {"url": "http://prometheus:9090"}}
    (more,) = set(ignored_fields(prepare(Options(write_manifest(tmp_path, job)), tmp_path))) - set(before)
    assert more.startswith("spec.metrics.source")


def test_template_that_means_something_else_here_is_refused(tmp_path: Path, heterotrain: Run) -> None:
    job = manifest()
    pod = job["spec"]["workerGroups"][0]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    path = write_manifest(tmp_path, job)
    said = heterotrain("run", path)
    assert said.code == 2
    assert "secretKeyRef" in said.err
    assert "cannot run on this machine" in heterotrain("validate", path).out


def test_folder_with_other_things_is_never_touched(tmp_path: Path, heterotrain: Run) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", "utf-8")
    path = write_manifest(tmp_path, manifest())
    assert "is not empty; name a new folder" in heterotrain("run", path, "--out", out, "--fresh").err
    (out / MARKER).touch()
    assert "holds an earlier run" in heterotrain("run", path, "--out", out).err
    with held(out / MARKER):
        assert f"{out} belongs to another run" in heterotrain("run", path, "--out", out, "--fresh").err
    assert (out / "thesis.txt").read_text("utf-8") == "mine"


def test_full_disk_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PlanVolume, "write", full)
    said = heterotrain("run", write_manifest(tmp_path, manifest()), "--out", tmp_path / "out")
    assert said.code == 1
    assert re.search(rf"job failed: {tmp_path}/out/\S+: No space left on device", said.err)


def test_checkpoints_are_not_continued_or_lost_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    volume = tmp_path / ".heterotrain" / "volumes" / "digits" / "job"
    volume.mkdir(parents=True)
    (volume / "step-0000000120.pt").touch()
    job = manifest(checkpoint={"path": "/checkpoints", "persistentVolumeClaim": "digits"})
    said = heterotrain("run", write_manifest(tmp_path, job))
    assert said.code == 2
    assert "holds a checkpoint of 120 steps; go on with --resume or start with --fresh" in said.err


def test_the_command_that_resumes_repeats_the_options_of_the_run() -> None:
    options = Options(Path("my job.yaml"), policy="Static", schedule=Path("s.yaml"))
    assert options.how_to_resume() == ("heterotrain run 'my job.yaml' --resume --policy Static --schedule s.yaml")


def test_help_divides_commands_by_where_they_look_and_run_has_examples(heterotrain: Run) -> None:
    rooms = heterotrain("--help").out.split(":\n")
    assert [room.splitlines()[-1] for room in rooms[:-1]][-4:] == [
        "on this machine",
        "of runs on this machine, or of jobs on a cluster",
        "on a cluster",
        "about this program",
    ]
    assert "  status      show jobs on a cluster\n" in rooms[-2]
    assert "heterotrain run train.py --workers 3 -- --lr 0.1" in heterotrain("run", "--help").out


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_is_printed(word: str, heterotrain: Run) -> None:
    said = heterotrain(word)
    assert said.code == 0
    assert said.out.startswith("heterotrain ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: heterotrain "),
        (["walk"], "invalid choice: 'walk'"),
        (["run"], "usage: heterotrain run "),
        (["run", "x", "--compare", ","], "names no policy"),
        (["run", "x", "--rounds", "0"], "--rounds: must be a whole number of at least 1, found '0'"),
        (["expalin", "x"], "invalid choice: 'expalin'; did you mean explain?"),
        (["run", "x.yaml", "--wide"], "unrecognized arguments: --wide"),
        (["run", "x.py", "--worker=3"], "unrecognized arguments: --worker=3; did you mean --workers?"),
        (["run", "x.yaml", "--polciy=Static"], "unrecognized arguments: --polciy=Static; did you mean --policy?"),
        (["logs", "j", "--wide"], "usage: heterotrain logs "),
        (["validate", "x", "--wide"], "usage: heterotrain validate "),
    ],
)
def test_unknown_usage_is_bad_input_and_shows_that_of_the_command(
    arguments: list[str], words: str, heterotrain: Run
) -> None:
    said = heterotrain(*arguments)
    assert said.code == 2
    assert words in said.err


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
def test_bash_completes_commands_options_and_files(words: list[str], offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    assert set(completed(tmp_path, words)) == offered


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script_too(shell: str, heterotrain: Run) -> None:
    assert "validate" in heterotrain("completion", shell).out
