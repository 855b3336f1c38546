"""`heterotrain validate`: what a cluster would refuse, what is hardly meant, and which files are looked at."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_operator.api import ManifestError
from heterotrain_operator.cli.local.checks import Options, prepare
from unit.cli.commands import manifest
from unit.cli.conftest import Run

PLACE = "spec.workerGroups[0].template.spec"
FIRST = f"{PLACE}.containers[0]"
ROOT = Path(__file__).parents[3]


def job(called: str = "job", /, pod: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    """A job that is all right, but for what its pod and its container are given; None takes a field away."""
    document = manifest()
    document["metadata"]["name"] = called
    template = document["spec"]["workerGroups"][0]["template"]
    first = {**template["spec"]["containers"][0], "image": "team/trainer:1.0", **container}
    first = {field: value for field, value in first.items() if value is not None}
    template["spec"] = {**template["spec"], "containers": [first], **(pod or {})}
    return document


def write(path: Path, *documents: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False), "utf-8")
    return path


def test_valid_manifest_is_described(tmp_path: Path, heterotrain: Run) -> None:
    path = write(tmp_path / "job.yaml", job())
    said = heterotrain("validate", path)
    assert said.code == 0
    assert said.out == f"{path} is valid: job, 2 workers in 1 group, global batch 32, policy Optimal\n"


MOUNTS = [{"name": "dataa", "mountPath": "/data"}, {"name": "data", "mountPath": "/data"}]
TWICE = {
    "volumes": [{"name": "data", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
    "initContainers": [{"name": "t", "image": "other:1"}],
}


@pytest.mark.parametrize(
    ("document", "faults"),
    [
        (job(image=None), [f"{FIRST}.image: is required on a cluster"]),
        (job(image="Team/Trainer:1.0"), ["found 'Team/Trainer:1.0'; did you mean team/trainer:1.0?"]),
        (job(image="trainer 1.0"), [f"{FIRST}.image: is no name of an image"]),
        (job(image="https://registry.example/trainer"), [f"{FIRST}.image: is no name of an image"]),
        (job(image="trainer@sha256:abc"), [f"{FIRST}.image: is no name of an image"]),
        (
            job(resources={"limits": {"memory": "512m"}}),
            [
                f"{FIRST}.resources.limits.memory: is no whole number of bytes (m is a thousandth), found '512m'; "
                "did you mean 512Mi?"
            ],
        ),
        (
            job(resources={"requests": {"memory": 0.5}}),
            [f"{FIRST}.resources.requests.memory: is no whole number"],
        ),
        (
            job(resources={"limits": {"cpu": "500m"}, "requests": {"cpu": 1}}),
            [f"{FIRST}.resources.requests.cpu: must be at most limits.cpu, 500m, found 1"],
        ),
        (
            job(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "1025Mi"}}),
            ["requests.memory: must be at most limits.memory, 1Gi, found 1025Mi"],
        ),
        (job(resources={"limits": {"cpu": "0.0005"}}), ["limits.cpu: must be of whole thousandths of a core"]),
        (job(name="My_Trainer"), [f"{FIRST}.name: must be a DNS-1123 label"]),
        (job(comand=["python"]), [f"{FIRST}.comand: unknown field; did you mean command?"]),
        (
            job(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
            [f"{FIRST}.volumeMounts[0].name: there is no volume 'data'; the pod has heterotrain-plan"],
        ),
        (
            job(pod=TWICE, volumeMounts=MOUNTS),
            [
                f"{FIRST}.volumeMounts[0].name: there is no volume 'dataa'; did you mean data?",
                f"{FIRST}.volumeMounts[1].mountPath: must be unique, but volumeMounts[0] has it, too",
                f"{PLACE}.volumes[1].name: must be unique, but volumes[0] has it, too",
                f"{FIRST}.name: must be unique in the pod, found 't' again",
            ],
        ),
        (manifest(batching={"policy": "optimal"}), ["did you mean Optimal?"]),
        (manifest(chekpoint={}), ["spec.chekpoint: unknown field; did you mean checkpoint?"]),
        ({"kind": "Pod"}, ["kind: must be HeteroTrainingJob"]),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_with_near_misses(
    document: dict[str, Any], faults: list[str], tmp_path: Path, heterotrain: Run
) -> None:
    path = write(tmp_path / "job.yaml", document)
    said = heterotrain("validate", path)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"{path} is refused:\n")
    assert all(fault in said.err for fault in faults)


@pytest.mark.parametrize(
    "image",
    [
        "registry.example:5000/team/sub/trainer:v1.0_a-b",
        "localhost/trainer:1",
        "[::1]:5000/trainer:1",
        f"registry.example/a__b/c-d.e:1@sha256:{'0' * 64}",
    ],
)
def test_names_of_images_that_runtimes_take_are_taken(image: str, tmp_path: Path, heterotrain: Run) -> None:
    assert heterotrain("validate", "--strict", write(tmp_path / "job.yaml", job(image=image))).code == 0


def test_volumes_of_the_operator_may_be_mounted(tmp_path: Path, heterotrain: Run) -> None:
    document = job(volumeMounts=[{"name": "heterotrain-checkpoints", "mountPath": "/see"}])
    path = write(tmp_path / "job.yaml", document)
    assert heterotrain("validate", path).code == 2
    document["spec"]["checkpoint"] = {"path": "/checkpoints", "persistentVolumeClaim": "weights"}
    assert heterotrain("validate", write(path, document)).code == 0


def test_run_judges_limits_but_needs_no_image(tmp_path: Path) -> None:
    prepare(Options(write(tmp_path / "job.yaml", job(image=None))), tmp_path)
    with pytest.raises(ManifestError, match="did you mean 512Mi"):
        prepare(Options(write(tmp_path / "job.yaml", job(resources={"limits": {"memory": "512m"}}))), tmp_path)


@pytest.mark.parametrize(
    ("document", "doubt"),
    [
        (job(image="trainer"), f"{FIRST}.image: has no version"),
        (job(image="registry.example:5000/trainer:latest"), f"{FIRST}.image: has no version"),
        (job(resources={"limits": {"memory": "512"}}), "limits.memory: no container starts with so little memory"),
        (job(pod={"volumes": [{"name": "data", "emptyDir": {}}]}), f"{PLACE}.volumes[0]: volume 'data' is mounted now"),
    ],
)
def test_doubts_are_refused_only_if_asked(
    document: dict[str, Any], doubt: str, tmp_path: Path, heterotrain: Run
) -> None:
    path = write(tmp_path / "job.yaml", document)
    said, strict = heterotrain("validate", path), heterotrain("validate", "--strict", path)
    assert (said.code, strict.code) == (0, 2)
    assert f"  Doubtful: {PLACE}" in said.out
    assert doubt in said.out
    assert doubt in strict.err


@pytest.mark.parametrize(("most", "doubtful"), [(None, True), (512, False)])
def test_growth_without_a_maximum_is_doubtful(
    most: int | None, doubtful: bool, tmp_path: Path, heterotrain: Run
) -> None:
    document = job()
    training = document["spec"]["training"]
    training.pop("steps", None)
    training |= {"epochs": 1, "learningRateScaling": "Linear"}
    document["spec"]["scaling"] = {"globalBatch": "Grow"} | ({"maxGlobalBatchSize": most} if most else {})
    said = heterotrain("validate", write(tmp_path / "job.yaml", document)).out
    assert ("Doubtful: spec.scaling.globalBatch: grows without end" in said) is doubtful
    assert "learningRateScaling" not in said


@pytest.mark.parametrize(("fixed", "doubtful"), [(True, True), (False, False)])
def test_rates_that_follow_a_batch_which_never_changes_are_doubtful(
    fixed: bool, doubtful: bool, tmp_path: Path, heterotrain: Run
) -> None:
    document = job()
    document["spec"]["training"] |= {"learningRateScaling": "Sqrt"}
    document["spec"]["batching"] = {"policy": "Proportional", "fixedGlobalBatch": fixed}
    said = heterotrain("validate", write(tmp_path / "job.yaml", document)).out
    doubt = "Doubtful: spec.training.learningRateScaling: is without effect, for the global batch never changes"
    assert (doubt in said) is doubtful


@pytest.mark.parametrize(("own", "doubtful"), [(1, False), (3, False), (2, True)])
def test_replicas_of_a_group_beside_other_ones_of_the_job_are_doubtful(
    own: int, doubtful: bool, tmp_path: Path, heterotrain: Run
) -> None:
    document = job()
    document["spec"]["workerGroups"][0]["replicas"] = own
    document["spec"]["replicas"] = 3
    said = heterotrain("validate", write(tmp_path / "job.yaml", document)).out
    assert "is valid: job, 3 workers in 1 group" in said
    doubt = "Doubtful: spec.workerGroups[0].replicas: is without effect, for spec.replicas is 3; found 2"
    assert (doubt in said) is doubtful


def test_examples_leave_no_doubt(heterotrain: Run) -> None:
    assert heterotrain("validate", "--strict", ROOT / "examples").code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: HeteroTrainingJob\n  metadata: {name: x}\n", "line 2, column 11: mapping values are not allowed here"),
        ("kind: HeteroTrainingJob\n  metadata: {name: x}\n", "(the line is: metadata: {name: x})"),
        ("---\n# nothing\n", "holds no HeteroTrainingJob"),
    ],
)
def test_text_that_is_no_job_is_shown(text: str, words: str, tmp_path: Path, heterotrain: Run) -> None:
    (tmp_path / "job.yaml").write_text(text, "utf-8")
    said = heterotrain("validate", tmp_path / "job.yaml")
    assert said.code == 2
    assert words in said.err


def test_all_files_and_documents_are_judged_and_one_fault_refuses(tmp_path: Path, heterotrain: Run) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "weights"}}
    near = {**job("third"), "kind": "HeterotrainingJob"}
    path = write(tmp_path / "all.yaml", claim, job("first"), job("second", image="?"), near)
    good = write(tmp_path / "a.yaml", job("a"))
    said = heterotrain("validate", path, good, tmp_path / "none.yaml")
    assert said.code == 2
    assert f"{path}, document 2 is valid: first" in said.out
    assert f"{path}, document 3 is refused:" in said.err
    assert "kind: must be HeteroTrainingJob, found 'HeterotrainingJob'" in said.err
    assert "document 1" not in said.out + said.err, "what is no job is not judged"
    assert f"{good} is valid: a, " in said.out
    assert "none.yaml: cannot be read: No such file" in said.err


def test_folders_are_searched_for_jobs(tmp_path: Path, heterotrain: Run) -> None:
    write(tmp_path / "jobs" / "deep" / "a.yml", job("a"))
    write(tmp_path / "jobs" / "config.yaml", {"kind": "ConfigMap"})
    (tmp_path / "jobs" / "notes.txt").write_text("kind: HeteroTrainingJob", "utf-8")
    said = heterotrain("validate", tmp_path / "jobs")
    assert (said.code, len(said.out.splitlines())) == (0, 1)
    assert "found 'ConfigMap'" in heterotrain("validate", tmp_path / "jobs" / "config.yaml").err
    (tmp_path / "empty").mkdir()
    assert "no file holds a HeteroTrainingJob" in heterotrain("validate", tmp_path / "empty").err


def test_standard_input_is_judged_as_a_file(monkeypatch: pytest.MonkeyPatch, heterotrain: Run) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(job())))
    assert heterotrain("validate", "-").out.startswith("standard input is valid: job, ")
