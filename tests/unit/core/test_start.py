"""From no workers to the end of a job: creation, places, the first plan, suspension, deadlines, success."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import PHASE_PAUSED, PHASE_PREPARING, Plan
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Group, Job, Seen, WorkerMetrics
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import changed, condition, created, decided, ends, names, reasons
from unit.core.traces import World, hetero_world

GPU, OTHER, CPU = "job-gpu-0", "job-gpu-1", "job-cpu-0"


def two_groups(**changes: Any) -> Job:
    groups = (Group("gpu", 2, batch_max=100), Group("cpu", 1))
    return replace(Job("job", groups, global_batch=192, policy="Uniform"), **changes)


def waiting_world(**changes: Any) -> World:
    """All workers of two groups are created."""
    world = World(two_groups(**changes))
    world.tick()
    return world


def pending(world: World, phase: str = "Pending", message: str = "") -> None:
    for worker in world.workers.values():
        worker.phase, worker.message = phase, message  # type: ignore[assignment]


# --- workers are created and waited for --------------------------------------------------------------------------


def test_all_workers_are_created_at_once_and_only_once_with_names_from_their_identity() -> None:
    first, memory = decide(two_groups(), Seen(), Remembered.initial(), 100.0)
    assert created([first]) == [GPU, OTHER, CPU]
    assert (first.phase, reasons(first), condition(first, "Created").status) == (
        "Created",
        ["SuccessfulCreatePod"],
        True,
    )
    assert not decide(two_groups(), Seen(), memory, 101.0)[0].create


def test_missing_worker_is_created_with_the_smallest_free_index() -> None:
    world = waiting_world()
    del world.workers[GPU]
    assert created([world.tick(20)]) == [GPU]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phase": "Pending", "message": "ImagePullBackOff"}, f"{OTHER} (Pending: ImagePullBackOff)"),
        ({"metrics": None}, f"{OTHER} (Running, but its metrics do not answer)"),
        (
            {"metrics": WorkerMetrics(0, phase=PHASE_PREPARING)},
            f"{OTHER} (Running, but its script is not at its loop yet)",
        ),
        (
            {"metrics": WorkerMetrics(0, phase=PHASE_PAUSED)},
            f"{OTHER} (Running, but its script is not at its loop yet)",
        ),
        ({"address": ""}, f"{OTHER} (Running, but without an address)"),
        ({"deleting_since": 2e9}, f"{OTHER} (being deleted)"),
    ],
)
def test_first_plan_waits_until_every_worker_is_ready(changes: dict[str, Any], said: str) -> None:
    world = waiting_world()
    seen = changed(world.seen(), OTHER, **changes)
    decision, world.memory = decided(world, seen)
    assert decision.plan is None
    assert said in decision.reason
    late, _ = decided(world, seen, 601)
    assert (late.phase, condition(late, "Failed").reason) == ("Failed", "StartupDeadlineExceeded")
    assert said in late.reason
    assert set(late.delete) == {GPU, OTHER, CPU}


@pytest.mark.parametrize(
    "told", [{"metrics_problem": "the server is away"}, {"metrics_note": "it holds nothing of them"}]
)
def test_source_of_metrics_is_told_of_while_workers_are_waited_for(told: dict[str, str]) -> None:
    world = waiting_world()
    seen = replace(changed(world.seen(), metrics=None), **told)
    for seconds in (0, 601):
        decision, world.memory = decided(world, seen, seconds)
        assert decision.plan is None
        assert decision.reason.endswith(f"; {next(iter(told.values()))}")
        if "metrics_problem" in told and not seconds:
            assert condition(decision).reason == "MetricsUnavailable"


def test_job_that_has_trained_waits_on_for_capacity_and_says_so() -> None:
    world = World(two_groups()).start()
    ends(world, GPU, "preempt")
    world.tick()
    world.tick()
    pending(world, message="no node fits")
    assert not condition(world.tick(590)).status
    late = world.tick(20)
    assert (late.phase, reasons(late)) == ("Restarting", ["InsufficientCapacity"])
    for decision in (late, world.tick(300)):
        assert condition(decision).reason == "InsufficientCapacity"
        assert f"{OTHER} (Pending: no node fits)" in condition(decision).message
    assert reasons(world.decisions[-1]) == []
    assert reasons(world.tick(301)) == ["InsufficientCapacity"]
    pending(world, "Running")
    started = world.tick()
    assert started.plan is not None
    assert not condition(started).status


def test_worker_that_found_its_place_late_has_as_long_to_start_as_any() -> None:
    world = World(two_groups()).start()
    ends(world, GPU, "preempt")
    world.tick()
    world.tick()
    pending(world)
    world.tick(601)
    world.tick(590)
    for worker in world.workers.values():
        worker.phase, worker.answers = "Running", False
    assert world.tick(20).phase == "Restarting"
    assert not condition(world.tick(590)).status
    assert world.tick(20).phase == "Failed"


def test_worker_turned_away_by_its_node_is_created_again_and_the_others_wait_for_it() -> None:
    world = waiting_world(backoff_limit=0)
    uids = {name: worker.uid for name, worker in world.workers.items()}
    refused = world.workers[OTHER]
    refused.phase, refused.disrupted, refused.message = "Failed", True, "OutOfcpu: Node didn't have enough resource"
    decision = world.tick()
    assert (decision.delete, reasons(decision)) == ((OTHER,), ["WorkerRejected"])
    assert f"{OTHER} was turned away by its node: OutOfcpu" in decision.events[0].message
    assert not world.tick().create, "the node is given time"
    assert created([world.tick(10)]) == [OTHER]
    plan = world.tick().plan
    assert plan is not None
    assert {member.name for member in plan.members if member.uid == uids[member.name]} == {GPU, CPU}
    assert world.memory.budget.restarts == 0


# --- the first plan ----------------------------------------------------------------------------------------------


def test_first_plan_orders_members_by_group_then_index_its_first_leads_and_it_is_published_once() -> None:
    world = waiting_world()
    world.workers = dict(reversed(world.workers.items()))
    before = world.seen()
    decision = world.tick()
    assert decision.plan is not None
    assert names(decision.plan) == [GPU, OTHER, CPU]
    assert (decision.plan.leader, decision.plan.batch_sizes) == (GPU, (64, 64, 64))
    assert (decision.plan.version, decision.plan.generation) == (1, 1)
    assert (decision.phase, reasons(decision)) == ("Running", ["PlanPublished"])
    assert condition(decision, "Balanced").status is None
    again, _ = decided(world, before, 1)
    assert again.plan is None
    assert "not visible yet" in again.reason


def test_first_plan_is_numbered_beyond_what_workers_follow() -> None:
    world = waiting_world()
    for worker in world.workers.values():
        worker.metrics = replace(worker.metrics, plan_version=41, generation=3)
    plan = world.tick().plan
    assert plan is not None
    assert (plan.version, plan.generation) == (42, 4)


def test_first_batches_can_be_static() -> None:
    groups = (Group("a", 1, cpu_limit=1.0), Group("b", 1, cpu_limit=0.5))
    world = World(Job("job", groups, 192, initial="Static")).start()
    assert world.plan is not None
    assert world.plan.batch_sizes == (128, 64)


@pytest.mark.parametrize("policy", [*known_policies(), "Profile"])
def test_bounds_that_cannot_hold_the_global_batch_are_a_decision_with_figures(policy: str) -> None:
    world = World(two_groups(policy=policy, groups=(Group("gpu", 2, batch_min=70), Group("cpu", 1, batch_min=60))))
    decision = world.tick()
    assert not decision.create
    assert "192 samples is below 200" in decision.reason
    assert condition(decision).status
    assert world.tick(601).phase == "Failed"
    assert "no workers" in World(two_groups(groups=(Group("cpu", 0),))).tick().reason


def test_plan_that_names_a_worker_twice_is_replaced() -> None:
    world = hetero_world()
    assert world.plan is not None
    member = world.plan.members[0]
    world.plan = Plan(world.plan.version, 1, "step", (member, member))
    assert len(names(world.tick().plan)) == 3


# --- suspension, edits and the end -------------------------------------------------------------------------------


def test_suspended_job_loses_its_pods_and_resumes_in_the_next_generation() -> None:
    world = hetero_world(active_deadline_seconds=100.0)
    world.run(3)
    batches = world.plan.batch_sizes if world.plan else ()
    world.job = replace(world.job, suspend=True)
    suspended = world.tick()
    assert (suspended.phase, len(suspended.delete)) == ("Suspended", 3)
    assert condition(suspended, "Suspended").status
    assert world.tick(1000).phase == "Suspended"
    world.job = replace(world.job, suspend=False)
    assert len(world.tick().create) == 3
    plan = world.tick().plan
    assert plan is not None
    assert (plan.generation, plan.batch_sizes) == (2, batches), "what was learned is not forgotten"
    assert world.memory.budget.restarts == 0


def test_a_resumed_job_waits_again_for_pods_that_still_end() -> None:
    world = hetero_world()
    leaving = dict(world.workers)
    world.job = replace(world.job, suspend=True)
    world.tick()
    leaving["job-g0-0"].end(143)
    world.workers = dict(leaving)
    world.tick(1000)
    world.job = replace(world.job, suspend=False)
    for seconds, phase in ((1, "Restarting"), (500, "Restarting"), (200, "Failed")):
        world.workers = dict(leaving)
        assert world.tick(seconds).phase == phase
    assert world.memory.budget.restarts == 0


def test_job_beyond_its_active_deadline_fails() -> None:
    world = hetero_world(active_deadline_seconds=30.0)
    world.run(2)
    decision = world.tick(30)
    assert (decision.phase, len(decision.delete)) == ("Failed", 3)
    assert "active deadline of 30 s" in decision.reason


def test_changed_replicas_start_all_workers_again_without_counting() -> None:
    world = World(two_groups()).start()
    world.train(10)
    world.job = two_groups(groups=(Group("gpu", 3, batch_max=100), Group("cpu", 1)))
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert "group gpu wants 3 workers and has 2" in decision.reason
    assert len(world.tick().create) == 4
    plan = world.tick().plan
    assert plan is not None
    assert (len(plan.members), plan.generation, plan.global_batch_size) == (4, 2, 192)
    assert world.memory.budget.restarts == 0


@pytest.mark.parametrize("how", ["alive", "fatal", "asked", "exit"])
@pytest.mark.parametrize("group", ["old", "g1"])
def test_pods_that_no_plan_names_end_as_they_like_and_are_deleted(how: str, group: str) -> None:
    world = hetero_world()
    stray = replace(world.workers["job-g0-0"], name=f"job-{group}-7", uid="uid-stray", group=group, index=7)
    world.workers[stray.name] = stray
    world.train(1)
    if how != "alive":
        ends(world, stray.name, how)
    decision = world.tick()
    assert (decision.phase, decision.delete) == ("Running", (stray.name,))


def test_job_succeeds_once_all_finished_and_is_removed_once_its_time_is_over() -> None:
    world = hetero_world(ttl_seconds=60.0)
    world.run(1)
    ends(world, "job-g0-0", "finish")
    waiting = world.tick()
    assert (waiting.phase, waiting.create) == ("Running", ())
    assert "is committed; waiting for job-g1-0, job-g2-0 to end" in waiting.reason
    for worker in world.workers.values():
        worker.end(0, finished=True)
    done = world.tick()
    assert (done.phase, reasons(done), done.remove_job) == ("Succeeded", ["JobSucceeded"], False)
    assert condition(done, "Succeeded").status
    again = world.tick(59)
    assert (again.phase, again.events, again.create, again.remove_job) == ("Succeeded", (), (), False)
    assert world.tick(1).remove_job


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [("All", {"job-g0-0", "job-g1-0", "job-g2-0"}), ("Running", {"job-g0-0", "job-g1-0"}), ("None", set())],
)
def test_ended_job_keeps_the_pods_that_its_policy_names(policy: str, deleted: set[str]) -> None:
    world = hetero_world(backoff_limit=0, clean_pod_policy=policy)
    world.workers["job-g2-0"].end(1)
    seen = world.seen()
    decision, world.memory = decided(world, seen)
    again, _ = decided(world, seen, 1)
    assert (decision.phase, set(decision.delete), set(again.delete)) == ("Failed", deleted, deleted)


def test_pod_of_an_ended_worker_that_a_side_container_keeps_running_goes_with_the_running_ones() -> None:
    world = hetero_world(clean_pod_policy="Running")
    for worker in world.workers.values():
        worker.end(0, finished=True)
    decision, _ = decided(world, changed(world.seen(), "job-g1-0", lingering=True))
    assert (decision.phase, decision.delete) == ("Succeeded", ("job-g1-0",))


def test_conditions_agree_with_the_phase() -> None:
    world = hetero_world()
    world.train(10)
    states = {condition.type: condition.status for condition in world.tick().conditions}
    others = ("Suspended", "Succeeded", "Failed", "Balanced", "Degraded", "StragglersDetected")
    assert states == {"Created": True, "Running": True, **dict.fromkeys(others, False)}
