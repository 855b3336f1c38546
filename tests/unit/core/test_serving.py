"""The parameter server of an asynchronous job: when it is created, when it counts, and that nothing else sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import (
    MEMBERS_MAY_END,
    PHASE_EVALUATING,
    PHASE_FINISHED,
    PHASE_PREPARING,
    PHASE_TRAINING,
    PHASE_WAITING,
)
from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import SERVER_GROUP, Decision, Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.remembered.serving import Serving
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import condition, created, ends, failure, names, reasons, resize, told
from unit.core.traces import World

SERVER = "job-server-0"


class ServedWorld(World):
    """A job of three workers and a parameter server, which tests hold in their hands, too."""

    def __init__(self, scales: dict[str, float] | None = None, **changes: Any) -> None:
        job = Job("job", (Group("a", 3),), 192, server=Group(SERVER_GROUP, 1, price_per_hour=3.6), resumable=True)
        self.server: WorkerSeen | None = None
        self.servers = 0
        super().__init__(replace(job, **changes), scales, protocol=MEMBERS_MAY_END)
        # Its workers take steps, so that what is seen of them is the same whatever becomes of the server.
        scenario = self.cluster.scenario
        self.cluster = SimulatedCluster(replace(scenario, job=replace(scenario.job, server=None)))
        self.memory = Remembered.initial()

    def seen(self) -> Seen:
        seen = super().seen()
        return seen if self.server is None else replace(seen, workers=(*seen.workers, self.server))

    def act(self, decision: Decision) -> None:
        if SERVER in decision.delete:
            self.server = None
        keys = [key for key in decision.create if key.group != SERVER_GROUP]
        if len(keys) < len(decision.create):
            assert self.server is None
            self.servers += 1
            metrics = WorkerMetrics(plan_version=0, phase=PHASE_PREPARING)
            self.server = WorkerSeen(SERVER, f"s{self.servers}", SERVER_GROUP, 0, "Running", "10.1.0.1:29500")
            self.server = replace(self.server, metrics=metrics, created_at=self.now)
        super().act(replace(decision, create=tuple(keys)))

    def is_at(self, phase: str, **changes: Any) -> None:
        assert self.server is not None and self.server.metrics is not None
        self.server = replace(self.server, metrics=replace(self.server.metrics, phase=phase, **changes))

    def server_ends(self, code: int = 137, **changes: Any) -> None:
        assert self.server is not None
        self.server = replace(self.server, phase="Failed", exit_code=code, metrics=None, **changes)

    def trains(self) -> ServedWorld:
        """Up to steps under a plan that names the server."""
        self.tick()
        self.is_at(PHASE_WAITING)
        self.tick()
        self.is_at(PHASE_TRAINING)
        self.run(2)
        return self


def test_server_is_created_first_and_no_plan_names_anybody_before_it_is_ready() -> None:
    world = ServedWorld()
    assert created([world.tick()])[0] == SERVER
    waiting = world.tick()
    assert (waiting.plan, waiting.create) == (None, ())
    assert "job-server-0 (Running, but its script is not at its loop yet)" in waiting.reason
    world.is_at(PHASE_WAITING)
    plan = world.tick().plan
    assert plan is not None and plan.server is not None
    assert (plan.server.name, plan.server.uid, plan.server.address) == (SERVER, "s1", "10.1.0.1:29500")
    assert names(plan) == ["job-a-0", "job-a-1", "job-a-2"]
    world.is_at(PHASE_TRAINING)
    assert all(each.plan is None or each.plan.server == plan.server for each in world.run(4))


def test_job_waits_for_another_server_and_goes_on_with_it_under_the_same_members() -> None:
    world = ServedWorld().trains()
    before = world.plan
    world.server_ends()
    lost = world.tick()
    assert (condition(lost).reason, lost.phase, lost.plan) == ("ServerLost", "Running", None)
    assert told([lost], "ServerLost") == ["job-server-0 was killed by SIGKILL"]
    assert "CheckpointNotDurable" not in reasons(lost)
    assert (lost.create, lost.delete) == ((), (SERVER,))
    ends(world, "job-a-1")  # meanwhile: nothing is decided about it yet
    again = world.tick()
    assert (created([again]), again.delete, condition(again).reason) == ([SERVER], (), "ServerLost")
    for _ in range(5):  # its script loads, for longer than any hang
        assert (world.tick(50).events, condition(world.decisions[-1]).reason) == ((), "ServerLost")
    world.is_at(PHASE_WAITING)
    back = world.tick()
    assert back.plan is not None and back.plan.server is not None and before is not None
    assert (back.plan.server.uid, names(back.plan), back.plan.generation) == ("s2", names(before), before.generation)
    world.is_at(PHASE_TRAINING, step=1)  # it goes on from an older step than was seen, which is no hang
    later = [world.tick(5), world.tick(5), world.tick(5)]
    assert "WorkerFailed" in reasons(later) and "job-a-3" in created(later)
    assert not condition(later[-1]).status or condition(later[-1]).reason != "ServerLost"
    assert (world.memory.serving.server_ends, world.memory.serving.server_away_at) == (1, None)


def test_server_that_ends_again_and_again_is_created_later_each_time_and_then_fails_the_job() -> None:
    world = ServedWorld(backoff_limit=2).trains()
    waits = []
    for _ in range(2):
        world.server_ends(1, message="OSError: no such folder")
        world.tick()
        begun = world.now
        while world.server is None:
            world.tick()
        waits.append(world.now - begun)
        world.is_at(PHASE_WAITING)
        world.tick()
    assert waits == [1, 1]  # at once, and after a second
    world.server_ends(1, message="OSError: no such folder")
    world.tick()
    reason, message = failure(world)
    assert reason == "BackoffLimitExceeded"
    assert "job-server-0 exited with code 1: OSError: no such folder (3 parameter servers ended" in message


def test_server_that_is_taken_away_counts_for_nothing_and_without_a_checkpoint_training_begins_again() -> None:
    world = ServedWorld(resumable=False, backoff_limit=0).trains()
    assert world.server is not None
    world.server = replace(world.server, deleting_since=world.now + 30)
    assert "job-server-0 (being deleted)" in world.tick().reason
    world.server = None
    gone = world.tick()
    assert created([gone]) == [SERVER]
    assert not reasons(gone, "Failed")
    world = ServedWorld(resumable=False).trains()
    world.server_ends(143, disrupted=True)
    assert reasons(world.tick(), "ServerLost", "CheckpointNotDurable") == ["ServerLost", "CheckpointNotDurable"]
    assert world.memory.serving.server_ends == 0


def test_server_that_does_not_start_in_time_is_replaced_and_one_that_says_so_fails_the_job() -> None:
    world = ServedWorld(startup_deadline_seconds=100).trains()
    world.server_ends()
    world.tick()
    world.tick()
    late = world.tick(101)
    assert told([late], "ServerLost") == [
        "job-server-0 was not ready within 100 s: Running, but its script is not at its loop yet"
    ]
    assert late.delete == (SERVER,)
    world = ServedWorld().trains()
    world.server_ends(1, fatal=True, message="another model")
    world.tick()
    assert failure(world) == ("WorkerFailedForGood", "job-server-0 exited with code 1: another model")


def test_nothing_that_is_decided_about_workers_speaks_of_the_server() -> None:
    world, plain = ServedWorld().trains(), World(Job("job", (Group("a", 3),), 192), protocol=MEMBERS_MAY_END)
    plain.start().run(2)
    assert world.plan is not None and plain.plan is not None
    assert world.plan.batch_sizes == plain.plan.batch_sizes
    resize(world, 2)
    world.run(3)
    assert world.server is not None and len(names(world.plan)) == 2
    assert all(SERVER not in decision.delete for decision in world.decisions)
    assert world.memory.cost.spent == (("server", pytest.approx((world.now - world.server.created_at) / 1000)),)


def test_server_goes_with_its_job_when_that_is_suspended_or_all_start_again() -> None:
    world = ServedWorld().trains()
    world.job = replace(world.job, suspend=True)
    assert SERVER in world.tick().delete
    world.tick()
    world.job = replace(world.job, suspend=False)
    assert created([world.tick()])[0] == SERVER
    assert not reasons(world.decisions[-1], "ServerLost")
    world.is_at(PHASE_WAITING)
    world.tick()
    assert world.plan is not None and world.plan.server is not None and world.plan.server.uid == "s2"
    world.is_at(PHASE_TRAINING)
    world.run(2)
    for pod in world.workers.values():
        assert pod.metrics is not None
        pod.metrics = replace(pod.metrics, in_collective=True)  # they wait for the server, which is stopped
    assert world.server is not None
    world.server = replace(world.server, metrics=None)
    hung = next(each for each in (world.tick(50) for _ in range(20)) if each.phase == "Restarting")
    assert SERVER in hung.delete
    assert "job-server-0 (metrics unreadable) hangs" in hung.reason


def test_job_succeeds_once_its_workers_and_its_server_have_ended_well() -> None:
    world = ServedWorld().trains()
    world.is_at(PHASE_EVALUATING, step=30)
    assert condition(world.tick()).reason == "Healthy"
    world.is_at(PHASE_FINISHED, step=30)
    for pod in world.workers.values():
        pod.end(0, finished=True, leader=False)
    waiting = world.tick()
    assert (waiting.phase, waiting.create) == ("Running", ())
    assert world.server is not None
    server = replace(world.server, metrics=None, step=30, leader=True)
    failed_seen = replace(
        world.seen(), workers=(*World.seen(world).workers, replace(server, phase="Failed", exit_code=1))
    )
    failed, _ = decide(world.job, failed_seen, world.memory, world.now)
    assert condition(failed, "Failed").reason == "FailedAfterTraining"
    assert "job-server-0" in condition(failed, "Failed").message
    world.server = replace(server, phase="Succeeded", exit_code=0, finished=True)
    assert world.tick().phase == "Succeeded"


def test_worker_that_lost_the_server_as_the_job_ended_is_not_awaited_for_long() -> None:
    world = ServedWorld().trains()
    world.is_at(PHASE_FINISHED, step=30)
    for name in ("job-a-0", "job-a-1"):
        world.workers[name].end(0, finished=True, leader=False)
    assert world.server is not None
    world.server = replace(
        world.server, phase="Succeeded", metrics=None, exit_code=0, finished=True, step=30, leader=True
    )
    assert [world.tick(30).phase for _ in range(3)] == ["Running"] * 3
    over = world.tick(30)
    assert over.phase == "Succeeded"
    assert "2 of 3 workers finished" in over.reason and "job-a-2 had lost the parameter server" in over.reason


def test_what_is_remembered_of_the_server_reads_back() -> None:
    known = Serving(2, "0123456789ab", 1.0, 2.0, 3.0)
    memory = replace(Remembered.initial(), serving=known)
    assert Remembered.from_json(memory.to_json()).serving == known
    assert memory.moved(5).serving == Serving(2, "0123456789ab", 6.0, 7.0, 8.0)


def test_balance_by_cycles_counts_what_a_slow_link_costs() -> None:
    def batches(balance: str) -> list[float]:
        world = ServedWorld(balance=balance, global_batch=96).trains()
        for _ in range(6):
            world.train(10)
            link = world.workers["job-a-2"]
            link.metrics = replace(link.metrics, wait_seconds=link.metrics.own_seconds)
            for name in ("job-a-0", "job-a-1"):
                pod = world.workers[name]
                pod.metrics = replace(pod.metrics, wait_seconds=0.0)
            world.tick()
        assert world.plan is not None
        return [float(batch) for batch in world.plan.batch_sizes]

    assert max(batches("Compute")) - min(batches("Compute")) <= 1
    first, second, link = batches("Cycle")
    assert first == pytest.approx(second, abs=1) and link < 0.7 * first


@pytest.mark.parametrize("policy", ["Proportional", "PapersProportional", "Optimal"])
def test_update_rates_are_evened_out_and_the_papers_rules_know_no_global_batch(policy: str) -> None:
    world = ServedWorld({"job-a-1": 2.0, "job-a-2": 4.0}, policy=policy, initial="Uniform").trains()
    world.run(12)
    assert world.plan is not None
    assert world.imbalance() < 1.06
    assert (world.plan.global_batch_size == 192) == (policy == "Optimal")
