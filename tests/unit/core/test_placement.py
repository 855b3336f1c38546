"""All or nothing: who holds places while others have none lets them go, and who may not be placed yet is not
pressed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.lifecycle.placement import LET_GO, fraction, patience_seconds
from heterotrain_operator.core.model import Decision, Group, Job
from unit.core.traces import World


def four_workers(name: str = "job", **changes: object) -> Job:
    job = Job(name, (Group("a", 4),), global_batch=192, policy="Uniform", uid=f"uid of {name}")
    return replace(job, **changes)  # type: ignore[arg-type]  # names and types are the tests' care


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
    return any(event.reason == LET_GO for event in decision.events)


def run(world: World, nodes: Nodes, seconds: int, step: float = 1.0) -> list[Decision]:
    decisions = []
    for _ in range(int(seconds / step)):
        decisions.append(world.tick(step))
        nodes.schedule()
    return decisions


def test_two_jobs_that_hold_half_of_what_both_need_do_not_block_each_other() -> None:
    started = []
    for pair in range(20):
        one, other = World(four_workers(f"one-{pair}")), World(four_workers(f"other-{pair}"))
        nodes = Nodes(6, one, other)
        for _ in range(590):
            for world in (one, other):
                world.tick()
            nodes.schedule()
            if one.plan is not None or other.plan is not None:
                break
        started.append(one.plan is not None or other.plan is not None)
        assert any(let_go(decision) for world in (one, other) for decision in world.decisions)
    assert all(started), f"{started.count(False)} of {len(started)} pairs block each other"


def test_part_that_has_places_lets_them_go_after_its_patience_and_tries_again() -> None:
    world = World(four_workers())
    nodes = Nodes(2, world)
    decisions = run(world, nodes, 400)
    first = next(rank for rank, decision in enumerate(decisions) if let_go(decision))
    assert 150 <= first <= 302
    assert len(decisions[first].delete) == 4
    assert "only 2 workers had places" in decisions[first].reason
    pause = [bool(decision.create) for decision in decisions[first + 1 :]].index(True)
    assert 9 <= pause <= 21
    assert len(decisions[first + 1 + pause].create) == 4


def test_job_that_never_gets_all_of_its_places_fails_at_its_deadline_and_says_why() -> None:
    world = World(four_workers())
    nodes = Nodes(2, world)
    decisions = run(world, nodes, 610)
    assert decisions[-1].phase == "Failed"
    assert "did not start within 600 s" in decisions[-1].reason
    assert "had places" in decisions[-1].reason


def test_workers_that_end_while_they_let_go_restart_nothing_and_cut_no_pause_short() -> None:
    world = World(four_workers())
    nodes = Nodes(2, world)
    while not any(map(let_go, world.decisions)):
        before = dict(world.workers)
        run(world, nodes, 1)
    begun, resumes = world.memory.start.starting_at, world.memory.budget.restart_at
    placed = [worker.seen() for worker in before.values() if worker.node]
    assert len(placed) == 2
    ending = tuple(
        replace(each, phase="Failed", exit_code=143, disrupted=True, deleting_since=world.now + 30) for each in placed
    )
    decision, memory = decide(world.job, replace(world.seen(), workers=ending), world.memory, world.now + 1)
    assert decision.phase == "Created"
    assert not decision.create
    assert (memory.start.starting_at, memory.budget.restart_at, memory.budget.restarts) == (begun, resumes, 0)
    assert not memory.budget.draining


def test_each_worker_that_finds_a_place_begins_the_patience_again() -> None:
    world = World(four_workers())
    nodes = Nodes(1, world)
    for places in (1, 2, 3):
        nodes.places = places
        assert not any(let_go(decision) for decision in run(world, nodes, 145))


def test_workers_without_any_place_hold_nothing_and_wait() -> None:
    world = World(four_workers())
    assert not any(let_go(decision) for decision in run(world, Nodes(0, world), 590))


def test_pods_beside_refused_ones_hold_a_quota_also_without_places() -> None:
    world = World(four_workers())
    nodes = Nodes(0, world)
    world.tick()
    nodes.schedule()
    kept = dict(list(world.workers.items())[:2])
    refused = tuple((name, "exceeded quota") for name in world.workers if name not in kept)
    world.workers = kept
    for _ in range(400):
        world.now += 1
        decision, world.memory = decide(world.job, replace(world.seen(), refused=refused), world.memory, world.now)
        if let_go(decision):
            break
    assert let_go(decision)


def test_short_deadline_is_waited_for_without_letting_go() -> None:
    world = World(four_workers(startup_deadline_seconds=50))
    decisions = run(world, Nodes(2, world), 60)
    assert not any(map(let_go, decisions))
    assert decisions[-1].phase == "Failed"


def test_patience_differs_from_job_to_job_and_from_try_to_try() -> None:
    found = {patience_seconds(four_workers(name), tries) for name in ("a", "b", "c") for tries in range(5)}
    assert len(found) == 15
    assert all(150 <= seconds < 300 for seconds in found)


def test_chance_is_even_and_the_same_when_asked_again() -> None:
    found = [fraction("seed", number) for number in range(1000)]
    assert found == [fraction("seed", number) for number in range(1000)]
    assert all(0 <= each < 1 for each in found)
    assert abs(sum(found) / len(found) - 0.5) < 0.05


# --- gates ------------------------------------------------------------------------------------------------------


def gate(world: World, closed: bool) -> None:
    for worker in world.workers.values():
        worker.gated = closed
        worker.phase, worker.message = ("Pending", "SchedulingGated") if closed else ("Running", "")


def test_pods_behind_a_gate_wait_as_long_as_it_is_closed_and_start_when_it_opens() -> None:
    world = World(four_workers())
    world.tick()
    gate(world, closed=True)
    for _ in range(100):
        decision = world.tick(60)
        assert (decision.phase, decision.delete, decision.create) == ("Created", (), ())
    assert "job-a-0 (Pending: SchedulingGated)" in decision.reason
    gate(world, closed=False)
    assert world.tick(60).plan is not None


def test_waiting_behind_a_gate_changes_nothing_that_would_be_written() -> None:
    world = World(four_workers())
    world.tick()
    gate(world, closed=True)
    world.tick(60)
    before = world.memory
    world.tick(60)
    assert world.memory == before


def test_deadline_begins_when_the_last_gate_opens() -> None:
    world = World(four_workers())
    world.tick()
    gate(world, closed=True)
    world.tick(5000)
    gate(world, closed=False)
    world.workers["job-a-0"].answers = False
    assert world.tick(1).phase == "Created"
    assert world.tick(599).phase == "Created"
    assert world.tick(2).phase == "Failed"


@pytest.mark.parametrize("placed", [1, 3])
def test_queue_that_opens_gates_one_by_one_is_not_hurried(placed: int) -> None:
    world = World(four_workers())
    world.tick()
    gate(world, closed=True)
    for worker in list(world.workers.values())[:placed]:
        worker.gated, worker.phase = False, "Running"
    assert not any(let_go(world.tick(60)) for _ in range(20))
