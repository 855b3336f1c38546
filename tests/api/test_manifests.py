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
ROWS: list[dict[str, Any]] = yaml.safe_load((HERE / "bad_manifests.yaml").read_text())


def _identity(row: dict[str, Any]) -> str:
    return f"{row['path']}: {row['reason'][:40]}"


def _problems(document: object) -> tuple[Problem, ...]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document)
    return caught.value.problems


@pytest.mark.parametrize("row", ROWS, ids=_identity)
def test_bad_manifest_is_refused_with_path_and_reason(row: dict[str, Any], changed: Change) -> None:
    (problem,) = _problems(changed(row["change"]))
    assert problem.path == row["path"]
    assert row["reason"] in problem.reason


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("crd", True)], ids=_identity)
def test_bad_manifest_is_refused_by_the_crd(
    row: dict[str, Any], changed: Change, admit: Callable[..., list[str]]
) -> None:
    assert admit(changed(row["change"]))


@pytest.mark.parametrize("row", [row for row in ROWS if not row.get("crd", True)], ids=_identity)
def test_what_the_table_says_the_crd_cannot_express_it_admits(
    row: dict[str, Any], changed: Change, admit: Callable[..., list[str]]
) -> None:
    document = changed(row["change"])
    document["metadata"]["name"] = document["metadata"]["name"] or "digits"
    assert admit(document) == []


def test_everything_not_available_yet_is_in_the_table() -> None:
    refused = {row["path"].replace("[1]", "[]") for row in ROWS if "not available yet" in row["reason"]}
    assert refused == {limit.path for limit in NOT_YET}


def test_good_manifest_is_admitted_by_both(good: Document, admit: Callable[..., list[str]]) -> None:
    assert parse_manifest(good).spec.total_replicas == 3
    assert admit(good) == []


def test_manifest_survives_a_round_trip(good: Document) -> None:
    job = parse_manifest(good)
    written = job.model_dump(mode="json", by_alias=True)
    assert parse_manifest(written) == job
    assert HeteroTrainingJob.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_defaults_of_the_crd_equal_those_of_the_models(
    good: Document, defaulted: Callable[[Document], Document]
) -> None:
    of_models = parse_manifest(good).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert defaulted(good)["spec"] == of_models["spec"]


def test_all_problems_are_reported_at_once(changed: Change) -> None:
    document = changed(
        {
            "spec.workerGroups[0].replica": 3,
            "spec.workerGroups[1].name": "fast",
            "spec.workerGroups[1].minReplicas": "two",
            "spec.workerGroups[1].batchSize": {"min": 500},
            "spec.workerGroups[1].template.spec.containers[0].command": "python",
            "spec.training.mode": "ASP",
            "spec.training.steps": 3,
            "spec.batching": {"policy": "Greedy", "interval": 0},
        }
    )
    assert {problem.path for problem in _problems(document)} == {
        "spec.workerGroups[0].replica",
        "spec.workerGroups[1].name",
        "spec.workerGroups[1].minReplicas",
        "spec.workerGroups[1].template.spec.containers[0].command",
        "spec.training.mode",
        "spec.training.globalBatchSize",
        "spec.training",
        "spec.batching.policy",
        "spec.batching.interval",
    }


def test_malformed_field_causes_no_problem_elsewhere(changed: Change) -> None:
    document = changed({"spec.workerGroups[1].minReplicas": 3, "spec.workerGroups[1].replicas": "many"})
    assert [problem.path for problem in _problems(document)] == ["spec.workerGroups[1].replicas"]


def test_problems_are_rendered_one_per_line(changed: Change) -> None:
    document = changed({"spec.workerGroups[1].batchSize": {"min": -1}, "spec.training.mode": "ASP"})
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document)
    assert str(caught.value).splitlines() == [
        "spec.workerGroups[1].batchSize.min: must be at least 0, found -1",
        "spec.training.mode: ASP is not available yet; use BSP",
    ]


def test_template_lacking_two_fields_names_each_once(changed: Change) -> None:
    volume = {"name": "x", "iscsi": {"lun": 0}}
    paths = [problem.path for problem in _problems(changed({"spec.workerGroups[0].template.spec.volumes": [volume]}))]
    where = "spec.workerGroups[0].template.spec.volumes[0].iscsi"
    assert sorted(paths) == [f"{where}.iqn", f"{where}.targetPortal"]


@pytest.mark.parametrize("document", [None, "text", 3, [1]])
def test_document_that_is_no_mapping_is_refused(document: object) -> None:
    assert "must be a mapping" in _problems(document)[0].reason


def test_other_kinds_are_refused_without_judging_their_fields() -> None:
    problems = _problems({"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2}})
    assert [str(problem) for problem in problems] == [
        "apiVersion: must be heterotrain.dev/v1alpha1, found 'batch/v1'",
        "kind: must be HeteroTrainingJob, found 'Job'",
    ]


def test_cyclic_document_is_refused(good: Document) -> None:
    good["spec"]["training"] = good
    assert "nested more than 64 levels deep" in _problems(good)[0].reason


def test_value_outside_json_is_refused(changed: Change) -> None:
    assert "JSON cannot express" in _problems(changed({"spec.training.seed": {1, 2}}))[0].reason


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_number_that_is_not_finite_is_refused(changed: Change, number: float) -> None:
    (problem,) = _problems(changed({"spec.batching": {"deadBand": number}}))
    assert problem.path == "spec.batching.deadBand"


def test_null_counts_as_absent(changed: Change, good: Document) -> None:
    nulls = {"spec.batching": None, "spec.workerGroups[0].maxReplicas": None, "spec.workerGroups[0].device": None}
    assert parse_manifest(changed(nulls)) == parse_manifest(good)


def test_object_as_the_cluster_shows_it_is_accepted(changed: Change) -> None:
    shown = changed(
        {
            "metadata.uid": "6f1c",
            "metadata.generation": 3,
            "metadata.managedFields": [{"manager": "kubectl", "operation": "Apply"}],
            "status": {"phase": "Running", "conditions": [{"type": "Running", "status": "True"}]},
        }
    )
    assert parse_manifest(shown).metadata.generation == 3


def test_models_are_frozen(good: Document) -> None:
    job = parse_manifest(good)
    with pytest.raises(ValueError, match="frozen"):
        job.spec.batching.interval = 3  # type: ignore[misc]  # that mypy refuses it as well is the point


def test_loss_target_is_accepted(changed: Change) -> None:
    target = parse_manifest(changed({"spec.training.target": {"value": 0.1}})).spec.training.target
    assert target is not None
    assert (target.metric, target.mode, target.every_steps) == ("loss", None, 50)


def test_points_in_the_order_of_time_are_accepted(changed: Change, admit: Callable[..., list[str]]) -> None:
    points = [{"seconds": 30, "value": 2}, {"seconds": 60, "value": 1}, {"seconds": 90, "value": 0}]
    document = changed({"spec.scaling": {"utility": {"points": points}}})
    assert len(parse_manifest(document).spec.scaling.utility.points) == 3
    assert admit(document) == []


def test_claim_beside_other_mounts_is_accepted(changed: Change, admit: Callable[..., list[str]]) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/checkpoints/logs"}]
    document = changed(
        {
            "spec.checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"},
            "spec.workerGroups[1].template.spec.containers[0].volumeMounts": mounts,
        }
    )
    assert parse_manifest(document).spec.checkpoint.persistent_volume_claim == "digits"
    assert admit(document) == []


@pytest.mark.parametrize(
    "own",
    [{}, {"replicas": 1}, {"minReplicas": 3, "maxReplicas": 3}, {"replicas": 9, "maxReplicas": 4}, {"replicas": 5_000}],
    ids=str,
)
def test_replicas_of_the_job_hold_whatever_its_only_group_says(
    own: dict[str, int], alone: Document, admit: Callable[..., list[str]]
) -> None:
    alone["spec"]["workerGroups"][0] |= own
    spec = parse_manifest(alone).spec
    assert (spec.total_replicas, [group.replicas for group in spec.sized_groups]) == (3, [3])
    assert admit(alone) == []


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


def test_groups_say_their_own_replicas_where_the_job_says_none(good: Document) -> None:
    spec = parse_manifest(good).spec
    assert spec.replicas is None
    assert spec.sized_groups == spec.worker_groups


def test_of_a_job_of_several_groups_it_is_reported_only_that_replicas_are_for_one(
    changed: Change, admit: Callable[..., list[str]]
) -> None:
    document = changed({"spec.replicas": 9})
    assert [problem.path for problem in _problems(document)] == ["spec.replicas"]
    assert admit(document) == ["spec.replicas is only for jobs with one worker group; set spec.workerGroups[].replicas"]


def test_gpu_groups_are_accepted(changed: Change) -> None:
    assert parse_manifest(changed({"spec.workerGroups[0].device": "gpu"})).spec.worker_groups[0].device == "gpu"


# --- files


def _load(tmp_path: Path, text: str) -> HeteroTrainingJob:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_manifest(path)


def test_file_is_loaded() -> None:
    assert load_manifest(str(HERE / "good_manifest.yaml")).metadata.name == "digits"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must hold exactly one document, found 0"),
        ("a: 1\n---\nb: 2\n", "must hold exactly one document, found 2"),
        ("- a\n", "must hold a mapping, found a list"),
        ("just words\n", "must hold a mapping, found a str"),
        ("a: [1\n", "is not YAML: line 2"),
        ("a: !!python/object:os.system x\n", "is not YAML: line 1, column 4"),
        ("a: !!binary aGk=\n", "is not YAML: line 1, column 4"),
        ("spec:\n  seed: 1\n  seed: 2\n", "line 3, column 3: repeated key 'seed'"),
        ("a: \x07\n", "is not YAML"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_file_that_holds_no_manifest_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ManifestError) as caught:
        _load(tmp_path, text)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "job.yaml"))


def test_all_repeated_keys_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        _load(tmp_path, "a: 1\na: 2\nb:\n  c: 1\n  c: 1\n")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_unreadable_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        load_manifest(tmp_path / name)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ManifestError, match="is not UTF-8 text"):
        load_manifest(path)


def test_scalars_are_read_as_a_cluster_reads_them(tmp_path: Path) -> None:
    text = (HERE / "good_manifest.yaml").read_text()
    text = text.replace("  name: digits\n", "  name: digits\n  labels: {since: 2026-01-01}\n")
    job = _load(tmp_path, text.replace("    replicas: 1\n", "    flops: 1.0e12\n") + "---\n")
    assert job.metadata.labels == {"since": "2026-01-01"}
    assert job.spec.worker_groups[0].flops == 1.0e12
