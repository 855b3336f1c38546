"""When plan and memory are written, who may change them, and that the largest job fits into its ConfigMap."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from heterotrain.contract import MAX_PLAN_BYTES, MEMBERS_MAY_END, Member, Plan, parse_plan
from heterotrain_operator.api import HeteroTrainingJob, ManifestError
from heterotrain_operator.api.base import MAX_BATCH
from heterotrain_operator.api.rules.workers import CONFIG_MAP_BYTES, MOST_BYTES, bytes_of
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY, PACKED_MEMORY_KEY, PLAN_KEY
from heterotrain_operator.clusters.kube.objects.plan_map import (
    MAX_BYTES,
    PLAIN_BYTES,
    build_plan_map,
    bytes_in,
    read_plan_map,
)
from heterotrain_operator.clusters.kube.plan_store import PlanStore
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.columns import columns_of
from heterotrain_operator.core.lifecycle.prior import PLACES
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.noise import Variation
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.remembered.job import Outcome, RestartBudget
from heterotrain_operator.core.remembered_worker import RememberedWorker, key_of
from heterotrain_operator.core.state import Remembered
from kube_server.api_server import ApiServer, StatusError
from unit.kube.documents import JOB_UID, groups, job
from unit.kube.worlds import NAMES, World, owner, rebalance, refusing, stored, written


def test_nothing_is_written_while_nothing_changes(world: World, api: ApiServer) -> None:
    world.train()
    api.reads.clear()
    for _ in range(5):
        world.round()
    assert written(api) == []
    assert api.reads == []
    for _ in range(18):
        world.workers.train(steps=1)
        world.round(10)
    assert written(api, "configmaps") == [], "measurements can be taken again"


def test_memory_that_holds_what_only_a_failure_teaches_is_written(world: World, api: ApiServer) -> None:
    world.train()
    decision = world.round()
    memory = Remembered.from_json(stored(api, MEMORY_KEY))
    small = MemoryUse(guessed_batch=7)
    workers = tuple(each._replace(memory_use=small) for each in memory.workers)
    world.act(decision, replace(memory, workers=workers))
    assert len(written(api, "configmaps")) == 1


@pytest.mark.parametrize("died", [False, True])
def test_plan_not_delivered_is_by_its_writer_or_the_next_operator(world: World, api: ApiServer, died: bool) -> None:
    world.train()
    api.refuse = refusing("patch", "pods")
    with pytest.raises(GatewayError, match="patch Pod digits-small-0"):
        rebalance(world)
    api.refuse = lambda *_: None
    if died:
        world.restart_operator()
    api.writes.clear()
    world.round()
    world.round()
    assert written(api, "pods") == [("patch", "pods", name) for name in (NAMES if died else NAMES[:1])]


@pytest.mark.parametrize("deleted", [False, True])
def test_plan_damaged_or_deleted_is_restored_with_its_batches(world: World, api: ApiServer, deleted: bool) -> None:
    plan = world.train()
    if deleted:
        api.remove("configmaps", "digits-plan")
    else:
        api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: "{", MEMORY_KEY: "{"}})
    world.round(11)
    assert world.plan.version > plan.version
    assert world.plan.members == plan.members
    assert Remembered.from_json(stored(api, MEMORY_KEY)).generation == plan.generation
    assert world.events[-1] == "PlanRestored"
    assert owner(api, "configmaps", "digits-plan") == world.uid


@pytest.mark.parametrize("followed", [False, True], ids=["seen at once", "followed before"])
@pytest.mark.parametrize(
    "change",
    [
        {"holds": True},
        {"evicted": ["x"]},
        {"version": 7, "globalBatchSize": 96},
        {"version": 2**53 - 1},
        {"version": 7, "generation": 2},
        {"members": []},
    ],
    ids=str,
)
def test_plan_that_somebody_changed_is_written_anew(
    world: World, api: ApiServer, change: dict[str, Any], followed: bool
) -> None:
    plan = world.train()
    document = json.loads(plan.to_json()) | change
    if "members" in change:
        document["members"] = [{**member, "uid": "stranger"} for member in json.loads(plan.to_json())["members"]]
    if "globalBatchSize" in change:
        document["members"] = [{**member, "batchSize": 32} for member in document["members"]]
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: json.dumps(document)}})
    counts = document["version"] < 2**52
    if followed:
        world.workers.follow(world.plan)
    phases = [world.round(6).phase for _ in range(3)]
    if followed and not counts:
        assert phases[-1] == "Restarting", "workers ignore all plans of lower numbers"
        return
    assert set(phases) == {"Running"}
    assert {member.uid for member in world.plan.members} == {member.uid for member in plan.members}
    assert (world.plan.holds, world.plan.evicted, sum(world.plan.batch_sizes)) == (False, (), sum(plan.batch_sizes))
    assert world.plan.version > (document["version"] if counts else plan.version)
    assert "PlanRestored" in world.events


def test_write_whose_answer_was_lost_is_found_and_not_repeated(world: World, api: ApiServer) -> None:
    plan = world.train()
    world.look()
    after = replace(plan, version=plan.version + 1)
    memory = Remembered(plan_version=after.version, budget=RestartBudget(restarts=1))

    def lose_the_answer(verb: str, plural: str, name: str) -> None:
        if plural == "configmaps" and verb == "patch":
            api.change("configmaps", name, {"data": {PLAN_KEY: after.to_json(), MEMORY_KEY: memory.to_json()}})
            raise StatusError(504, "Timeout", "too late")

    api.refuse = lose_the_answer
    with pytest.raises(GatewayError, match="too late"):
        world.act(Decision("Running", "faster", plan=after), memory)
    api.refuse = lambda *_: None
    seen, remembered = world.look()
    assert (seen.plan, remembered) == (after, memory)


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("writes_plan", [True, False])
def test_plan_and_memory_that_somebody_changed_just_before_a_write_are_not_believed(
    world: World, api: ApiServer, writes_plan: bool, answered: bool
) -> None:
    plan = world.train()
    foreign = replace(plan, version=7, holds=True)
    theirs = Remembered(outcome=Outcome("Failed", world.now, "x", "theirs"), budget=RestartBudget(restarts=9))

    def be_first(verb: str, plural: str, name: str) -> None:
        if plural == "configmaps" and verb == "patch":
            api.refuse = lambda *_: None
            api.change("configmaps", name, {"data": {PLAN_KEY: foreign.to_json(), MEMORY_KEY: theirs.to_json()}})
            if not answered:
                raise StatusError(504, "Timeout", "too late")

    api.refuse = be_first
    world.look()
    after = replace(plan, version=plan.version + 1) if writes_plan else None
    memory = Remembered(plan_version=(after or plan).version, budget=RestartBudget(restarts=1))
    with pytest.raises(PlanConflictError if answered else GatewayError):
        world.act(Decision("Running", "faster", plan=after), memory)
    seen, remembered = world.look()
    assert remembered is not None
    assert (seen.plan, remembered.plan_version) == (replace(plan, version=8), 8), "our own, under a greater number"
    assert (remembered.outcome, remembered.budget.restarts) == (Outcome(), 0)


def test_plan_changed_while_a_place_is_open_is_written_anew_without_a_restart(world: World, api: ApiServer) -> None:
    plan = world.train()
    workers = world.workers
    workers.reported = {name: replace(each, protocol=MEMBERS_MAY_END) for name, each in workers.reported.items()}
    world.round()
    api.remove("pods", NAMES[1])
    workers.reported.pop(NAMES[1])
    world.round()
    left = world.plan
    assert (len(left.members), left.generation) == (2, plan.generation + 1)
    api.change("configmaps", "digits-plan", {"data": {PLAN_KEY: replace(left, version=9, holds=True).to_json()}})
    assert [world.round(5).phase for _ in range(4)] == ["Running"] * 4
    assert world.plan == replace(left, version=10)


def test_watch_that_lags_behind_a_write_costs_no_request(world: World, api: ApiServer) -> None:
    world.train()
    before = world.versions
    rebalance(world)
    world.workers.follow(world.plan)
    api.reads.clear()
    world.round(versions=before)
    world.round()
    assert api.reads == []


V = TypeVar("V")
SIZED = [("digits", "cpu"), ("a" * 30, "b" * 27)]


def sized(name: str, group: str, replicas: int) -> HeteroTrainingJob:
    wanted = {**groups(name=group, replicas=replicas), "training": {"globalBatchSize": 100_000}}
    return job(wanted, metadata={"name": name})


def most(name: str, group: str) -> int:
    return MOST_BYTES // bytes_of(name, sized(name, group, 1).spec.worker_groups[0])


def largest_plan(name: str, group: str, members: int) -> Plan:
    """Every figure as long as it can be."""
    address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:29500"
    found = [
        Member(f"{name}-{group}-{index}", f"{index:036d}", address, group, MAX_BATCH - index, MAX_BATCH - index)
        for index in range(members)
    ]
    return Plan(2**53, 2**53, "epoch", tuple(found))


def memory_of(workers: int, plan_version: int = 7) -> Remembered:
    """Of workers of whom everything is known, with digits that do not compress."""
    draw = random.Random(3)

    def known() -> RememberedWorker:
        def floats(kind: type[V]) -> V:
            return kind(**{name: draw.uniform(0.01, 1000) for _, name, each in columns_of(kind) if type(each) is float})

        bounds = {name: draw.randrange(500) for name in ("guessed_batch", "low_batch", "high_batch", "failed_batch")}
        peaks = {name: draw.randrange(80000) for name in ("limit_mib", "low_mib", "high_mib")}
        cap = {name: draw.randrange(500) for name in ("raised_from", "cap")}
        return RememberedWorker(
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
    return Remembered(plan_version=plan_version, budget=RestartBudget(restarts=3), workers=rows).rounded()


@pytest.mark.parametrize(("name", "group"), SIZED)
def test_largest_job_fits_into_its_config_map_and_one_worker_more_is_refused(name: str, group: str) -> None:
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
    assert name != "digits" or workers > 3000
    with pytest.raises(ManifestError, match=rf"^spec.workerGroups: {workers + 1} workers are too many") as caught:
        sized(name, group, workers + 1)
    assert f"with these names {workers} workers fit" in str(caught.value)


def test_small_memory_stays_text_and_a_large_one_is_packed_and_its_text_emptied() -> None:
    small = build_plan_map(job(), JOB_UID, None, memory_of(100).to_json())
    assert Remembered.from_json(small["data"][MEMORY_KEY]) == memory_of(100)
    assert "binaryData" not in small
    text = memory_of(1500).to_json()
    assert len(text) > PLAIN_BYTES
    body = build_plan_map(job(), JOB_UID, None, text)
    assert body["data"] == {MEMORY_KEY: ""}
    assert bytes_in(body) < len(text) * 0.6
    assert read_plan_map(body).memory == memory_of(1500)
    body["data"][MEMORY_KEY] = Remembered(budget=RestartBudget(restarts=9)).to_json()  # as an older operator writes it
    assert read_plan_map(body).memory == Remembered(budget=RestartBudget(restarts=9))


CROWD = build_plan_map(job(), JOB_UID, None, f'{{"schema": 1, "workers": [{"{}," * 2**16}{{}}]}}')["binaryData"][
    PACKED_MEMORY_KEY
]
BOMB = build_plan_map(job(), JOB_UID, None, " " * (MAX_BYTES + 1))["binaryData"][PACKED_MEMORY_KEY]


def test_packed_memory_that_is_none_is_reported() -> None:
    for packed, why in (("%%%", ""), ("AAAA", ""), ("", "is torn"), (BOMB, "is torn, or more than"), (CROWD, "memory")):
        stored = read_plan_map({"data": {MEMORY_KEY: ""}, "binaryData": {PACKED_MEMORY_KEY: packed}})
        assert stored.memory is None
        assert stored.memory_problem.startswith(f"memory.json.gz: {why}")


def test_what_would_not_fit_goes_without_what_is_known_of_single_workers(
    api: ApiServer, gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admission reckons with what measurements take; what is remembered of the job itself is never lost."""
    monkeypatch.setattr("heterotrain_operator.clusters.kube.plan_store.CONFIG_MAP_BYTES", 2**16)
    store = PlanStore(gateway)
    memory = memory_of(1500)
    store.write(job(), JOB_UID, None, memory)
    body = api.get("configmaps", "digits-plan")
    assert bytes_in(body) <= 2**16
    assert read_plan_map(body).memory == replace(memory, workers=())
    assert "too small for what is remembered" in caplog.text


def test_damaged_memory_is_written_again_at_once(world: World, api: ApiServer) -> None:
    plan = world.train()
    api.change("configmaps", "digits-plan", {"data": {MEMORY_KEY: "{"}})
    world.round()
    assert Remembered.from_json(stored(api, MEMORY_KEY)).plan_version == plan.version
