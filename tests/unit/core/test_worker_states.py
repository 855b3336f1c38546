"""A worker's life is one state, which every decision says of every worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import (
    PHASE_PAUSED,
    PHASE_PREPARING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_WAITING,
    PHASE_WARMING,
)
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.facts import state_of
from heterotrain_operator.core.model import Seen, WorkerMetrics, WorkerSeen, WorkerState
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World, hetero_job, hetero_world

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


def test_life_of_a_worker_is_told_from_wanted_to_gone() -> None:
    first, second = "job-g0-0", "job-g1-0"
    world = World(hetero_job(scales=(1, 2)))
    assert states(world) == {first: "wanted", second: "wanted"}
    worker = world.workers[second]
    for answers, phase, state in (
        (False, PHASE_WAITING, "created"),
        (True, PHASE_PREPARING, "preparing"),
        (True, PHASE_WAITING, "warm"),
    ):
        worker.answers, worker.metrics = answers, replace(worker.metrics, phase=phase)
        assert states(world) == {first: "warm", second: state}
    world.train(1)
    assert states(world) == {first: "member", second: "member"}
    world.workers["other"] = replace(world.workers[first], name="other", uid="uid-other", group="g9")
    assert states(world)["other"] == "warm", "also of a group that the job does not have"
    worker.end(1)
    assert states(world) == {first: "member", second: "gone"}
    assert states(world) == {first: "wanted", second: "wanted"}


def test_job_that_is_suspended_or_over_wants_no_workers() -> None:
    suspended = hetero_job(scales=(1, 2), suspend=True)
    assert decide(suspended, Seen(), Remembered.initial(), 100.0)[0].worker_states == ()
    world = hetero_world(scales=(1, 2))
    for worker in world.workers.values():
        worker.end(0, finished=True)
    assert states(world) == {"job-g0-0": "gone", "job-g1-0": "gone"}
    world.workers.clear()
    assert set(states(world).values()) <= {"gone"}
