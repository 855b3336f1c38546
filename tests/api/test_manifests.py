"""Bad manifests are refused with path and reason, by our own checks and, where it can, by the CRD."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem, load_manifest, parse_manifest
from heterotrain_operator.api.availability import NOT_YET

Document = dict[str, Any]
Change = Callable[[dict[str, Any]], Document]
HERE = Path(__file__).parent
WHERE = "spec.workerGroups[1]."
ROWS: list[dict[str, Any]] = yaml.safe_load((HERE / "bad_manifests.yaml").read_text())


def _identity(row: dict[str, Any]) -> str:
    return f"{row['path']}: {row['reason'][:40]}"


def _problems(document: object) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document)
    return caught.value.problems


@pytest.mark.parametrize("row", ROWS, ids=_identity)
def test_bad_manifest_is_refused_with_path_and_reason_and_by_the_crd_if_it_can_express_that(
    row: dict[str, Any], changed: Change, admit: Callable[..., list[str]]
) -> None:
    document = changed(row["change"])
    (problem,) = _problems(document)
    assert problem.path == row["path"]
    assert row["reason"] in problem.reason
    document["metadata"]["name"] = document["metadata"]["name"] or ("" if row.get("crd", True) else "digits")
    assert bool(admit(document)) is row.get("crd", True)


ACCEPTED: dict[str, dict[str, Any]] = {
    "as the cluster shows it": {
        "metadata.uid": "6f1c",
        "metadata.generation": 3,
        "metadata.managedFields": [{"manager": "kubectl", "operation": "Apply"}],
        "status": {"phase": "Running"},
    },
    "points in the order of time": {
        "spec.scaling": {"utility": {"points": [{"seconds": 30, "value": 2}, {"seconds": 60, "value": 1}]}}
    },
    "claim beside other mounts": {
        "spec.checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"},
        "spec.workerGroups[1].template.spec.containers[0].volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "data", "mountPath": "/checkpoints/logs"},
        ],
    },
    "GPUs": {"spec.workerGroups[0].device": "gpu"},
}


@pytest.mark.parametrize("change", ACCEPTED.values(), ids=ACCEPTED)
def test_what_users_and_clusters_write_is_accepted_by_both(
    change: dict[str, Any], changed: Change, admit: Callable[..., list[str]]
) -> None:
    assert parse_manifest(changed(change)).metadata.name == "digits"
    own = {path: value for path, value in change.items() if path.startswith("spec")}
    assert admit(changed(own)) == []


def test_everything_not_available_yet_is_in_the_table() -> None:
    refused = {row["path"].replace("[1]", "[]") for row in ROWS if "not available yet" in row["reason"]}
    assert refused == {limit.path for limit in NOT_YET}


def test_good_manifest_is_admitted_by_both_with_the_same_defaults_and_survives_a_round_trip(
    good: Document, changed: Change, admit: Callable[..., list[str]], defaulted: Callable[[Document], Document]
) -> None:
    job = parse_manifest(good)
    assert admit(good) == []
    assert parse_manifest(job.model_dump(mode="json", by_alias=True)) == job
    assert HeteroTrainingJob.model_validate_json(job.model_dump_json(by_alias=True)) == job
    of_models = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert defaulted(good)["spec"] == of_models["spec"]
    nulls = {"spec.batching": None, "spec.workerGroups[0].maxReplicas": None, "spec.workerGroups[0].device": None}
    assert parse_manifest(changed(nulls)) == job, "null counts as absent"


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {
                "spec.workerGroups[0].replica": 3,
                "spec.workerGroups[1].name": "fast",
                "spec.workerGroups[1].minReplicas": "two",
                "spec.workerGroups[1].batchSize": {"min": -1},
                "spec.runPolicy": {"schedulingPolicy": {"queueName": "gold"}},
                "spec.training.steps": 3,
                "spec.batching": {"policy": "Greedy", "interval": 0},
            },
            [
                *("spec.workerGroups[0].replica", WHERE + "name", WHERE + "minReplicas", "spec.training"),
                "spec.workerGroups[1].batchSize.min: must be at least 0, found -1",
                *("spec.batching.policy", "spec.batching.interval"),
                "spec.runPolicy.schedulingPolicy: is not available yet; leave it out",
            ],
        ),
        # a malformed field causes no problem elsewhere
        ({"spec.workerGroups[1].minReplicas": 3, "spec.workerGroups[1].replicas": "many"}, [WHERE + "replicas"]),
        (
            {f"{WHERE}template.spec.volumes": [{"name": "x", "iscsi": {"lun": 0}}]},
            [f"{WHERE}template.spec.volumes[0].iscsi.{name}" for name in ("iqn", "targetPortal")],
        ),
        ({"spec.training.seed": {1, 2}}, ["holds what JSON cannot express"]),
        ({"spec.batching": {"deadBand": float("nan")}}, ["spec.batching.deadBand"]),
    ],
)
def test_all_problems_are_reported_at_once(change: dict[str, Any], lines: list[str], changed: Change) -> None:
    found = [line if line in lines else line.split(": ")[0] for line in map(str, _problems(changed(change)))]
    assert sorted(found) == sorted(lines)


def test_what_is_no_job_is_refused_without_judging_its_fields() -> None:
    for document in (None, "text", [1]):
        assert "must be a mapping" in _problems(document)[0].reason
    problems = _problems({"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2}})
    assert [str(problem) for problem in problems] == [
        "apiVersion: must be heterotrain.dev/v1alpha1, found 'batch/v1'",
        "kind: must be HeteroTrainingJob, found 'Job'",
    ]


@pytest.mark.parametrize("bounds", [(1, None), (3, None), (1, 2), (1, 4), (3, 4)], ids=str)
@pytest.mark.parametrize("own", [1, 3])
@pytest.mark.parametrize("of_job", [None, 1, 3, 5])
def test_both_judge_the_replicas_that_hold(
    of_job: int | None, own: int, bounds: tuple[int, int | None], alone: Document, admit: Callable[..., list[str]]
) -> None:
    least, most = bounds
    alone["spec"]["replicas"] = of_job
    alone["spec"]["workerGroups"][0] |= {"replicas": own, "minReplicas": least, "maxReplicas": most}
    holds = own if of_job is None else of_job
    wrong = [*["minReplicas"] * (least > holds), *["maxReplicas"] * (most is not None and most < holds)]
    assert [message.split()[0] for message in admit(alone)] == wrong
    assert [problem.path.rpartition(".")[2] for problem in (_problems(alone) if wrong else ())] == wrong


def test_replicas_of_a_job_of_several_groups_are_refused(changed: Change, admit: Callable[..., list[str]]) -> None:
    document = changed({"spec.replicas": 9})
    assert [problem.path for problem in _problems(document)] == ["spec.replicas"]
    assert admit(document) == ["spec.replicas is only for jobs with one worker group; set spec.workerGroups[].replicas"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must hold exactly one document, found 0"),
        ("a: 1\n---\nb: 2\n", "must hold exactly one document, found 2"),
        ("- a\n", "must hold a mapping, found a list"),
        ("a: [1\n", "is not YAML: line 2"),
        ("a: !!python/object:os.system x\n", "is not YAML: line 1, column 4"),
        ("spec:\n  seed: 1\n  seed: 2\n", "line 3, column 3: repeated key 'seed'"),
        ("a: \x07\n", "is not YAML"),
        ("[" * 1500, "nested too deeply"),
        ("a: \udcff", "is not UTF-8 text"),
        (None, "cannot be read"),
    ],
)
def test_file_that_holds_no_manifest_is_refused_by_name(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_scalars_are_read_as_a_cluster_reads_them(tmp_path: Path) -> None:
    text = (HERE / "good_manifest.yaml").read_text()
    text = text.replace("  name: digits\n", "  name: digits\n  labels: {since: 2026-01-01}\n")
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("    replicas: 1\n", "    flops: 1.0e12\n") + "---\n")
    job = load_manifest(path)
    assert job.metadata.labels == {"since": "2026-01-01"}
    assert job.spec.worker_groups[0].flops == 1.0e12
