"""What a job costs is the life of its pods at their prices, whatever becomes of pods, operator and clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.model import Group, Job, WorkerSeen
from heterotrain_operator.core.remembered.cost import Cost
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import A, ends
from unit.core.traces import World

GROUPS = (Group("spot", 2, price_per_hour=3600.0), Group("gpu", 1))
"""A second of a worker costs 1."""


def pod(name: str = "spot", **known: float) -> WorkerSeen:
    return WorkerSeen(f"{name}-0", "uid", name, 0, "Succeeded" if "ended_at" in known else "Running", **known)


def spent(cost: Cost) -> dict[str, float]:
    return dict(cost.spent)


def test_each_pod_counts_from_its_creation_to_its_end_once() -> None:
    cost = Cost().counted(GROUPS, [pod(created_at=90.0), pod("gpu", created_at=0.0)], 100.0)
    assert spent(cost) == {"spot": 10.0}, "a group without a price has no cost"
    assert cost.total(["spot"]) == 10.0
    assert cost.total(["spot", "gpu"]) is None
    cost = cost.counted(GROUPS, [pod(created_at=90.0), pod(created_at=104.0), pod()], 110.0)
    assert spent(cost) == {"spot": 10 + 10 + 6 + 10}
    ended = pod(created_at=90.0, ended_at=113.0)
    cost = cost.counted(GROUPS, [ended, pod(created_at=104.0)], 120.0)
    cost = cost.counted(GROUPS, [ended, pod(created_at=104.0)], 130.0)
    assert spent(cost) == {"spot": 36 + 3 + 20}
    dearer = (replace(GROUPS[0], price_per_hour=7200.0), GROUPS[1])
    assert spent(cost.counted(dearer, [pod(created_at=104.0)], 131.0)) == {"spot": 61}, "what is spent is spent"
    assert spent(cost.counted(GROUPS[1:], [], 140.0)) == {}
    assert Cost().counted(GROUPS[1:], [pod("gpu", created_at=0.0)], 100.0) == Cost()


@pytest.mark.parametrize("leapt", [5000.0, -5000.0])
def test_a_clock_that_leaps_moves_what_was_spent(leapt: float) -> None:
    cost = Cost().counted(GROUPS, [pod(created_at=9_990.0)], 10_000.0)
    moved = Remembered(cost=cost).moved(leapt).cost
    cost = moved.counted(GROUPS, [pod(created_at=9_990.0)], 10_007.0 + leapt)
    assert spent(cost) == {"spot": 17.0}
    assert spent(cost.counted(GROUPS, [pod(created_at=9_990.0)], 10_000.0 + leapt)) == {"spot": 17.0}, "or goes back"


def test_garbage_in_what_was_spent_is_none() -> None:
    rows = '[["spot", 3.5], ["spot"], [7, 1], ["a", -1], ["b", 1e300], ["c", null], 5, ["gpu", 2, "newer"]]'
    memory = Remembered.from_json(f'{{"schema": 1, "spent": {rows}}}')
    assert spent(memory.cost) == {"spot": 3.5, "gpu": 2.0}


@pytest.mark.parametrize("forgetful", [False, True])
def test_cost_of_a_job_is_the_life_of_its_pods_through_restarts_newcomers_and_operators(forgetful: bool) -> None:
    job = Job("job", (Group("a", 3, price_per_hour=3600.0), Group("b", 1, price_per_hour=36.0)), global_batch=192)
    world = World(job, protocol=MEMBERS_MAY_END, forgetful=forgetful)
    lives: Counter[str] = Counter()
    stored = world.memory
    for look in range(40):
        if look == 12:
            ends(world, A)
        if look == 20:
            world.job = replace(job, groups=(replace(job.groups[0], replicas=5), job.groups[1]))
        if look == 30:
            world.memory = stored  # another operator, and what was measured since is lost
        seconds = 60.0 if look == 31 else 7.0
        before = [each for each in world.workers.values() if each.exit_code is None]
        for each in before:
            lives[each.group] += seconds
        decision = world.tick(seconds)
        if decision.create or decision.delete or decision.plan is not None or look < 3:
            stored = world.memory
        world.train(3)
    assert lives["a"] > lives["b"] > 0
    assert spent(world.memory.cost) == pytest.approx({"a": lives["a"], "b": lives["b"] / 100}, rel=0.01)
