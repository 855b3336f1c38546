"""All or nothing: who holds places while others have none lets them go; who may not be placed yet is not pressed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.lifecycle.placement import LET_GO
from heterotrain_operator.core.model import Decision, Group, Job, Seen
from unit.core.jobs import changed, decided, reasons
from unit.core.traces import World


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
