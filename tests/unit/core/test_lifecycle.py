"""From no workers to the end of the job: creation, the first plan, suspension, deadlines, success."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_PAUSED, PHASE_PREPARING, Plan
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Condition, Decision, Group, Job, Seen, WorkerMetrics
from heterotrain_operator.core.state import Memory
from unit.core.traces import World, hetero_world


def condition(decision: Decision, kind: str) -> Condition:
    return next(condition for condition in decision.conditions if condition.type == kind)


def events(decision: Decision) -> list[str]:
    return [event.reason for event in decision.events]


def two_groups(**changes: object) -> Job:
    groups = (Group("gpu", 2, batch_max=100), Group("cpu", 1))
    job = Job("job", groups, global_batch=192, policy="Uniform")
    return replace(job, **changes)  # type: ignore[arg-type]  # names and types are the tests' care


def test_all_workers_are_created_at_once_with_names_from_their_identity() -> None:
    decision = World(two_groups()).tick()
    assert [key.name for key in decision.create] == ["job-gpu-0", "job-gpu-1", "job-cpu-0"]
    assert events(decision) == ["SuccessfulCreatePod"]
    assert decision.phase == "Created"
    assert condition(decision, "Created").status


def test_same_observation_creates_nothing_twice() -> None:
    job = two_groups()
    first, memory = decide(job, Seen(), Memory.initial(), 100.0)
    second, _ = decide(job, Seen(), memory, 101.0)
    assert first.create
    assert not second.create


def test_missing_worker_is_created_with_the_smallest_free_index() -> None:
    world = World(two_groups())
    world.tick()
    del world.workers["job-gpu-0"]
    decision = world.tick(20)
    assert [key.name for key in decision.create] == ["job-gpu-0"]


@pytest.mark.parametrize(
    ("impairment", "said"),
    [
        ({"phase": "Pending", "message": "ImagePullBackOff"}, "job-gpu-1 (Pending: ImagePullBackOff)"),
        ({"answers": False}, "job-gpu-1 (Running, but its metrics do not answer)"),
        (
            {"metrics": WorkerMetrics(plan_version=0, phase=PHASE_PREPARING)},
            "job-gpu-1 (Running, but its script is not at its loop yet)",
        ),
        (
            {"metrics": WorkerMetrics(plan_version=0, phase=PHASE_PAUSED)},
            "job-gpu-1 (Running, but its script is not at its loop yet)",
        ),
    ],
)
def test_first_plan_waits_until_every_worker_is_ready(impairment: dict[str, object], said: str) -> None:
    world = World(two_groups())
    world.tick()
    for name, value in impairment.items():
        setattr(world.workers["job-gpu-1"], name, value)
    decision = world.tick()
    assert decision.plan is None
    assert said in decision.reason
    late = world.tick(601)
    assert late.phase == "Failed"
    assert said in late.reason
    assert condition(late, "Failed").reason == "StartupDeadlineExceeded"
    assert set(late.delete) == {"job-gpu-0", "job-gpu-1", "job-cpu-0"}


def test_job_that_has_trained_waits_on_for_capacity_and_says_so() -> None:
    world = World(two_groups()).start()
    world.workers["job-gpu-0"].end(143, disrupted=True)
    world.tick()
    world.tick()
    for worker in world.workers.values():
        worker.phase, worker.message = "Pending", "no node fits"
    assert not condition(world.tick(590), "Degraded").status
    late = world.tick(20)
    assert (late.phase, events(late)) == ("Restarting", ["InsufficientCapacity"])
    for decision in (late, world.tick(300)):
        assert condition(decision, "Degraded").reason == "InsufficientCapacity"
        assert "job-gpu-1 (Pending: no node fits)" in condition(decision, "Degraded").message
    assert events(world.decisions[-1]) == []
    assert events(world.tick(301)) == ["InsufficientCapacity"]
    for worker in world.workers.values():
        worker.phase = "Running"
    started = world.tick()
    assert started.plan is not None
    assert not condition(started, "Degraded").status


def test_worker_that_found_its_place_late_has_as_long_to_start_as_any() -> None:
    world = World(two_groups()).start()
    world.workers["job-gpu-0"].end(143, disrupted=True)
    world.tick()
    world.tick()
    for worker in world.workers.values():
        worker.phase = "Pending"
    world.tick(601)
    world.tick(590)
    for worker in world.workers.values():
        worker.phase, worker.answers = "Running", False
    assert world.tick(20).phase == "Restarting"
    assert not condition(world.tick(590), "Degraded").status
    assert world.tick(20).phase == "Failed"


def test_worker_turned_away_by_its_node_is_created_again_and_the_others_wait_for_it() -> None:
    world = World(two_groups(backoff_limit=0))
    world.tick()
    uids = {name: worker.uid for name, worker in world.workers.items()}
    refused = world.workers["job-gpu-1"]
    refused.phase, refused.disrupted, refused.message = "Failed", True, "OutOfcpu: Node didn't have enough resource"
    decision = world.tick()
    assert decision.delete == ("job-gpu-1",)
    assert [event.reason for event in decision.events] == ["WorkerRejected"]
    assert "job-gpu-1 was turned away by its node: OutOfcpu" in decision.events[0].message
    assert not world.tick().create, "the node is given time"
    assert [key.name for key in world.tick(10).create] == ["job-gpu-1"]
    plan = world.tick().plan
    assert plan is not None
    assert {member.name for member in plan.members if member.uid == uids[member.name]} == {"job-gpu-0", "job-cpu-0"}
    assert world.memory.budget.restarts == 0


def test_nodes_that_turn_a_new_job_away_for_good_let_it_fail() -> None:
    world = World(two_groups())
    world.tick()
    while world.decisions[-1].phase == "Created":
        for worker in world.workers.values():
            worker.phase, worker.disrupted, worker.message = "Failed", True, "NodeAffinity: no such label"
        world.tick(10)
    assert world.decisions[-1].phase == "Failed"
    assert "did not start within 600 s" in world.decisions[-1].reason
    assert len(world.decisions) > 20


def test_source_of_metrics_that_is_away_is_told_while_workers_are_waited_for() -> None:
    world = World(two_groups())
    world.tick()
    workers = tuple(replace(worker, metrics=None) for worker in world.seen().workers)
    seen = Seen(workers, metrics_problem="the server is away")
    waiting, memory = decide(world.job, seen, world.memory, world.now)
    assert waiting.plan is None
    assert waiting.reason.endswith("; the server is away")
    assert condition(waiting, "Degraded").reason == "MetricsUnavailable"
    late, _ = decide(world.job, seen, memory, world.now + 601)
    assert late.phase == "Failed"
    assert late.reason.endswith("; the server is away")


def test_worker_without_an_address_is_waited_for() -> None:
    world = World(two_groups())
    world.tick()
    seen = Seen(tuple(replace(worker, address="") for worker in world.seen().workers))
    decision, _ = decide(world.job, seen, world.memory, world.now)
    assert decision.plan is None
    assert "without an address" in decision.reason


def test_first_plan_orders_members_by_group_then_index_and_its_first_leads() -> None:
    world = World(two_groups())
    world.tick()
    world.workers = dict(reversed(world.workers.items()))
    decision = world.tick()
    assert decision.plan is not None
    assert [member.name for member in decision.plan.members] == ["job-gpu-0", "job-gpu-1", "job-cpu-0"]
    assert decision.plan.leader == "job-gpu-0"
    assert decision.plan.batch_sizes == (64, 64, 64)
    assert (decision.plan.version, decision.plan.generation) == (1, 1)
    assert decision.phase == "Running"
    assert events(decision) == ["PlanPublished"]


def test_same_observation_publishes_no_second_plan() -> None:
    world = World(two_groups())
    world.tick()
    before = world.seen()
    world.tick()
    again, _ = decide(world.job, before, world.memory, world.now + 1)
    assert again.plan is None
    assert "not visible yet" in again.reason


def test_first_plan_is_numbered_beyond_what_workers_follow() -> None:
    world = World(two_groups())
    world.tick()
    for worker in world.workers.values():
        worker.metrics = replace(worker.metrics, plan_version=41, generation=3)
    decision = world.tick()
    assert decision.plan is not None
    assert (decision.plan.version, decision.plan.generation) == (42, 4)


def test_deleted_plan_and_memory_strand_nobody() -> None:
    world = hetero_world("Uniform")
    world.run(2)
    world.plan, world.memory = None, Memory.initial()
    decision = world.tick()
    assert decision.plan is not None
    assert decision.plan.version == 2


def test_first_batches_can_be_static() -> None:
    groups = (Group("a", 1, cpu_limit=1.0), Group("b", 1, cpu_limit=0.5))
    world = World(Job("job", groups, 192, initial="Static")).start()
    assert world.plan is not None
    assert world.plan.batch_sizes == (128, 64)


@pytest.mark.parametrize("policy", [*known_policies(), "Profile"])
def test_bounds_that_cannot_hold_the_global_batch_are_a_decision_with_figures(policy: str) -> None:
    job = two_groups(policy=policy, groups=(Group("gpu", 2, batch_min=70), Group("cpu", 1, batch_min=60)))
    world = World(job)
    decision = world.tick()
    assert not decision.create
    assert "192 samples is below 200" in decision.reason
    assert condition(decision, "Degraded").status
    assert world.tick(601).phase == "Failed"


def test_job_without_workers_says_so() -> None:
    assert "no workers" in World(two_groups(groups=(Group("cpu", 0),))).tick().reason


def test_job_succeeds_once_all_finished() -> None:
    world = hetero_world()
    world.run(1)
    world.workers["job-g0-0"].end(0, finished=True)
    waiting = world.tick()
    assert waiting.phase == "Running"
    assert "job-g0-0 finished; waiting for job-g1-0, job-g2-0" in waiting.reason
    assert not waiting.create
    for worker in world.workers.values():
        worker.end(0, finished=True)
    done = world.tick()
    assert done.phase == "Succeeded"
    assert events(done) == ["JobSucceeded"]
    assert condition(done, "Succeeded").status
    again = world.tick()
    assert again.phase == "Succeeded"
    assert not again.events
    assert not again.create


def test_suspended_job_loses_its_pods_and_resumes_in_the_next_generation() -> None:
    world = hetero_world(active_deadline_seconds=100.0)
    world.run(3)
    batches = world.plan.batch_sizes if world.plan else ()
    world.job = replace(world.job, suspend=True)
    suspended = world.tick()
    assert suspended.phase == "Suspended"
    assert len(suspended.delete) == 3
    assert condition(suspended, "Suspended").status
    assert world.tick(1000).phase == "Suspended"
    world.job = replace(world.job, suspend=False)
    assert len(world.tick().create) == 3
    plan = world.tick().plan
    assert plan is not None
    assert plan.generation == 2
    assert plan.batch_sizes == batches, "what was learned is not forgotten"
    assert world.memory.budget.restarts == 0


def test_a_resumed_job_waits_again_for_pods_that_still_end() -> None:
    world = hetero_world()
    leaving = dict(world.workers)
    world.job = replace(world.job, suspend=True)
    world.tick()
    world.workers = dict(leaving)
    world.tick(1000)
    world.job = replace(world.job, suspend=False)
    for seconds, phase in ((1, "Restarting"), (500, "Restarting"), (200, "Failed")):
        world.workers = dict(leaving)
        assert world.tick(seconds).phase == phase


def test_workers_that_still_end_do_not_resume() -> None:
    world = hetero_world()
    leaving = dict(world.workers)
    world.job = replace(world.job, suspend=True)
    world.tick()
    world.job = replace(world.job, suspend=False)
    leaving["job-g0-0"].end(143)
    world.workers = dict(leaving)
    decision = world.tick()
    assert set(decision.delete) == set(leaving)
    assert world.memory.budget.restarts == 0


def test_job_beyond_its_active_deadline_fails() -> None:
    world = hetero_world(active_deadline_seconds=30.0)
    world.run(2)
    decision = world.tick(30)
    assert decision.phase == "Failed"
    assert "active deadline of 30 s" in decision.reason
    assert len(decision.delete) == 3


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


def test_pods_of_no_group_are_deleted() -> None:
    world = hetero_world()
    stray = replace(world.workers["job-g0-0"], name="job-old-0", group="old")
    world.workers["job-old-0"] = stray
    world.train(1)
    assert world.tick().delete == ("job-old-0",)


def test_conditions_agree_with_the_phase() -> None:
    world = hetero_world()
    world.train(10)
    decision = world.tick()
    states = {condition.type: condition.status for condition in decision.conditions}
    assert states == {
        "Created": True,
        "Running": True,
        "Suspended": False,
        "Succeeded": False,
        "Failed": False,
        "Balanced": False,
        "Degraded": False,
        "StragglersDetected": False,
    }


def test_balance_is_unknown_before_anything_is_measured() -> None:
    decision = hetero_world().tick()
    (balanced,) = [condition for condition in decision.conditions if condition.type == "Balanced"]
    assert (balanced.status, balanced.reason) == (None, "NotMeasured")


def test_plan_that_names_a_worker_twice_is_replaced() -> None:
    world = hetero_world()
    assert world.plan is not None
    member = world.plan.members[0]
    world.plan = Plan(world.plan.version, 1, "step", (member, member))
    decision = world.tick()
    assert decision.plan is not None
    assert len(decision.plan.members) == 3
