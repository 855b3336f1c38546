"""Whether workers finish together is said once, in the decision; condition and figure are of the same moment."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from heterotrain_operator.core.batching.words import BALANCE_TOLERANCE, balance
from heterotrain_operator.core.model import Condition, Decision
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory
from unit.core.traces import hetero_world


def balanced(decision: Decision) -> Condition:
    (found,) = [condition for condition in decision.conditions if condition.type == "Balanced"]
    return found


def test_figure_and_condition_agree_also_after_a_worker_has_changed_its_speed() -> None:
    """The means since the plan began still hold the time before the change."""
    world = hetero_world("Uniform", (1, 1, 1))
    for scale in (1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0):
        world.workers["job-g2-0"].scale = scale
        (decision,) = world.run(1)
        assert decision.imbalance is not None
        assert balanced(decision).status == (decision.imbalance <= BALANCE_TOLERANCE)
        (told,) = re.findall(r"([0-9.]+) % above the mean", balanced(decision).message)
        assert float(told) == pytest.approx(100 * decision.imbalance, rel=0.05, abs=0.6)


def test_slow_worker_shows_in_full_once_it_is_measured() -> None:
    world = hetero_world("Uniform", (1, 1, 1))
    world.run(10)
    world.workers["job-g2-0"].scale = 2.0
    assert world.run(8)[-1].imbalance == pytest.approx(2 / (4 / 3) - 1, rel=0.02)


def test_nothing_is_told_before_all_that_have_samples_are_measured() -> None:
    world = hetero_world("Uniform", (1, 1, 1))
    assert world.tick().imbalance is None
    plan = world.plan
    assert plan is not None
    half = (WorkerMemory(StepTime(mean_seconds=1.0, steps=10.0)), WorkerMemory(), WorkerMemory())
    memory = Memory(plan_version=plan.version, workers=half)
    told = balance(plan, memory)
    assert told == (None, f"no own time of job-g1-0, job-g2-0 is measured under plan {plan.version}", None)
    idle = replace(plan, members=(plan.members[0], *(replace(member, batch_size=0) for member in plan.members[1:])))
    assert balance(idle, memory)[2] == 0.0


def test_measurements_of_another_plan_tell_nothing() -> None:
    world = hetero_world()
    world.run(2)
    assert world.plan is not None
    assert balance(replace(world.plan, version=99), world.memory)[2] is None


def test_plan_in_which_nobody_has_samples_tells_nothing() -> None:
    """A damaged one can be such."""
    world = hetero_world()
    world.run(2)
    assert world.plan is not None
    nobody = replace(world.plan, members=tuple(replace(member, batch_size=0) for member in world.plan.members))
    assert balance(nobody, world.memory)[0] is None
