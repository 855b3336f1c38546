"""Operator, trainer image, memory and objects may be a version apart: the policy of docs/compatibility.md, each way.

`previous` holds what the version before this one writes. What the next one writes is what this one does, with fields
that are not known here in every object.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import (
    EvaluationRecord,
    Plan,
    StepRecord,
    Termination,
    TrainingConfig,
    parse_plan,
)
from heterotrain_operator.api import ManifestError, parse_manifest, parse_stored, training_config
from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.clusters.kube.status.schema import tolerated
from heterotrain_operator.core.columns import columns_of
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.noise import Variation
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.series import Series
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.remembered.sizes import Resize
from heterotrain_operator.core.remembered_worker import RememberedWorker, key_of
from heterotrain_operator.core.state import Remembered, members_memory
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.metrics.pods import own_samples, parse_metrics
from unit.core.layouts import stored_names
from unit.kube.documents import job

PREVIOUS = Path(__file__).parent / "previous"
UNKNOWN = {"fromTheFuture": {"values": [1, {"x": None}]}}


def previous_metrics() -> str:
    return (PREVIOUS / "metrics.txt").read_text()


def previous(name: str) -> str:
    return (PREVIOUS / f"{name}.json").read_text()


def next_of(text: str) -> str:
    """The document as the next version writes it."""

    def extended(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: extended(value) for key, value in node.items()} | UNKNOWN
        return [extended(entry) for entry in node] if isinstance(node, list) else node

    return json.dumps(extended(json.loads(text)))


def previous_plan() -> Plan:
    return parse_plan(previous("plan"))


# --- what an older version wrote ---------------------------------------------------------------------------------


def test_plan_of_the_previous_operator_is_followed() -> None:
    plan = previous_plan()
    assert (plan.version, plan.generation, plan.batch_sizes) == (3, 1, (121, 52, 19))
    assert [member.micro_batch_size for member in plan.members] == [0, 0, 16]


def test_memory_of_the_previous_operator_keeps_budgets_and_measurements() -> None:
    memory = Remembered.from_json(previous("memory"))
    assert (memory.budget.restarts, memory.plan_version, memory.batching.adjustments) == (2, 3, 2)
    assert [round(worker.step_time.mean_seconds, 3) for worker in memory.workers] == [0.138, 0.138, 0.144]
    assert [worker.least_batch for worker in memory.workers] == [8, 8, 8]


def test_config_of_the_previous_operator_is_taken() -> None:
    config = TrainingConfig.from_json(previous("config"))
    assert (config.epochs, config.target_metric, config.last_step, config.endless) == (5, "accuracy", "Drop", False)


def test_last_words_and_records_of_the_previous_trainer_are_understood() -> None:
    words = Termination.from_text(previous("termination"))
    assert (words.step, words.message, words.script_error) == (41, "RuntimeError: shapes do not match", True)
    assert StepRecord.from_json(previous("step")).samples == 48
    assert EvaluationRecord.from_json(previous("evaluation")).metrics == {"accuracy": 0.93}


def test_metrics_of_the_previous_trainer_are_read_and_what_it_does_not_export_is_not_known() -> None:
    assert parse_metrics(previous_metrics()) == WorkerMetrics(
        plan_version=3,
        generation=1,
        batch_size=52,
        step=120,
        total_steps=150,
        epoch=4,
        phase="training",
        steps=40.0,
        samples=2080.0,
        own_seconds=4.5,
        own_seconds_squared=0.51,
        wait_seconds=0.5,
        own_seconds_ewma=0.1125,
        loss=0.25,
        memory_bytes=3.5e8,
        cpu_limit=0.5,
        memory_peak_bytes=4e8,
        memory_limit_bytes=1e9,
        memory_batch_size=52,
        least_batch_size=8,
        cpu_throttled_seconds=None,
        protocol=1,
        rank=None,
    )


def test_status_of_the_previous_operator_is_gone_on_from_as_it_is() -> None:
    status = json.loads(previous("status"))
    assert tolerated(status) == status


# --- what a newer version will write -----------------------------------------------------------------------------


def test_plan_of_the_next_operator_is_followed() -> None:
    assert parse_plan(next_of(previous_plan().to_json())) == previous_plan()


def test_memory_of_the_next_operator_keeps_budgets_and_measurements() -> None:
    memory = Remembered.from_json(previous("memory"))
    newer = json.loads(next_of(memory.to_json()))
    newer["schema"] = 2
    known = len(COLUMNS)
    newer["workers"] = [[*row, *[0] * (known - len(row)), 0, 1.5, 0, 7] for row in newer["workers"]]
    assert Remembered.from_json(json.dumps(newer)) == memory


def test_config_of_the_next_operator_is_taken() -> None:
    config = TrainingConfig(epochs=5, target_value=0.5)
    assert TrainingConfig.from_json(next_of(config.to_json())) == config


def test_last_words_and_records_of_the_next_trainer_are_understood() -> None:
    words = Termination(False, 41, "why", script_error=True)
    assert Termination.from_text(next_of(words.to_json())) == words
    step = StepRecord(1.0, 2, 0, 3, 4, 4, 0.1, 0.2, None, "")
    assert StepRecord.from_json(next_of(step.to_json())) == step


def test_series_labels_and_phases_that_only_the_next_trainer_has_are_passed_over() -> None:
    known = parse_metrics(previous_metrics())
    labels = 'training_job="digits",worker="digits-small-0",group="small",plan_version="3"'
    newer = previous_metrics().replace(labels, f'zone="a",{labels},device="cuda:0"').replace('"training"', '"tuning"')
    newer += f"""# TYPE heterotrain_worker_from_the_future histogram
heterotrain_worker_from_the_future_bucket{{{labels},le="+Inf"}} NaN
heterotrain_worker_from_the_future_count{{{labels}}} -1
heterotrain_worker_from_the_future_total{{{labels}}} 1e300 1700000000000
"""
    assert known is not None
    assert parse_metrics(newer) == replace(known, phase="tuning")


def test_status_of_the_next_operator_is_gone_on_from_by_what_is_known() -> None:
    assert tolerated(json.loads(next_of(previous("status")))) == json.loads(previous("status"))


def test_command_line_shows_a_job_of_the_next_operator_by_what_is_known() -> None:
    metadata = {"name": "digits", "namespace": "team-a", "uid": "u1"}
    known = {"metadata": metadata, "spec": {}, "status": json.loads(previous("status"))}
    assert read_job(json.loads(next_of(json.dumps(known)))) == read_job(known)
    newer = {**known, "status": {**known["status"], "phase": "Queued"}}
    assert read_job(newer).phase == "Queued"


def test_job_admitted_by_the_next_resource_definition_is_read_and_its_unknown_fields_are_named() -> None:
    wanted = job()
    document = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
    # What else metadata may hold is Kubernetes' to judge: 253 characters of prefix, and more labels than anybody needs.
    document["metadata"] |= {
        **UNKNOWN,
        "annotations": {f"{'d' * 253}/{'n' * 13}": ""},
        "labels": {f"l{n}": "" for n in range(300)},
    }
    document["spec"] |= UNKNOWN
    document["spec"]["training"] |= UNKNOWN
    document["spec"]["workerGroups"][1] |= UNKNOWN
    found, unknown = parse_stored(document)
    assert (found.spec, found.metadata.name, found.metadata.uid) == (
        wanted.spec,
        wanted.metadata.name,
        wanted.metadata.uid,
    )
    assert sorted(unknown) == [
        "spec.fromTheFuture",
        "spec.training.fromTheFuture",
        "spec.workerGroups[1].fromTheFuture",
    ]


def test_what_is_passed_over_in_a_cluster_is_refused_where_a_user_submits_it() -> None:
    document = job().model_dump(mode="json", by_alias=True, exclude_none=True)
    document["spec"]["training"] |= UNKNOWN
    with pytest.raises(ManifestError, match=r"spec.training.fromTheFuture: unknown field"):
        parse_manifest(document)


# --- what an older version will read of ours ---------------------------------------------------------------------


def test_trainer_of_the_previous_version_knows_all_that_a_job_without_new_features_sends_it() -> None:
    """It refuses a config with a field that it does not know."""
    known = {*json.loads(previous("config")), "backend", "endless"}
    told = json.loads(training_config(job(), "small").to_json())
    assert told.keys() <= known


def test_trainer_of_the_previous_version_finds_in_a_plan_all_that_it_asks_for() -> None:
    ours, theirs = json.loads(previous_plan().to_json()), json.loads(previous("plan"))
    assert ours == theirs, "field by field, in the schema that it reads"


def test_operator_of_the_previous_version_finds_all_series_that_it_reads() -> None:
    theirs = {sample.name for sample in own_samples(previous_metrics())}
    assert theirs <= {row.series for row in table.WORKERS}


def test_rows_of_the_previous_operator_get_keys_with_which_it_reads_them_as_before() -> None:
    """It takes rows for those of the plan's members by rank, and passes over the keys beside them."""
    memory, plan = Remembered.from_json(previous("memory")), previous_plan()
    keyed = replace(memory, workers=members_memory(memory, plan))
    assert [worker.key for worker in keyed.workers] == [key_of(member.uid) for member in plan.members]
    ours = json.loads(keyed.to_json())
    del ours["worker_keys"]
    assert ours == json.loads(previous("memory"))


def test_operator_of_the_previous_version_knows_all_that_its_own_memory_holds() -> None:
    """It refuses a memory with a field or a column that it does not know."""
    ours, theirs = json.loads(Remembered.from_json(previous("memory")).to_json()), json.loads(previous("memory"))
    assert ours == theirs


RETIRED = ""
"""A column that older versions wrote; nothing else may be written in it."""

COLUMNS = [
    *("counted_steps", "counted_seconds", "counted_squares", "mean_seconds", "variance", "steps", "cpu_limit"),
    *("speed", "sum_w", "sum_wb", "sum_wbb", "sum_wy", "sum_wby"),
    *("raised_from", "raised_throughput", RETIRED, "cap", RETIRED, "noted", "silent_since"),
    *("guessed_batch", "replaced_batch", "limit_mib", "low_batch", "low_mib", "high_batch", "high_mib"),
    *("failed_batch", "predicted", "least_batch", "place", "left_out", "idle", "retries"),
    *("cpu", "throttled", "waited", "cause", "thousandths"),
    *("healthy_seconds", "healthy_batch", "healthy_windows", "spread", "level", "evidence", "since_step", "named"),
    *("roughness", "surprise", "basis", "unfelt", "limit_change", "unbound_limit", "trend"),
    "failures",
    "advised",
    "held",
    *("slow_seconds", "slow_batch", "turns", "at_step", "together"),
    "numbers",
    *("tries", "steady_at"),
]


def test_columns_of_a_workers_memory_are_only_ever_added_at_the_end() -> None:
    kinds = (
        RememberedWorker,
        StepTime,
        BatchCost,
        MemoryUse,
        ThroughputCap,
        ResourceUse,
        Variation,
        Evidence,
        Relapses,
        Series,
    )
    columns = sorted((number, name) for kind in kinds for number, name, _ in columns_of(kind))
    assert columns == [(number, name) for number, name in enumerate(COLUMNS) if name != RETIRED]


FIELDS = {
    *("plan_version", "generation", "created_at", "started_at", "starting_at", "pods_created_at"),
    *("published_at", "restarts", "interruptions", "unexplained_at", "generation_at", "placements"),
    *("half_placed_at", "most_placed", "draining", "restart_at", "script_error_step", "progress_step"),
    *("progress_at", "advanced_at", "between_steps", "stepped", "slow_step_seconds", "outcome", "ended_at"),
    *("reason", "message", "stage", "adjustments", "resumed_step", "resumed_from", "promised_seconds"),
    *("replaced_seconds", "retreated_seconds", "doubt", "missed_promises", "gathered", "kept_looks"),
    *("rested_on", "expected_steps", "judged", "start_seconds", "windows", "persistence", "protocol"),
    *("changing", "joining", "entering", "leaving", "unfit_at", "changed_at", "replacements", "replaced_at"),
    *("switching_at", "switching", "switching_step", "switching_seconds", "transition_seconds"),
    *("idle_seconds", "ending", "swaps", "joins", "leaves", "pending", "replacing", "removed", "arrivals"),
    *(
        "departures",
        "noise_caution_weight",
        "trial_seconds",
        "trial_gap",
        "whole_version",
        "whole_counted",
        "whole_counted_seconds",
    ),
    *("whole_mean", "whole_variance", "whole_steps", "whole_windows", "trial_steps", "back_gap"),
    *("back_steps", "learned"),
    *("resized", "points", "refusals", "best_size", "tried", "at_rest", "resized_at", "searched_as"),
    *("first_end_seconds", "rest_throughput", "off_intervals", "rest_version", "rest_steps", "rest_seconds", "said"),
}


def test_places_of_removed_stragglers_are_sizes_below_those_of_the_spec_and_stay_so_for_the_version_before() -> None:
    written = '{"schema":1,"removed":[["a",3,1]],"workers":[]}'
    memory = Remembered.from_json(written)
    assert memory.sizes.removed == (Resize("a", 3, -1),)
    assert memory.to_json() == written


def test_fields_of_a_jobs_memory_keep_their_names_in_one_object_whatever_values_they_belong_to() -> None:
    assert stored_names(Remembered) >= FIELDS
