"""A job at the limit that admission sets fits into its ConfigMap; one worker more is refused, in words."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TypeVar

import pytest

from heterotrain.contract import MAX_PLAN_BYTES, Member, Plan, parse_plan
from heterotrain_operator.api import HeteroTrainingJob, ManifestError
from heterotrain_operator.api.base import MAX_BATCH
from heterotrain_operator.api.size import CONFIG_MAP_BYTES, MOST_BYTES, bytes_of
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY, PACKED_MEMORY_KEY
from heterotrain_operator.clusters.kube.objects.plan_map import PLAIN_BYTES, build_plan_map, bytes_in, read_plan_map
from heterotrain_operator.clusters.kube.plan_store import PlanStore
from heterotrain_operator.core.columns import columns_of
from heterotrain_operator.core.lifecycle.prior import PLACES
from heterotrain_operator.core.memory.job import RestartBudget
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.prediction.variation import Variation
from heterotrain_operator.core.state import MAX_BYTES, Memory
from heterotrain_operator.core.worker_memory import WorkerMemory, key_of
from kube_server.api_server import ApiServer
from unit.kube.documents import JOB_UID, groups, job

V = TypeVar("V")
NAMES = [("digits", "cpu"), ("a" * 30, "b" * 27)]


def sized(name: str, group: str, replicas: int) -> HeteroTrainingJob:
    wanted = {**groups(name=group, replicas=replicas), "training": {"globalBatchSize": 100_000}}
    return job(wanted, metadata={"name": name})


def most(name: str, group: str) -> int:
    return MOST_BYTES // bytes_of(name, sized(name, group, 1).spec.worker_groups[0])


def largest_plan(name: str, group: str, members: int) -> Plan:
    """Every figure as long as it can be."""
    address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:29500"
    return Plan(
        2**53,
        2**53,
        "epoch",
        tuple(
            Member(f"{name}-{group}-{index}", f"{index:036d}", address, group, MAX_BATCH - index, MAX_BATCH - index)
            for index in range(members)
        ),
    )


def memory_of(workers: int, plan_version: int = 7) -> Memory:
    """Of workers of whom everything is known, with digits that do not compress."""
    draw = random.Random(3)

    def known() -> WorkerMemory:
        def floats(kind: type[V]) -> V:
            return kind(**{name: draw.uniform(0.01, 1000) for _, name, each in columns_of(kind) if type(each) is float})

        bounds = {name: draw.randrange(500) for name in ("guessed_batch", "low_batch", "high_batch", "failed_batch")}
        peaks = {name: draw.randrange(80000) for name in ("limit_mib", "low_mib", "high_mib")}
        cap = {name: draw.randrange(500) for name in ("raised_from", "cap")}
        return WorkerMemory(
            floats(StepTime),
            floats(BatchCost).with_predicted(1),
            MemoryUse(**bounds, **peaks),
            replace(floats(ThroughputCap), **cap),
            noted=draw.randrange(500),
            silent_since=draw.uniform(0.01, 1000),
            replaced_batch=draw.randrange(500),
            least_batch=8,
            place=draw.randrange(PLACES),
            key=key_of(str(draw.random())),
            variation=Variation(draw.randrange(10, 500)),
            # All share one turn in each control interval, and forget it after some hundreds.
            relapses=Relapses(draw.uniform(0.01, 10), draw.randrange(500), draw.randrange(100), draw.randrange(3000)),
        )

    rows = tuple(known() for _ in range(workers))
    return Memory(plan_version=plan_version, budget=RestartBudget(restarts=3), workers=rows).rounded()


@pytest.mark.parametrize(("name", "group"), NAMES)
def test_largest_job_fits_into_its_config_map(name: str, group: str) -> None:
    workers = most(name, group)
    admitted = sized(name, group, workers)
    plan, memory = largest_plan(name, group, workers), memory_of(workers)
    assert parse_plan(plan.to_json()) == plan
    body = build_plan_map(admitted, JOB_UID, plan.to_json(), memory.to_json())
    assert bytes_in(body) <= CONFIG_MAP_BYTES
    stored = read_plan_map(body)
    assert (stored.plan, stored.memory) == (plan, memory)
    assert len(plan.to_json()) < MAX_PLAN_BYTES
    assert len(memory.to_json()) < MAX_BYTES


@pytest.mark.parametrize(("name", "group"), NAMES)
def test_one_worker_more_is_refused_with_the_number_that_fits(name: str, group: str) -> None:
    workers = most(name, group)
    with pytest.raises(ManifestError, match=rf"^spec.workerGroups: {workers + 1} workers are too many") as caught:
        sized(name, group, workers + 1)
    (stated,) = re.findall(r"with these names (\d+) workers fit", str(caught.value))
    assert int(stated) == workers


def test_three_thousand_workers_of_usual_names_are_admitted() -> None:
    assert most("digits", "cpu") > 3000


def test_small_memory_stays_text_that_people_and_older_operators_read() -> None:
    body = build_plan_map(job(), JOB_UID, None, memory_of(100).to_json())
    assert Memory.from_json(body["data"][MEMORY_KEY]) == memory_of(100)
    assert "binaryData" not in body


def test_large_memory_is_packed_and_its_text_emptied() -> None:
    text = memory_of(1500).to_json()
    assert len(text) > PLAIN_BYTES
    body = build_plan_map(job(), JOB_UID, None, text)
    assert body["data"] == {MEMORY_KEY: ""}
    assert bytes_in(body) < len(text) * 0.6
    assert read_plan_map(body).memory == memory_of(1500)


def test_text_that_an_older_operator_writes_beside_a_packed_memory_counts() -> None:
    body = build_plan_map(job(), JOB_UID, None, memory_of(1500).to_json())
    body["data"][MEMORY_KEY] = Memory(budget=RestartBudget(restarts=9)).to_json()
    assert read_plan_map(body).memory == Memory(budget=RestartBudget(restarts=9))


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        ("%%%", "memory.json.gz: "),
        ("AAAA", "memory.json.gz: "),
        ("", "memory.json.gz: is torn"),
        (
            build_plan_map(job(), JOB_UID, None, " " * (MAX_BYTES + 1))["binaryData"][PACKED_MEMORY_KEY],
            f"memory.json.gz: is torn, or more than {MAX_BYTES} bytes once unpacked",
        ),
    ],
    ids=["no-base64", "no-gzip", "nothing", "bomb"],
)
def test_packed_memory_that_is_none_is_reported(packed: str, problem: str) -> None:
    stored = read_plan_map({"data": {MEMORY_KEY: ""}, "binaryData": {PACKED_MEMORY_KEY: packed}})
    assert stored.memory is None
    assert stored.memory_problem.startswith(problem)


def test_what_would_not_fit_goes_without_what_is_known_of_single_workers(
    api: ApiServer, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Admission reckons with what measurements take; what is remembered of the job itself is never lost."""
    store = PlanStore(gateway)
    memory = memory_of(12_000)
    store.write(job(), JOB_UID, None, memory)
    body = api.get("configmaps", "digits-plan")
    assert bytes_in(body) <= CONFIG_MAP_BYTES
    assert read_plan_map(body).memory == replace(memory, workers=())
    assert "too small for what is remembered" in caplog.text
