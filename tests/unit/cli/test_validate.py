"""`heterotrain validate`: what a cluster would refuse, what is hardly meant, and which files are looked at."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_operator.api import ManifestError
from heterotrain_operator.cli.local.checks import Options, prepare
from heterotrain_operator.cli.main import main
from unit.cli.commands import manifest, write_manifest

PLACE = "spec.workerGroups[0].template.spec"
FIRST = f"{PLACE}.containers[0]"
ROOT = Path(__file__).parents[3]


def job(called: str = "job", /, **container: Any) -> dict[str, Any]:
    """A job that is all right, but for what its container is given; None takes a field away."""
    document = manifest()
    document["metadata"]["name"] = called
    containers = document["spec"]["workerGroups"][0]["template"]["spec"]["containers"]
    merged = {**containers[0], "image": "team/trainer:1.0", **container}
    containers[0] = {field: value for field, value in merged.items() if value is not None}
    return document


def pod(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["workerGroups"][0]["template"]["spec"]
    return found


def write(path: Path, *documents: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False), "utf-8")
    return path


def test_valid_manifest_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "job.yaml", job())
    assert main(["validate", str(path)]) == 0
    assert capsys.readouterr().out == f"{path} is valid: job, 2 workers in 1 group, global batch 32, policy Optimal\n"


# --- what a cluster refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("container", "fault"),
    [
        ({"image": None}, f"{FIRST}.image: is required on a cluster"),
        ({"image": "Team/Trainer:1.0"}, "found 'Team/Trainer:1.0'; did you mean team/trainer:1.0?"),
        ({"image": "trainer 1.0"}, f"{FIRST}.image: is no name of an image"),
        ({"image": "https://registry.example/trainer"}, f"{FIRST}.image: is no name of an image"),
        ({"image": "trainer:"}, f"{FIRST}.image: is no name of an image"),
        ({"image": "trainer@sha256:abc"}, f"{FIRST}.image: is no name of an image"),
        (
            {"resources": {"limits": {"memory": "512m"}}},
            f"{FIRST}.resources.limits.memory: is no whole number of bytes (m is a thousandth), found '512m'; "
            "did you mean 512Mi?",
        ),
        ({"resources": {"requests": {"memory": 0.5}}}, f"{FIRST}.resources.requests.memory: is no whole number"),
        (
            {"resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}},
            f"{FIRST}.resources.requests.cpu: must be at most limits.cpu, 500m, found 1",
        ),
        (
            {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1025Mi"}}},
            "requests.memory: must be at most limits.memory, 1Gi, found 1025Mi",
        ),
        ({"resources": {"limits": {"cpu": "0.0005"}}}, "limits.cpu: must be of whole thousandths of a core"),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            f"{FIRST}.volumeMounts[0].name: there is no volume 'data'; the pod has heterotrain-plan",
        ),
        ({"name": "My_Trainer"}, f"{FIRST}.name: must be a DNS-1123 label"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused(
    container: dict[str, Any], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "job.yaml", job(**container))
    assert main(["validate", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{path} is refused:\n")
    assert fault in said.err


@pytest.mark.parametrize(
    "image",
    [
        "trainer:1",
        "registry.example:5000/team/sub/trainer:v1.0_a-b",
        "localhost/trainer:1",
        "[::1]:5000/trainer:1",
        f"trainer@sha256:{'a' * 64}",
        f"registry.example/a__b/c-d.e:1@sha256:{'0' * 64}",
    ],
)
def test_names_of_images_that_runtimes_take_are_taken(image: str, tmp_path: Path) -> None:
    assert main(["validate", "--strict", str(write(tmp_path / "job.yaml", job(image=image)))]) == 0


def test_mounts_need_volumes_and_places_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mounts = [{"name": "dataa", "mountPath": "/data"}, {"name": "data", "mountPath": "/data"}]
    document = job(volumeMounts=mounts)
    pod(document)["volumes"] = [{"name": "data", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
    pod(document)["initContainers"] = [{"name": "t", "image": "other:1"}]
    assert main(["validate", str(write(tmp_path / "job.yaml", document))]) == 2
    said = capsys.readouterr().err
    for fault in (
        f"{FIRST}.volumeMounts[0].name: there is no volume 'dataa'; did you mean data?",
        f"{FIRST}.volumeMounts[1].mountPath: must be unique, but volumeMounts[0] has it, too",
        f"{PLACE}.volumes[1].name: must be unique, but volumes[0] has it, too",
        f"{FIRST}.name: must be unique in the pod, found 't' again",
    ):
        assert fault in said


def test_volumes_of_the_operator_may_be_mounted(tmp_path: Path) -> None:
    document = job(volumeMounts=[{"name": "heterotrain-checkpoints", "mountPath": "/see"}])
    path = write(tmp_path / "job.yaml", document)
    assert main(["validate", str(path)]) == 2
    document["spec"]["checkpoint"] = {"path": "/checkpoints", "persistentVolumeClaim": "weights"}
    assert main(["validate", str(write(path, document))]) == 0


def test_memory_in_thousandths_of_a_byte_is_no_limit_that_a_run_would_drop(tmp_path: Path) -> None:
    path = write(tmp_path / "job.yaml", job(resources={"limits": {"memory": "512m"}}))
    with pytest.raises(ManifestError, match="did you mean 512Mi"):
        prepare(Options(path), tmp_path)


def test_run_needs_no_image(tmp_path: Path) -> None:
    prepare(Options(write(tmp_path / "job.yaml", job(image=None))), tmp_path)


@pytest.mark.parametrize(
    ("container", "doubt"),
    [
        ({"image": "trainer"}, f"{FIRST}.image: has no version"),
        ({"image": "registry.example:5000/trainer:latest"}, f"{FIRST}.image: has no version"),
        ({"resources": {"limits": {"memory": "512"}}}, "limits.memory: no container starts with so little memory"),
    ],
)
def test_doubts_are_refused_only_if_asked(
    container: dict[str, Any], doubt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "job.yaml", job(**container)))
    assert main(["validate", path]) == 0
    assert f"  Doubtful: {PLACE}" in (said := capsys.readouterr().out)
    assert doubt in said
    assert main(["validate", "--strict", path]) == 2
    assert doubt in capsys.readouterr().err


def test_volume_that_nobody_mounts_is_doubtful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = job()
    pod(document)["volumes"] = [{"name": "data", "emptyDir": {}}]
    assert main(["validate", str(write(tmp_path / "job.yaml", document))]) == 0
    assert f"Doubtful: {PLACE}.volumes[0]: volume 'data' is mounted nowhere" in capsys.readouterr().out


@pytest.mark.parametrize(("own", "doubtful"), [(1, False), (3, False), (2, True)])
def test_replicas_of_a_group_beside_other_ones_of_the_job_are_doubtful(
    own: int, doubtful: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = job()
    document["spec"]["workerGroups"][0]["replicas"] = own
    document["spec"]["replicas"] = 3
    assert main(["validate", str(write(tmp_path / "job.yaml", document))]) == 0
    said = capsys.readouterr().out
    assert "is valid: job, 3 workers in 1 group" in said
    doubt = "Doubtful: spec.workerGroups[0].replicas: is without effect, for spec.replicas is 3; found 2"
    assert (doubt in said) is doubtful


def test_examples_leave_no_doubt() -> None:
    assert main(["validate", "--strict", str(ROOT / "examples")]) == 0


# --- near misses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"batching": {"policy": "optimal"}}, "did you mean Optimal?"),
        ({"metrics": {"source": "pods"}}, "must be Pods or Prometheus, found 'pods'; did you mean Pods?"),
        ({"chekpoint": {}}, "spec.chekpoint: unknown field; did you mean checkpoint?"),
    ],
)
def test_near_misses_are_asked_about(
    spec: dict[str, Any], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(write_manifest(tmp_path, manifest(**spec)))]) == 2
    assert hint in capsys.readouterr().err


def test_near_misses_in_templates_are_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(write(tmp_path / "job.yaml", job(comand=["python"])))]) == 2
    assert f"{FIRST}.comand: unknown field; did you mean command?" in capsys.readouterr().err
    assert main(["run", str(write(tmp_path / "job.yaml", job())), "--policy", "uniform"]) == 2
    assert "did you mean Uniform?" in capsys.readouterr().err


# --- which files ----------------------------------------------------------------------------------------------------


def test_yaml_errors_show_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: HeteroTrainingJob\n  metadata: {name: x}\n", "utf-8")
    assert main(["validate", str(path)]) == 2
    assert "is not YAML: line 2, column 11: mapping values are not allowed here" in (said := capsys.readouterr().err)
    assert "(the line is: metadata: {name: x})" in said


def test_all_files_are_judged_and_one_fault_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(tmp_path / "a.yaml", job("a")), write(tmp_path / "b.yaml", job("b", image=None))
    assert main(["validate", str(bad), str(good), str(tmp_path / "none.yaml")]) == 2
    said = capsys.readouterr()
    assert f"{good} is valid: a, " in said.out
    assert f"{bad} is refused:" in said.err
    assert "none.yaml: cannot be read: No such file" in said.err


def test_documents_of_a_file_are_judged_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"}}
    path = write(tmp_path / "all.yaml", claim, job("first"), job("second", image="?"))
    assert main(["validate", str(path)]) == 2
    said = capsys.readouterr()
    assert f"{path}, document 2 is valid: first" in said.out
    assert f"{path}, document 3 is refused:" in said.err
    assert "document 1" not in said.out + said.err, "what is no job is not judged"


def test_job_in_a_file_of_several_is_recognised_in_spite_of_a_near_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "all.yaml", job("first"), {**job("second"), "kind": "HeterotrainingJob"})
    assert main(["validate", str(path)]) == 2
    assert "kind: must be HeteroTrainingJob, found 'HeterotrainingJob'" in capsys.readouterr().err


def test_folders_are_searched_for_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "jobs" / "deep" / "a.yml", job("a"))
    write(tmp_path / "jobs" / "config.yaml", {"kind": "ConfigMap"})
    (tmp_path / "jobs" / "notes.txt").write_text("kind: HeteroTrainingJob", "utf-8")
    assert main(["validate", str(tmp_path / "jobs")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["validate", str(tmp_path / "jobs" / "config.yaml")]) == 2
    assert "kind: must be HeteroTrainingJob, found 'ConfigMap'" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["validate", str(tmp_path / "empty")]) == 2
    assert "no file holds a HeteroTrainingJob" in capsys.readouterr().err


def test_empty_file_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text("---\n# nothing\n", "utf-8")
    assert main(["validate", str(tmp_path / "job.yaml")]) == 2
    assert "holds no HeteroTrainingJob" in capsys.readouterr().err


def test_standard_input_is_judged_as_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(job())))
    assert main(["validate", "-"]) == 0
    assert capsys.readouterr().out.startswith("standard input is valid: job, ")
