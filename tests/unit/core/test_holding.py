"""A job holds while a group has fewer members than `minReplicas`: nobody takes a step until others have joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END, PHASE_HOLDING
from heterotrain_operator.clusters.simulated.pod import FIRST_WORDS, READY
from heterotrain_operator.core.lifecycle.following import has_trained
from heterotrain_operator.core.lifecycle.holding import BELOW_MIN_REPLICAS
from heterotrain_operator.core.model import Decision, Group, Job
from unit.core.jobs import A, B, C, D, condition, elastic_world, ends, names, reasons
from unit.core.traces import World


def holds(world: World) -> bool:
    return world.plan.holds


def least(world: World, replicas: int, least: int) -> None:
    """Other numbers of workers are wanted."""
    world.job = replace(world.job, groups=(Group("a", replicas, min_replicas=least),))


def holding(made: World) -> World:
    """Two of three workers have ended, and the one that is left has gone over to the plan that says so."""
    for name in (B, C):
        ends(made, name)
    assert "GenerationChanged" in reasons(made.tick())
    made.train(3)
    return made


def wait(made: World, looks: int, seconds: float = 5.0, *, ready: bool = True, only: str = "") -> list[Decision]:
    """Decisions of so many looks, between which members take steps if they may; new workers get `ready` or do not."""
    decisions = []
    for _ in range(looks):
        for name, pod in made.workers.items():
            if not has_trained(pod.seen()):
                comes = ready and only in ("", name)
                pod.ready_at, pod.metrics = (None, READY) if comes else (made.now + 1e6, FIRST_WORDS)
        decisions.append(made.tick(seconds))
        made.train(1)
    return decisions


def test_fewer_members_than_the_least_take_no_step_and_more_go_on() -> None:
    made = holding(elastic_world(least=2))
    assert holds(made)
    step = made.cluster.training.step
    made.workers[A].scale *= 4
    made.train(20)
    assert {each.plan for each in wait(made, 5, ready=False)} == {None}, "batches do not change meanwhile"
    assert (made.cluster.training.step, made.workers[A].metrics.phase) == (step, PHASE_HOLDING)
    wait(made, 8)
    assert not holds(made)
    made.train(20)
    assert made.cluster.training.step > step
    assert (len(names(made.plan)), made.memory.budget.restarts) == (3, 0)


def test_that_a_job_holds_and_why_is_reported_once_and_shown_all_the_time_and_is_no_hanging() -> None:
    made = elastic_world(least=3, startup_deadline_seconds=1e5, progress_timeout_seconds=60.0)
    ends(made, B)
    decisions = [made.tick(), *wait(made, 60, 30.0, ready=False)]
    assert reasons(decisions, BELOW_MIN_REPLICAS) == [BELOW_MIN_REPLICAS]
    for each in decisions:
        degraded = condition(each)
        assert (each.phase, degraded.status, degraded.reason) == ("Running", True, BELOW_MIN_REPLICAS)
        assert "group a has 2 of at least 3 workers" in degraded.message
    assert made.memory.budget.restarts == 0
    assert not condition(wait(made, 10)[-1]).status


def test_least_that_is_raised_makes_members_hold_and_one_that_is_lowered_lets_them_go_on() -> None:
    made = elastic_world()
    least(made, 5, 5)
    plan = made.tick().plan
    assert (plan.holds, plan.generation, plan.apply_at) == (True, 1, "step")
    made.train(30)  # it takes some steps until all have gone over
    step = made.cluster.training.step
    made.train(5)
    assert made.cluster.training.step == step
    least(made, 3, 3)
    made.tick()
    assert not holds(made)
    made.tick()
    made.train(5)
    assert made.cluster.training.step > step


def test_job_to_which_nobody_comes_any_more_fails() -> None:
    made = elastic_world(least=3, backoff_limit=1)
    ends(made, B)
    decisions = [made.tick()]
    for _ in range(40):
        for name, pod in made.workers.items():
            if name not in (A, C) and pod.exit_code is None:
                pod.end(1)
        decisions += wait(made, 1, 10)
        if decisions[-1].phase != "Running":
            break
    assert decisions[-1].phase == "Failed"
    assert "group a has 2 of at least 3 workers" in decisions[-1].reason
    assert made.memory.outcome.reason == "BackoffLimitExceeded"


@pytest.mark.parametrize("count", [1, 2])
def test_each_group_has_a_least_of_its_own(count: int) -> None:
    groups = (Group("a", 2, min_replicas=2), Group("b", 2, min_replicas=count), Group("c", 2))
    made = World(Job("job", groups, global_batch=192), protocol=MEMBERS_MAY_END)
    made.start().run(3)
    for name in ("job-b-0", "job-c-0", "job-c-1"):
        ends(made, name)
    decision = made.tick()
    assert holds(made) == (count == 2)
    assert ("group b has 1 of at least 2 workers" in condition(decision).message) == (count == 2)


@pytest.mark.parametrize("ends_first", [True, False])
def test_nobody_holds_once_a_member_has_finished(ends_first: bool) -> None:
    made = elastic_world(least=3)
    if ends_first:
        ends(made, C)
    ends(made, A, "finish")
    decisions = [made.tick()]
    if not ends_first:
        ends(made, C)
    decisions += wait(made, 6, 10)
    assert not any(each.plan is not None and each.plan.holds for each in decisions)
    ends(made, B, "finish")
    assert made.tick().phase == "Succeeded"


def test_lost_plan_of_a_job_that_holds_is_restored_and_lets_it_hold_on() -> None:
    groups = (Group("a", 2, min_replicas=2), Group("b", 2))
    made = World(Job("job", groups, global_batch=192), protocol=MEMBERS_MAY_END).start()
    made.run(2)
    ends(made, "job-a-1")
    made.tick()
    del made.workers["job-a-2"]
    made.train(1)
    before = made.plan
    # As many workers as are wanted, but not in each group.
    made.job = replace(made.job, groups=(groups[0], Group("b", 1)))
    for _ in range(3):
        made.plan = None
        restored = made.tick(30).plan
        assert (restored.members, restored.holds) == (before.members, True)
        made.train(2)
    assert made.memory.budget.restarts == 0


def joined_while_they_hold(made: World) -> list[Decision]:
    """Of four workers that are wanted two hold, then one joins them, and the fourth does not come."""
    ends(made, B)
    decisions = [made.tick()]
    least(made, 4, 4)
    decisions += wait(made, 10, only=D)
    assert (names(made.plan), holds(made)) == ([A, C, D], True)
    return decisions


def test_another_plan_that_holds_too_is_no_other_hold_and_its_joiner_is_not_measured() -> None:
    made = World(Job("job", (Group("a", 3, min_replicas=3),), global_batch=192), protocol=MEMBERS_MAY_END)
    made.nodes = {A: "node-1", B: "node-2", C: "node-3", D: "node-4"}
    made.start().run(3)
    decisions = joined_while_they_hold(made)
    assert sum(each.plan is not None and each.plan.holds for each in decisions) == 2
    assert reasons(decisions, BELOW_MIN_REPLICAS) == [BELOW_MIN_REPLICAS]
    assert [known.batch_cost.predicted for known in made.memory.workers] == [0, 0, 1]
    least(made, 4, 3)
    made.tick()
    assert not holds(made)
    assert [known.batch_cost.predicted for known in made.memory.workers] == [0, 0, 1]


def test_silent_member_that_holds_is_named_and_counts_as_hanging_after_a_while() -> None:
    made = holding(elastic_world(least=2, startup_deadline_seconds=600.0, progress_timeout_seconds=60.0))
    wait(made, 5, 30.0, ready=False)
    made.workers[A].answers = False
    decisions = wait(made, 2, 10.0, ready=False)
    assert f"metrics cannot be read of {A}" in condition(decisions[-1]).message
    decisions += wait(made, 8, 10.0, ready=False)
    assert "Restarting" in {each.phase for each in decisions}
    assert "WorkerHung" in reasons(decisions)
