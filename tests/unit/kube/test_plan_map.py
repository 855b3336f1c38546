"""Plan and memory survive the way through a ConfigMap, and whatever else is found there harms nobody."""

from __future__ import annotations

import pytest

from heterotrain.contract import Member, Plan
from heterotrain_operator.clusters.kube.objects.plan_map import StoredPlan, build_plan_map, read_plan_map
from heterotrain_operator.core.memory.job import RestartBudget
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.kube.documents import JOB_UID, Document, job

PLAN = Plan(7, 2, "step", (Member("digits-small-0", "u1", "10.0.0.7:29500", "small", 192),))
MEMORY = Memory(
    plan_version=7,
    generation=2,
    budget=RestartBudget(restarts=1),
    workers=(WorkerMemory(batch_cost=BatchCost(speed=12.5)),),
)


def as_shown(document: Document) -> Document:
    """The ConfigMap with what the API server adds."""
    return {**document, "metadata": {**document["metadata"], "resourceVersion": "42", "uid": "u9"}}


def test_what_is_written_is_read_back() -> None:
    written = build_plan_map(job(), JOB_UID, PLAN.to_json(), MEMORY.to_json())
    assert read_plan_map(as_shown(written)) == StoredPlan("42", PLAN, "", MEMORY, "")


def test_map_belongs_to_the_job() -> None:
    metadata = build_plan_map(job(), JOB_UID, None, "{}")["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("digits-plan", "team-a")
    assert metadata["ownerReferences"][0]["uid"] == JOB_UID
    assert metadata["labels"]["heterotrain.dev/job-name"] == "digits"
    # The Service and the operator select workers by their role.
    assert "heterotrain.dev/job-role" not in metadata["labels"]


def test_before_the_first_plan_there_is_only_memory() -> None:
    stored = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, None, MEMORY.to_json())))
    assert (stored.plan, stored.plan_problem, stored.memory) == (None, "", MEMORY)


def test_no_map_holds_nothing() -> None:
    assert read_plan_map(None) == StoredPlan()


@pytest.mark.parametrize("data", [None, {}])
def test_emptied_map_holds_nothing_and_has_a_version(data: Document | None) -> None:
    assert read_plan_map({"metadata": {"resourceVersion": "3"}, "data": data}) == StoredPlan("3")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "plan.json: not JSON"),
        ("{", "plan.json: not JSON"),
        ("[]", "plan.json: expected an object"),
        ("[" * 100_000, "plan.json: is nested too deeply"),
        (PLAN.to_json().replace('"schema": 1', '"schema": 9'), "plan.json: schema: 9 is newer"),
        (PLAN.to_json().replace("192", "191", 1), "plan.json: globalBatchSize: 191"),
        ('{"schema": 1' + "0" * 5000 + "}", "plan.json: not JSON"),
    ],
    ids=["empty", "torn", "list", "deep", "newer", "sum", "long-number"],
)
def test_corrupt_plan_is_reported_and_leaves_the_memory(text: str, problem: str) -> None:
    stored = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, text, MEMORY.to_json())))
    assert stored.plan is None
    assert stored.plan_problem.startswith(problem)
    assert stored.memory == MEMORY


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "memory.json: memory: schema None"),
        ("nonsense", "memory.json: memory: not JSON: Expecting value"),
        ('{"schema": 1, "restarts": "two"}', "memory.json: memory.restarts: expected a whole number"),
        ('{"schema": 1, "created_at": 1' + "0" * 400 + "}", "memory.json: memory.created_at: expected a number"),
        ("[" * 100_000, "memory.json: memory: is nested too deeply"),
    ],
    ids=["schema", "words", "type", "huge", "deep"],
)
def test_corrupt_memory_is_reported_and_leaves_the_plan(text: str, problem: str) -> None:
    stored = read_plan_map(as_shown(build_plan_map(job(), JOB_UID, PLAN.to_json(), text)))
    assert stored.memory is None
    assert stored.memory_problem.startswith(problem)
    assert stored.plan == PLAN
