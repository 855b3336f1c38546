"""Scenarios, schedules and recorded runs of any origin: each is read, or refused in words, and in little space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.contract import StepRecord
from heterotrain_operator.api import ManifestError
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.experiments.scenarios.reading import load_simulation, parse_simulation, scenario_text
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.trial import limits_of
from hostile import ODD_TEXT, spoilt

JOB = Job("job", (Group("fast", 2, cpu_limit=1.0), Group("slow", 1, cpu_limit=0.5)), 96)
SCHEDULE: dict[str, Any] = {
    "changes": [
        {"atStep": 10, "label": "uneven", "cpuLimits": {"fast": "250m", "job-fast-1": 2}},
        {"atStep": 20, "neighbours": {"slow": 2}},
    ]
}
SCENARIO: dict[str, Any] = {
    "name": "trial",
    "job": {
        "workerGroups": [{"name": "fast"}, {"name": "slow", "replicas": 2}],
        "training": {"globalBatchSize": 96},
    },
    "workers": {
        "all": {"time": {"affine": {"fixedSeconds": 0.01, "secondsPerSample": 0.002}}},
        "slow": {"scale": 4, "noise": {"independent": {"variation": 0.1}}},
    },
    "events": [{"atStep": 3, "untilStep": 9, "jump": {"factor": 2}}],
    "communication": {"ring": {"modelMebibytes": 100, "mebibytesPerSecond": 1000}},
    "intervals": 5,
}
MANIFEST: dict[str, Any] = {
    "apiVersion": "heterotrain.dev/v1alpha1",
    "kind": "HeteroTrainingJob",
    "metadata": {"name": "job"},
    "spec": {
        "workerGroups": [
            {"name": "cpu", "replicas": 1, "template": {"spec": {"containers": [{"name": "t", "image": "trainer"}]}}}
        ],
        "training": {"globalBatchSize": 32, "steps": 10},
    },
}
RECORD = {"worker": "job-cpu-0", **json.loads(StepRecord(1e9, 3, 0, 1, 32, 32, 0.1, 0.0, None, "").to_json())}
STEPS = 12


def check(error: ManifestError) -> None:
    assert error.problems
    assert all(len(str(problem).encode(errors="replace")) < 10_000 for problem in error.problems)


def run_of(folder: Path, *lines: str) -> Path:
    """A folder that a run has left, with these lines in its series."""
    (folder / "manifest.yaml").write_text(json.dumps(MANIFEST), "utf-8")
    (folder / "optimal-1-series.jsonl").write_text("\n".join(lines), "utf-8", errors="replace")
    return folder


@settings(max_examples=200)
@given(spoilt(SCENARIO))
def test_any_scenario_is_one_to_simulate_or_has_problems(document: Any) -> None:
    try:
        assert parse_simulation(document, Path()).runs()
    except ManifestError as error:
        check(error)


@settings(max_examples=200)
@given(spoilt(SCHEDULE).map(json.dumps) | st.text() | ODD_TEXT)
def test_any_schedule_is_one_to_follow_or_has_problems(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "schedule.yaml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    try:
        assert load_schedule(file, JOB, limits_of(JOB)).levels
    except ManifestError as error:
        check(error)


@settings(max_examples=200)
@given(spoilt(RECORD).map(json.dumps), st.text())
def test_any_recorded_run_is_a_scenario_or_has_problems(
    tmp_path_factory: pytest.TempPathFactory, line: str, torn: str
) -> None:
    folder = run_of(tmp_path_factory.getbasetemp(), *[line] * STEPS, torn)
    try:
        assert parse_simulation(yaml.safe_load(scenario_text(folder)), folder).runs()
    except ManifestError as error:
        check(error)


def test_recorded_steps_of_no_batch_are_no_measurements(tmp_path: Path) -> None:
    folder = run_of(tmp_path, *[json.dumps({**RECORD, "batch": 0})] * STEPS)
    with pytest.raises(ManifestError, match="holds 0 measured steps of job-cpu-0"):
        load_simulation(folder)
