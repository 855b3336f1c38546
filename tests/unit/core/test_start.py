"""From no workers to the end of a job: creation, places, gates, the first plan, suspension, deadlines, success."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import (
    PHASE_PAUSED,
    PHASE_PREPARING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_WAITING,
    PHASE_WARMING,
)
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.facts import state_of
from heterotrain_operator.core.lifecycle.placement import LET_GO, fraction, patience_seconds
from heterotrain_operator.core.model import Decision, Group, Job, Seen, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import changed, condition, created, decided, ends, names, reasons
from unit.core.traces import World, hetero_job, hetero_world

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
        worker.phase, worker.message = phase, message


def test_all_workers_are_created_at_once_and_only_once_with_names_from_their_identity() -> None:
    first, memory = decide(two_groups(), Seen(), Remembered.initial(), 100.0)
    assert created([first]) == [GPU, OTHER, CPU]
    assert (first.phase, reasons(first), condition(first, "Created").status) == (
        "Created",
        ["SuccessfulCreatePod"],
        True,
    )
    assert not decide(two_groups(), Seen(), memory, 101.0)[0].create


def by_limits(*cores: float | None) -> tuple[Group, ...]:
    return tuple(Group(f"g{rank}", 1, cpu_limit=each) for rank, each in enumerate(cores))


@pytest.mark.parametrize(
    ("changes", "batches", "reason"),
    [
        ({"groups": by_limits(1.0, 0.5)}, (128, 64), "shared by CPU limit"),
        ({"groups": by_limits(1.0, 0.5), "initial": "Uniform"}, (96, 96), "equal shares of 192 samples"),
        ({"groups": by_limits(1.0, None)}, (96, 96), "since groups g1 state no CPU limit"),
        ({"groups": by_limits(0.5, 0.5, 0.5)}, (64, 64, 64), "shared by CPU limit"),
        ({"groups": by_limits(1.0, 0.5), "dry_run": True}, (128, 64), "shared by CPU limit"),
    ],
)
def test_job_begins_with_batches_by_limits_where_all_are_known_and_else_with_equal_ones(
    changes: dict[str, Any], batches: tuple[int, ...], reason: str
) -> None:
    world = World(two_groups(**{"policy": "Optimal", **changes})).start()
    assert world.plan.batch_sizes == batches
    assert reason in world.decisions[-1].reason


def test_edited_start_moves_nothing_that_trains() -> None:
    world = World(two_groups(policy="Optimal", groups=by_limits(1.0, 0.5), initial="Uniform")).start()
    world.job = replace(world.job, initial="Static")
    assert [decision.plan for decision in (world.tick(), *world.run(3))] == [None] * 4


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
    assert {member.name for member in plan.members if member.uid == uids[member.name]} == {GPU, CPU}
    assert world.memory.budget.restarts == 0


def test_first_plan_orders_members_by_group_then_index_its_first_leads_and_it_is_published_once() -> None:
    world = waiting_world()
    world.workers = dict(reversed(world.workers.items()))
    before = world.seen()
    decision = world.tick()
    assert names(decision.plan) == [GPU, OTHER, CPU]
    assert (decision.plan.leader, decision.plan.batch_sizes) == (GPU, (64, 64, 64))
    assert (decision.plan.version, decision.plan.generation) == (1, 1)
    assert (decision.phase, reasons(decision)) == ("Running", ["PlanPublished"])
    assert condition(decision, "Balanced").status is None
    again, _ = decided(world, before, 1)
    assert again.plan is None
    assert "not visible yet" in again.reason


@pytest.mark.parametrize("policy", [*known_policies(), "Profile"])
def test_bounds_that_cannot_hold_the_global_batch_are_a_decision_with_figures(policy: str) -> None:
    world = World(two_groups(policy=policy, groups=(Group("gpu", 2, batch_min=70), Group("cpu", 1, batch_min=60))))
    decision = world.tick()
    assert not decision.create
    assert "192 samples is below 200" in decision.reason
    assert condition(decision).status
    assert world.tick(601).phase == "Failed"
    assert "no workers" in World(two_groups(groups=(Group("cpu", 0),))).tick().reason


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
    assert (plan.generation, plan.batch_sizes) == (2, batches), "what was learned is not forgotten"
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


def four_workers(name: str = "job", **changes: Any) -> World:
    job = Job(name, (Group("a", 4),), global_batch=192, policy="Uniform", uid=f"uid of {name}")
    return World(replace(job, **changes))


class Nodes:
    """A scheduler with few places for the pods of several jobs, first come, first served in turns."""

    def __init__(self, places: int, *worlds: World) -> None:
        self.places, self.worlds, self.turn = places, worlds, 0

    def schedule(self) -> None:
        queues = [[w for w in world.workers.values() if not w.node] for world in self.worlds]
        free = self.places - sum(bool(w.node) for world in self.worlds for w in world.workers.values())
        for pod in (w for queue in queues for w in queue):
            pod.phase = "Pending"
        while free > 0 and any(queues):
            queue = queues[self.turn % len(queues)]
            self.turn += 1
            if queue:
                pod = queue.pop(0)
                pod.node, pod.phase = "node", "Running"
                free -= 1


def let_go(decision: Decision) -> bool:
    return LET_GO in reasons(decision)


def scheduled(world: World, nodes: Nodes, seconds: int) -> list[Decision]:
    decisions = []
    for _ in range(seconds):
        decisions.append(world.tick())
        nodes.schedule()
    return decisions


def test_two_jobs_that_hold_half_of_what_both_need_do_not_block_each_other() -> None:
    for pair in range(10):
        one, other = four_workers(f"one-{pair}"), four_workers(f"other-{pair}")
        nodes = Nodes(6, one, other)
        for _ in range(590):
            for world in (one, other):
                world.tick()
            nodes.schedule()
            if one.plan is not None or other.plan is not None:
                break
        assert one.plan is not None or other.plan is not None, pair
        assert any(let_go(decision) for world in (one, other) for decision in world.decisions)


def test_part_that_has_places_lets_them_go_after_its_patience_tries_again_and_fails_at_its_deadline() -> None:
    world = four_workers()
    decisions = scheduled(world, Nodes(2, world), 610)
    first = next(rank for rank, decision in enumerate(decisions) if let_go(decision))
    assert 150 <= first <= 302
    assert len(decisions[first].delete) == 4
    assert "only 2 workers had places" in decisions[first].reason
    pause = [bool(decision.create) for decision in decisions[first + 1 :]].index(True)
    assert 9 <= pause <= 21
    assert len(decisions[first + 1 + pause].create) == 4
    assert decisions[-1].phase == "Failed"
    assert "did not start within 600 s" in decisions[-1].reason
    assert "had places" in decisions[-1].reason


def test_workers_that_end_while_they_let_go_restart_nothing_and_cut_no_pause_short() -> None:
    world = four_workers()
    nodes = Nodes(2, world)
    while not any(map(let_go, world.decisions)):
        before = dict(world.workers)
        scheduled(world, nodes, 1)
    begun, resumes = world.memory.start.starting_at, world.memory.budget.restart_at
    placed = [worker.seen() for worker in before.values() if worker.node]
    assert len(placed) == 2
    gone = changed(Seen(tuple(placed)), phase="Failed", exit_code=143, disrupted=True, deleting_since=world.now + 30)
    decision, memory = decided(world, replace(world.seen(), workers=gone.workers), 1)
    assert (decision.phase, decision.create) == ("Created", ())
    assert (memory.start.starting_at, memory.budget.restart_at, memory.budget.restarts) == (begun, resumes, 0)
    assert not memory.budget.draining


@pytest.mark.parametrize(("places", "deadline", "phase"), [(0, 600, "Created"), (2, 50, "Failed")])
def test_nobody_lets_go_without_any_place_or_before_a_short_deadline(places: int, deadline: int, phase: str) -> None:
    world = four_workers(startup_deadline_seconds=deadline)
    decisions = scheduled(world, Nodes(places, world), 590)
    assert not any(map(let_go, decisions))
    assert decisions[-1].phase == phase


def test_pods_beside_refused_ones_hold_a_quota_also_without_places() -> None:
    world = four_workers()
    world.tick()
    Nodes(0, world).schedule()
    kept = dict(list(world.workers.items())[:2])
    refused = tuple((name, "exceeded quota") for name in world.workers if name not in kept)
    world.workers = kept
    for _ in range(400):
        world.now += 1
        decision, world.memory = decided(world, replace(world.seen(), refused=refused))
        if let_go(decision):
            break
    assert let_go(decision)


def gated(placed: int = 0) -> World:
    """Pods that somebody else holds back, as a queue does, but so many of them."""
    world = four_workers()
    world.tick()
    gate(world, closed=True)
    for worker in list(world.workers.values())[:placed]:
        worker.gated, worker.phase = False, "Running"
    return world


def gate(world: World, *, closed: bool) -> None:
    for worker in world.workers.values():
        worker.gated = closed
        worker.phase, worker.message = ("Pending", "SchedulingGated") if closed else ("Running", "")


@pytest.mark.parametrize("placed", [0, 1, 3])
def test_pods_behind_a_gate_wait_as_long_as_it_is_closed_and_start_when_it_opens(placed: int) -> None:
    world = gated(placed)
    for look in range(30):
        before = world.memory
        decision = world.tick(60)
        assert (decision.phase, decision.delete, decision.create) == ("Created", (), ())
        assert look < 2 or world.memory == before, "nothing is written meanwhile"
    assert "job-a-3 (Pending: SchedulingGated)" in decision.reason
    gate(world, closed=False)
    assert world.tick(60).plan is not None


READY = WorkerSeen(
    "w", "u", "g0", 0, "Running", address="10.0.0.1:29500", metrics=WorkerMetrics(0, phase=PHASE_WAITING)
)


def with_phase(phase: str) -> WorkerSeen:
    return replace(READY, metrics=WorkerMetrics(0, phase=phase))


@pytest.mark.parametrize(
    ("worker", "state", "of_a_member"),
    [
        (replace(READY, phase="Pending", metrics=None), "created", "member"),
        (replace(READY, gated=True, phase="Pending", metrics=None), "created", "member"),
        (replace(READY, metrics=None), "created", "member"),
        (replace(READY, address=""), "created", "member"),
        (with_phase(PHASE_PREPARING), "preparing", "member"),
        (with_phase(PHASE_PAUSED), "preparing", "member"),
        (with_phase(PHASE_WARMING), "preparing", "member"),
        (READY, "warm", "member"),
        (with_phase(PHASE_STARTING), "warm", "member"),
        (with_phase(PHASE_TRAINING), "warm", "member"),
        (replace(READY, deleting_since=100.0), "leaving", "leaving"),
        (replace(READY, phase="Succeeded", exit_code=0, finished=True), "gone", "gone"),
        (replace(READY, phase="Failed", exit_code=1), "gone", "gone"),
        (replace(READY, phase="Failed", exit_code=1, deleting_since=100.0), "gone", "gone"),
    ],
)
def test_state_of_a_worker(worker: WorkerSeen, state: str, of_a_member: str) -> None:
    assert state_of(worker, is_member=False) is WorkerState(state)
    assert state_of(worker, is_member=True) is WorkerState(of_a_member)


def states(world: World) -> dict[str, str]:
    return {name: state.value for name, state in world.tick().worker_states}


def test_job_that_is_suspended_or_over_wants_no_workers() -> None:
    suspended = hetero_job(scales=(1, 2), suspend=True)
    assert decide(suspended, Seen(), Remembered.initial(), 100.0)[0].worker_states == ()
    world = hetero_world(scales=(1, 2))
    for worker in world.workers.values():
        worker.end(0, finished=True)
    assert states(world) == {"job-g0-0": "gone", "job-g1-0": "gone"}
    world.workers.clear()
    assert set(states(world).values()) <= {"gone"}


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


def test_pod_of_an_ended_worker_that_a_side_container_keeps_running_goes_with_the_running_ones() -> None:
    world = hetero_world(clean_pod_policy="Running")
    for worker in world.workers.values():
        worker.end(0, finished=True)
    decision, _ = decided(world, changed(world.seen(), "job-g1-0", lingering=True))
    assert (decision.phase, decision.delete) == ("Succeeded", ("job-g1-0",))


def test_patience_differs_from_job_to_job_and_from_try_to_try_and_is_the_same_when_asked_again() -> None:
    found = {patience_seconds(four_workers(name).job, tries) for name in ("a", "b", "c") for tries in range(5)}
    assert len(found) == 15
    assert all(150 <= seconds < 300 for seconds in found)
    numbers = [fraction("seed", number) for number in range(1000)]
    assert numbers == [fraction("seed", number) for number in range(1000)]
    assert all(0 <= each < 1 for each in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.05
