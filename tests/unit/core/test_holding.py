"""A job holds while a group has fewer members than `minReplicas`: nobody takes a step until others have joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import PHASE_HOLDING
from heterotrain_operator.clusters.simulated.pod import FIRST_WORDS, READY
from heterotrain_operator.core.lifecycle.following import has_trained
from heterotrain_operator.core.lifecycle.holding import BELOW_MIN_REPLICAS
from heterotrain_operator.core.memory.replacements import Removal
from heterotrain_operator.core.model import Condition, Decision, Group, Job, Stragglers
from unit.core.members import A, B, C, names, reasons
from unit.core.traces import World


def world(least: int | None, replicas: int = 3, **changes: object) -> World:
    """One group of workers that trains."""
    job = Job("job", (Group("a", replicas, min_replicas=least),), global_batch=192)
    made = World(replace(job, **changes), protocol=3)  # type: ignore[arg-type]  # the tests' care
    made.start().run(3)
    return made


def degraded(decision: Decision) -> Condition:
    [found] = [each for each in decision.conditions if each.type == "Degraded"]
    return found


def holding(made: World) -> World:
    """Two of three workers have ended, and the one that is left has gone over to the plan that says so."""
    for name in (B, C):
        made.workers[name].end(137)
    assert "GenerationChanged" in reasons(made.tick())
    made.train(3)
    return made


def wait(made: World, looks: int, seconds: float = 5.0, *, ready: bool = True) -> list[Decision]:
    """Decisions of so many looks, between which members take steps if they may; new workers get `ready` or do not."""
    decisions = []
    for _ in range(looks):
        for name, pod in made.workers.items():
            if name not in (A, B, C) and not has_trained(pod.seen()):
                pod.ready_at, pod.metrics = (None, READY) if ready else (made.now + 1e6, FIRST_WORDS)
        decisions.append(made.tick(seconds))
        made.train(1)
    return decisions


def test_fewer_members_than_the_least_take_no_step_and_more_go_on() -> None:
    made = world(least=2)
    holding(made)
    assert made.plan is not None
    assert made.plan.holds
    step = made.cluster.training.step
    made.train(20)
    assert made.cluster.training.step == step
    assert made.workers[A].metrics.phase == PHASE_HOLDING
    wait(made, 8)
    assert not made.plan.holds
    made.train(20)
    assert made.cluster.training.step > step
    assert len(made.plan.members) == 3
    assert made.memory.budget.restarts == 0


def test_as_many_members_as_the_least_train_on() -> None:
    made = world(least=2)
    made.workers[B].end(137)
    decision = made.tick()
    assert decision.plan is not None
    assert not decision.plan.holds
    assert degraded(decision).reason != BELOW_MIN_REPLICAS


def test_without_a_least_whoever_is_left_trains_on() -> None:
    made = holding(world(least=None))
    assert made.plan is not None
    assert not made.plan.holds


def test_that_a_job_holds_and_why_is_reported_once_and_shown_all_the_time() -> None:
    made = world(least=3)
    made.workers[B].end(137)
    decisions = [made.tick(), *wait(made, 2, ready=False)]
    assert [reasons(each).count(BELOW_MIN_REPLICAS) for each in decisions] == [1, 0, 0]
    for each in decisions:
        assert each.phase == "Running"
        assert degraded(each).status
        assert degraded(each).reason == BELOW_MIN_REPLICAS
        assert "group a has 2 of at least 3 workers" in degraded(each).message
    decisions = wait(made, 10)
    assert not degraded(decisions[-1]).status


def holding_with_a_joiner(made: World) -> list[Decision]:
    """Of four workers that are wanted two hold, then one joins them, and the fourth does not come."""
    made.workers[B].end(137)
    decisions = [made.tick()]
    made.job = replace(made.job, groups=(Group("a", 4, min_replicas=4),))
    for _ in range(10):
        for name, pod in made.workers.items():
            if name not in (A, C) and not has_trained(pod.seen()):
                comes = name == "job-a-3"
                pod.ready_at, pod.metrics = (None, READY) if comes else (made.now + 1e6, FIRST_WORDS)
        decisions.append(made.tick(5.0))
        made.train(1)
    assert names(made.plan) == [A, C, "job-a-3"]
    assert made.plan is not None
    assert made.plan.holds
    return decisions


def test_another_plan_that_holds_too_is_no_other_hold() -> None:
    made = world(least=3)
    decisions = holding_with_a_joiner(made)
    assert sum(each.plan is not None and each.plan.holds for each in decisions) == 2
    assert sum(reasons(each).count(BELOW_MIN_REPLICAS) for each in decisions) == 1


def test_speed_of_a_joiner_is_only_predicted_until_it_has_taken_steps_also_where_the_least_is_lowered() -> None:
    made = World(Job("job", (Group("a", 3, min_replicas=3),), global_batch=192), protocol=3)
    made.nodes = {A: "node-1", B: "node-2", C: "node-3", "job-a-3": "node-4"}
    made.start().run(3)
    holding_with_a_joiner(made)
    assert [known.batch_cost.predicted for known in made.memory.workers] == [0, 0, 1]
    made.job = replace(made.job, groups=(Group("a", 4, min_replicas=3),))
    decision = made.tick()
    assert decision.plan is not None
    assert not decision.plan.holds
    assert [known.batch_cost.predicted for known in made.memory.workers] == [0, 0, 1]


def test_silent_member_without_which_the_others_hold_on_is_replaced() -> None:
    made = world(least=4, replicas=4)
    made.workers["job-a-3"].end(137)
    made.tick()
    made.train(3)
    decisions = []
    for _ in range(5):
        made.workers[B].answers = False
        for name in (A, C):
            made.workers[name].metrics = replace(made.workers[name].metrics, phase=PHASE_HOLDING, members=2)
        decisions += wait(made, 1, 2.0, ready=False)
    assert names(made.plan) == [A, C]
    assert made.plan is not None
    assert made.plan.holds
    assert sum(reasons(each).count(BELOW_MIN_REPLICAS) for each in decisions) == 0


def test_workers_that_hold_for_long_do_not_count_as_hanging() -> None:
    made = world(least=3, startup_deadline_seconds=1e5, progress_timeout_seconds=60.0)
    made.workers[B].end(137)
    decisions = wait(made, 60, 30.0, ready=False)
    assert {each.phase for each in decisions} == {"Running"}
    assert [degraded(each).reason for each in decisions] == [BELOW_MIN_REPLICAS] * 60
    assert made.memory.budget.restarts == 0
    wait(made, 8)
    assert not degraded(made.tick()).status


def test_least_that_is_raised_makes_members_hold_and_one_that_is_lowered_lets_them_go_on() -> None:
    made = world(least=None)
    made.job = replace(made.job, groups=(Group("a", 5, min_replicas=5),))
    decision = made.tick()
    assert decision.plan is not None
    assert decision.plan.holds
    assert decision.plan.generation == 1
    assert decision.plan.apply_at == "step"
    made.train(30)  # it takes some steps until all have gone over
    step = made.cluster.training.step
    made.train(5)
    assert made.cluster.training.step == step
    made.job = replace(made.job, groups=(Group("a", 3, min_replicas=3),))
    made.tick()
    assert made.plan is not None
    assert not made.plan.holds
    made.tick()
    made.train(5)
    assert made.cluster.training.step > step


def test_batches_are_not_changed_while_nobody_takes_a_step() -> None:
    made = holding(world(least=2))
    assert made.plan is not None
    before = made.plan.batch_sizes
    made.workers[A].scale *= 4
    assert {each.plan for each in wait(made, 20, ready=False)} == {None}
    assert made.plan.batch_sizes == before


def test_job_to_which_nobody_comes_any_more_fails() -> None:
    made = world(least=3, backoff_limit=1)
    made.workers[B].end(137)
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


def test_lost_plan_of_a_job_that_holds_is_restored_and_lets_it_hold_on() -> None:
    made = holding(world(least=2, startup_deadline_seconds=1e6))
    for _ in range(3):
        made.plan = None
        made.tick()
        made.train(2)
    assert made.memory.budget.restarts == 0


@pytest.mark.parametrize("count", [1, 2])
def test_each_group_has_a_least_of_its_own(count: int) -> None:
    groups = (Group("a", 2, min_replicas=2), Group("b", 2, min_replicas=count), Group("c", 2))
    made = World(Job("job", groups, global_batch=192), protocol=3)
    made.start().run(3)
    for name in ("job-b-0", "job-c-0", "job-c-1"):
        made.workers[name].end(137)
    decision = made.tick()
    assert decision.plan is not None
    assert decision.plan.holds == (count == 2)
    assert ("group b has 1 of at least 2 workers" in degraded(decision).message) == (count == 2)


@pytest.mark.parametrize("ends_first", [True, False])
def test_nobody_holds_once_a_member_has_finished(ends_first: bool) -> None:
    made = world(least=3)
    if ends_first:
        made.workers[C].end(137)
    made.workers[A].end(0, finished=True)
    decisions = [made.tick()]
    if not ends_first:
        made.workers[C].end(137)
    for _ in range(6):
        decisions += wait(made, 1, 10)
    assert not any(each.plan is not None and each.plan.holds for each in decisions)
    made.workers[B].end(0, finished=True)
    assert made.tick().phase == "Succeeded"


def test_place_of_a_removed_straggler_comes_back_where_the_group_is_to_have_more_workers() -> None:
    made = world(least=2, replicas=4, stragglers=Stragglers(action="Remove"))
    made.memory = replace(made.memory, remedies=replace(made.memory.remedies, removed=(Removal("a", 4, 1),)))
    made.job = replace(made.job, groups=(Group("a", 4, min_replicas=2),))
    made.workers["job-a-3"].end(0)
    wait(made, 6)
    assert names(made.plan) == [A, B, C]
    made.job = replace(made.job, groups=(Group("a", 4, min_replicas=4),))
    decisions = wait(made, 10)
    assert {each.phase for each in decisions} == {"Running"}
    assert made.memory.remedies.removed == ()
    assert made.plan is not None
    assert len(made.plan.members) == 4
    assert not made.plan.holds


def test_silent_member_that_holds_is_named_and_counts_as_hanging_after_a_while() -> None:
    made = holding(world(least=2, startup_deadline_seconds=600.0, progress_timeout_seconds=60.0))
    wait(made, 5, 30.0, ready=False)
    made.workers[A].answers = False
    decisions = wait(made, 2, 10.0, ready=False)
    assert "metrics cannot be read of job-a-0" in degraded(decisions[-1]).message
    decisions += wait(made, 8, 10.0, ready=False)
    assert "Restarting" in {each.phase for each in decisions}
    assert "WorkerHung" in [reason for each in decisions for reason in reasons(each)]


def test_members_that_need_one_another_do_not_hold() -> None:
    job = Job("job", (Group("a", 3, min_replicas=3),), global_batch=192)
    made = World(job, protocol=1)
    made.start().run(3)
    made.workers[B].end(137)
    assert made.tick().phase == "Restarting"
    assert names(made.plan) == [A, B, C]
