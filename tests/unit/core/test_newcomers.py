"""Workers that were no members yet, or are none any more: whatever becomes of them, those that train go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import (
    MEMBERS_CHANGE,
    MEMBERS_MAY_END,
    PHASE_EVALUATING,
    PHASE_REFORMING,
    PHASE_STARTING,
    PHASE_WAITING,
    Plan,
)
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.state import Memory
from unit.core.test_membership import A, B, C, elastic_world, names, planned_world, resize, settled
from unit.core.traces import World, hetero_world

D, E = "job-a-3", "job-a-4"


def world_of(protocol: int) -> World:
    """Three workers that train, and meet by that protocol."""
    return elastic_world() if protocol == MEMBERS_MAY_END else planned_world()


def late(world: World) -> None:
    """No worker's volume shows a new plan."""
    vars(world.cluster.training)["publish"] = lambda _: None


def on_time(world: World) -> None:
    """All volumes show the newest plan."""
    training = world.cluster.training
    del vars(training)["publish"]
    if world.plan is not None:
        training.publish(world.plan)


def joined_by(world: World, replicas: int) -> World:
    """More workers are wanted, and are there."""
    resize(world, replicas)
    world.tick()
    return world


# --- whose ends count -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fatal", "silent", "script"])
def test_newcomer_that_ends_in_the_same_look_as_a_member_fails_no_job(how: str) -> None:
    world = joined_by(planned_world(), 4)
    newcomer = world.workers[D]
    if how == "fatal":
        newcomer.end_for_good("another model")
    elif how == "silent":
        newcomer.end(0)
    else:
        newcomer.end_by_script(0)
    world.workers[B].end(143, disrupted=True)
    decision = world.tick()
    assert decision.phase == "Restarting"
    assert world.memory.budget.restarts == 0, "a disruption is nobody's fault"
    assert D not in decision.reason


def test_newcomer_that_is_taken_away_does_not_excuse_a_member_that_fails() -> None:
    world = joined_by(planned_world(), 4)
    world.workers[D].end(143, disrupted=True)
    world.workers[B].end(1)
    assert world.tick().phase == "Restarting"
    assert world.memory.budget.restarts == 1


def test_worker_that_left_by_plan_and_ends_badly_fails_no_job() -> None:
    world = planned_world()
    resize(world, 2)
    world.tick()
    world.train(1)
    assert names(world.plan) == [A, B]
    world.workers[C].end_for_good("cut off while it left")
    world.workers[B].end(143, disrupted=True)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Restarting", 0)
    assert C not in decision.reason


@pytest.mark.parametrize("how", ["end_for_good", "end_asked", "end"])
def test_pod_that_no_plan_names_ends_as_it_likes(how: str) -> None:
    world = hetero_world(scales=(1, 2))
    world.run(1)
    stray = replace(world.workers["job-g1-0"], name="job-g1-7", uid="uid-stray", index=7)
    world.workers[stray.name] = stray
    getattr(stray, how)(*{"end_for_good": ["no"], "end": [3]}.get(how, []))
    decision = world.tick()
    assert (decision.phase, decision.delete) == ("Running", (stray.name,))


# --- between the plan that names a newcomer and the step at which all go over ------------------------------------


def named(world: World, replicas: int = 4) -> World:
    """A plan names newcomers, and nobody has taken a step since."""
    joined_by(world, replicas)
    world.train(1)
    world.tick()
    assert names(world.plan) == [f"job-a-{index}" for index in range(replicas)]
    return world


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
@pytest.mark.parametrize("how", ["kill", "preempt", "vanish", "delete", "fatal", "script"])
def test_newcomer_that_ends_before_the_switch_is_left_out_and_replaced(protocol: int, how: str) -> None:
    world = named(world_of(protocol), 5)
    newcomer = world.workers[D]
    if how == "kill":
        newcomer.end(137)
    elif how == "preempt":
        newcomer.end(143, disrupted=True)
    elif how == "vanish":
        del world.workers[D]
    elif how == "delete":
        newcomer.gone_at = world.now + 30
    elif how == "fatal":
        newcomer.end_for_good("another model")
    else:
        newcomer.end_by_script(0)
    decision = world.tick()
    assert decision.phase == "Running"
    assert names(decision.plan) == [A, B, C, E]
    settled(world, 12)
    assert names(world.plan) == [A, B, C, E, "job-a-5"]
    assert (world.memory.budget.restarts, world.created) == (0, 6)


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_newcomers_of_which_every_one_raises_at_its_start_fail_no_job(protocol: int) -> None:
    world = world_of(protocol)
    resize(world, 4)
    for _ in range(3):
        for pod in world.workers.values():
            if pod.metrics.generation == 0 and pod.exit_code is None:
                pod.end_by_script(0)
        world.train(1)
        assert world.tick(5).phase == "Running"
    assert world.memory.budget.restarts == 0


def test_newcomer_that_is_seen_to_have_gone_over_is_a_member_as_any_other() -> None:
    world = named(planned_world())
    world.train(1)
    world.tick()
    world.workers[D].end(137)
    assert world.tick().phase == "Restarting"


def test_member_that_ends_before_the_switch_is_no_newcomer() -> None:
    world = named(planned_world())
    world.workers[C].end(137)
    assert world.tick().phase == "Restarting"


def test_batch_that_a_newcomer_has_never_computed_is_not_what_it_ran_out_of_memory_with() -> None:
    world = named(elastic_world())
    world.workers[D].end_out_of_memory("while it imported")
    world.tick()
    [place] = world.memory.pending
    assert (place.failures, place.known.memory_use.failed_batch) == (1, 0)


def test_job_that_ends_before_its_newcomer_has_met_the_others_has_succeeded() -> None:
    world = named(elastic_world())
    for name in (A, B, C):
        world.workers[name].end(0, finished=True)
    world.workers[D].end(1, message="lost the others")
    assert world.tick().phase == "Succeeded"


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_newcomer_is_known_as_one_though_the_memory_is_lost(protocol: int) -> None:
    world = named(world_of(protocol))
    world.job = replace(world.job, backoff_limit=0)
    world.memory = Memory.initial()
    world.tick()
    world.workers[D].end(1)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [A, B, C])


def test_member_that_ends_together_with_the_memory_starts_nobody_again() -> None:
    world = elastic_world()
    world.memory = Memory.initial()
    world.workers[A].end(137)
    decision = world.tick()
    assert (decision.phase, names(decision.plan)) == ("Running", [B, C])


# --- how long a change may take ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_volumes_that_are_late_take_nobody_out(protocol: int) -> None:
    world = world_of(protocol)
    late(world)
    resize(world, 4)
    for _ in range(16):
        world.train(2)
        decision = world.tick(5)
        assert D not in decision.delete
    on_time(world)
    settled(world, 4)
    assert names(world.plan) == [A, B, C, D]
    assert world.created == 4


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
def test_worker_that_is_to_leave_is_not_deleted_while_it_trains_with_those_that_stay(protocol: int) -> None:
    world = world_of(protocol)
    late(world)
    resize(world, 2)
    for look in range(60):
        if look > 30:
            world.workers[C].answers = look % 3 > 0
        world.train(2)
        decision = world.tick(5)
        assert C not in decision.delete
    on_time(world)
    settled(world, 4)
    assert set(world.workers) == {A, B}


def test_large_state_takes_as_long_as_it_takes_once_the_others_have_gone_over() -> None:
    world = named(elastic_world())
    newcomer = world.workers[D]
    world.train(1)
    for _ in range(50):
        newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        world.train(1)
        newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        decision = world.tick(10)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())
    settled(world, 3)
    assert names(world.plan) == [A, B, C, D]


@pytest.mark.parametrize("phase", [PHASE_STARTING, PHASE_REFORMING])
def test_nobody_hangs_while_all_wait_until_a_newcomer_has_their_state(phase: str) -> None:
    world = named(elastic_world())
    for pod in world.workers.values():
        pod.metrics = replace(pod.metrics, phase=phase)
    for _ in range(50):
        decision = world.tick(10)
        assert (decision.phase, decision.plan, decision.delete) == ("Running", None, ())


def test_newcomer_that_is_on_its_way_in_for_too_long_is_left_out() -> None:
    world = named(elastic_world(startup_deadline_seconds=100.0))
    newcomer = world.workers[D]
    plans = []
    for _ in range(20):
        world.train(1)
        if D in world.workers:
            newcomer.metrics = replace(newcomer.metrics, generation=0, plan_version=0, phase=PHASE_STARTING)
        plans.append(world.tick(10).plan)
    assert [A, B, C] in [names(plan) for plan in plans if plan is not None]


def nobody_reaches(world: World, *reached: str) -> None:
    """No plan that names others than these is ever carried out, since the members cannot reach them."""
    training = world.cluster.training
    publish = type(training).publish

    def those_reached(plan: Plan) -> None:
        if {member.name for member in plan.members} <= set(reached):
            publish(training, plan)

    vars(training)["publish"] = those_reached


@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
@pytest.mark.parametrize("forgetful", [False, True])
def test_newcomers_that_nobody_reaches_are_tried_so_often_and_given_up(protocol: int, forgetful: bool) -> None:
    world = world_of(protocol)
    world.forgetful = forgetful
    world.job = replace(world.job, backoff_limit=2)
    nobody_reaches(world, A, B, C)
    resize(world, 4)
    step = world.cluster.training.step
    for _ in range(120):
        world.train(1)
        assert world.tick(5).phase == "Running"
    assert world.created == 3 + 3, "one, and two in its place"
    assert (set(world.workers), names(world.plan)) == ({A, B, C}, [A, B, C])
    assert world.cluster.training.step == step + 120
    [condition] = [each for each in world.decisions[-1].conditions if each.type == "Degraded"]
    assert (condition.status, condition.reason) == (True, "WorkersMissing")
    assert "given up after 3 tries" in condition.message
    assert "did not follow the plan" in condition.message


def test_newcomers_that_nobody_reaches_are_tried_later_each_time() -> None:
    world = elastic_world()
    world.job = replace(world.job, backoff_limit=6)
    nobody_reaches(world, A, B, C)
    resize(world, 4)
    waited, left_at = [], None
    for _ in range(900):
        world.train(1)
        decision = world.tick(1)
        if "PlanNotFollowed" in [event.reason for event in decision.events]:
            left_at = world.now
        if left_at is not None and decision.create:
            waited.append(world.now - left_at)
            left_at = None
    assert waited == [0, 1, 2, 4, 8, 16]


def test_newcomer_that_nobody_reaches_keeps_no_other_out() -> None:
    world = elastic_world(backoff_limit=2)
    resize(world, 5)
    unreachable = {D}
    for _ in range(100):
        nobody_reaches(world, *(set(world.workers) - unreachable))
        world.train(1)
        assert world.tick(5).phase == "Running"
        # Whoever comes in its place is not reached either.
        places = (place for place in world.memory.pending if place.replaces in unreachable)
        unreachable |= {worker_name("job", place.group, place.index) for place in places}
    assert names(world.plan)[:3] == [A, B, C]
    assert len(names(world.plan)) == 4
    assert world.created == 5 + 2 + 1, "both are tried once more, and one of them a third time"


def test_newcomer_that_is_taken_away_before_the_switch_does_not_forget_the_tries_before_it() -> None:
    world = elastic_world()
    resize(world, 4)
    for tries in range(1, 5):
        while world.plan is None or len(world.plan.members) < 4:
            world.train(1)
            world.tick(5)
        world.workers[world.plan.members[-1].name].end(143, disrupted=True)
        world.tick()
        [place] = world.memory.pending
        assert (place.failures, place.tries) == (0, tries)


def test_newcomer_that_trains_has_left_the_tries_before_it_behind() -> None:
    world = named(elastic_world())
    assert [place.identity for place in world.memory.pending] == [("a", 3)]
    settled(world, 2)
    assert world.memory.pending == ()


def test_pause_of_those_that_stay_is_written_once_in_a_while_at_most() -> None:
    world = named(elastic_world())
    for pod in world.workers.values():
        pod.metrics = replace(pod.metrics, phase=PHASE_EVALUATING if pod.metrics.generation else PHASE_WAITING)
    before, _ = world.memory, world.tick(1)
    writes = 0
    for _ in range(30):
        before = world.memory
        world.tick(1)
        assert world.memory.following.changed_at == world.now
        writes += not world.memory.same_but_measurements(before)
    assert writes <= 6


@pytest.mark.parametrize("vanishes", [False, True])
def test_members_that_cannot_go_on_without_one_that_was_to_leave_start_again_at_once(vanishes: bool) -> None:
    world = planned_world()
    late(world)
    resize(world, 2)
    world.tick()
    world.workers[C].end(137)
    if vanishes:
        del world.workers[C]
    world.train(1)
    decision = world.tick()
    assert (decision.phase, world.memory.budget.restarts) == ("Restarting", 0)
    assert "was to leave" in decision.reason


def test_newcomer_that_ends_when_the_others_have_gone_over_unseen_starts_all_that_cannot_do_without_it_again() -> None:
    world = named(planned_world())
    readings = {name: pod.metrics for name, pod in world.workers.items()}
    world.train(1)
    world.workers[D].end(137)
    world.train(1)
    new = {name: pod.metrics for name, pod in world.workers.items()}
    for name, pod in world.workers.items():
        pod.metrics = readings[name]
    assert names(world.tick().plan) == [A, B, C], "as far as is known, nobody needs it"
    for name, metrics in new.items():
        if name in world.workers:
            world.workers[name].metrics = metrics
    assert world.tick().phase == "Restarting"


# --- what is reported of workers that leave ----------------------------------------------------------------------


def states(world: World) -> dict[str, str]:
    return {name: state.value for name, state in world.decisions[-1].worker_states}


def test_worker_that_the_plan_names_no_more_is_leaving_until_it_is_gone() -> None:
    world = elastic_world()
    resize(world, 2)
    world.tick()
    assert states(world) == {A: "member", B: "member", C: "leaving"}, "the plan of this very look lets it go"
    world.tick()
    assert states(world)[C] == "leaving"
    world.workers[C].answers = False
    world.tick()
    assert states(world)[C] == "leaving", "whatever can be read of it"
    world.train(1)
    world.tick()
    assert states(world)[C] == "gone"


def test_worker_that_leaves_and_cannot_be_read_takes_no_newcomers_place() -> None:
    world = elastic_world()
    late(world)
    resize(world, 2)
    world.tick()
    world.workers[C].answers = False
    resize(world, 3)
    decisions = [world.tick(11), world.tick(11)]
    assert [key.name for decision in decisions for key in decision.create] == [D]
    assert not any(C in decision.delete for decision in decisions)
