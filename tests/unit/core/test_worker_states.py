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
from heterotrain_operator.core.state import Memory
from unit.core.traces import World, hetero_job, hetero_world

WAITING = WorkerMetrics(plan_version=0, phase=PHASE_WAITING)
READY = WorkerSeen("w", "u", "g0", 0, "Running", address="10.0.0.1:29500", metrics=WAITING)


def with_phase(phase: str) -> WorkerSeen:
    return replace(READY, metrics=replace(WAITING, phase=phase))


@pytest.mark.parametrize(
    ("worker", "state"),
    [
        (replace(READY, phase="Pending", metrics=None), WorkerState.CREATED),
        (replace(READY, gated=True, phase="Pending", metrics=None), WorkerState.CREATED),
        (replace(READY, metrics=None), WorkerState.CREATED),
        (replace(READY, address=""), WorkerState.CREATED),
        (with_phase(PHASE_PREPARING), WorkerState.PREPARING),
        (with_phase(PHASE_PAUSED), WorkerState.PREPARING),
        (with_phase(PHASE_WARMING), WorkerState.PREPARING),
        (READY, WorkerState.WARM),
        (with_phase(PHASE_STARTING), WorkerState.WARM),
        (replace(READY, deleting_since=100.0), WorkerState.LEAVING),
        (replace(READY, phase="Succeeded", exit_code=0, finished=True), WorkerState.GONE),
        (replace(READY, phase="Failed", exit_code=1), WorkerState.GONE),
        (replace(READY, phase="Failed", exit_code=1, deleting_since=100.0), WorkerState.GONE),
    ],
)
def test_state_of_a_worker_that_is_no_member(worker: WorkerSeen, state: WorkerState) -> None:
    assert state_of(worker, is_member=False) is state


@pytest.mark.parametrize(
    ("worker", "state"),
    [
        (with_phase(PHASE_TRAINING), WorkerState.MEMBER),
        (with_phase(PHASE_PAUSED), WorkerState.MEMBER),
        (replace(READY, metrics=None), WorkerState.MEMBER),
        (replace(READY, deleting_since=100.0), WorkerState.LEAVING),
        (replace(READY, phase="Failed", exit_code=1), WorkerState.GONE),
    ],
)
def test_state_of_a_member(worker: WorkerSeen, state: WorkerState) -> None:
    assert state_of(worker, is_member=True) is state


def states(world: World, seconds: float = 1.0) -> dict[str, str]:
    return {name: state.value for name, state in world.tick(seconds).worker_states}


def test_life_of_a_worker_is_told_from_wanted_to_gone() -> None:
    world = World(hetero_job(scales=(1, 2)))
    assert states(world) == {"job-g0-0": "wanted", "job-g1-0": "wanted"}
    worker = world.workers["job-g1-0"]
    worker.answers = False
    assert states(world) == {"job-g0-0": "warm", "job-g1-0": "created"}
    worker.answers = True
    worker.metrics = replace(worker.metrics, phase=PHASE_PREPARING)
    assert states(world) == {"job-g0-0": "warm", "job-g1-0": "preparing"}
    worker.metrics = replace(worker.metrics, phase=PHASE_WAITING)
    assert states(world) == {"job-g0-0": "warm", "job-g1-0": "warm"}
    world.train(1)
    assert states(world) == {"job-g0-0": "member", "job-g1-0": "member"}
    worker.end(1)
    assert states(world) == {"job-g0-0": "member", "job-g1-0": "gone"}
    assert states(world) == {"job-g0-0": "wanted", "job-g1-0": "wanted"}


def test_member_that_is_not_there_is_gone_and_not_only_wanted() -> None:
    world = hetero_world(scales=(1, 2))
    world.run(1)
    del world.workers["job-g1-0"]
    assert states(world) == {"job-g0-0": "member", "job-g1-0": "gone"}


def test_pod_of_a_group_that_the_job_does_not_have_has_a_state_too() -> None:
    world = hetero_world(scales=(1, 2))
    world.run(1)
    world.workers["other"] = replace(world.workers["job-g0-0"], name="other", uid="uid-other", group="g9")
    assert states(world)["other"] == "warm"


def test_suspended_job_wants_no_workers() -> None:
    job = hetero_job(scales=(1, 2), suspend=True)
    decision, _ = decide(job, Seen(), Memory.initial(), 100.0)
    assert decision.worker_states == ()


def test_job_that_is_over_wants_no_workers() -> None:
    world = hetero_world(scales=(1, 2))
    for worker in world.workers.values():
        worker.end(0, finished=True)
    assert states(world) == {"job-g0-0": "gone", "job-g1-0": "gone"}
    world.workers.clear()
    assert set(states(world).values()) <= {"gone"}
