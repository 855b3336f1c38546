"""A member that answers nobody, and without which the others train, is replaced as one that ended; nobody else is."""

from __future__ import annotations

import math
from dataclasses import replace

from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job
from unit.core.members import A, B, C, names
from unit.core.traces import World


def world() -> World:
    made = World(Job("job", (Group("a", 3),), global_batch=192), protocol=3)
    made.start().run(3)
    return made


def look(made: World, *, silent: tuple[str, ...], together: int, looks: int = 4) -> list[Decision]:
    """Some workers do not answer, and the others say that they train with so many."""
    decisions = []
    for _ in range(looks):
        for name, pod in made.workers.items():
            pod.answers = name not in silent
            if name in (A, B, C):
                pod.metrics = replace(pod.metrics, members=together)
        decisions.append(made.tick(2.0))
    return decisions


def test_a_silent_member_without_which_the_others_train_is_replaced() -> None:
    made = world()
    decisions = look(made, silent=(B,), together=2)
    published = next(each for each in decisions if each.plan is not None)
    assert names(published.plan) == [A, C]
    told = {event.reason: event.message for event in published.events}
    assert told["WorkerFailed"] == f"{B} does not answer, and the others train without it"
    assert told["WorkerLeft"].endswith(told["WorkerFailed"])
    for _ in range(8):
        made.workers.pop(B, None)
        made.train(2)
        made.tick(5.0)
    assert names(made.plan) == [A, C, "job-a-3"]
    assert made.memory.budget.restarts == 0


def test_its_pod_is_deleted_once_the_others_have_gone_over() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    deleted = set()
    for _ in range(4):
        made.train(2)
        deleted |= set(made.tick(2.0).delete)
    assert deleted == {B}


def train_beside(made: World, name: str) -> None:
    """The others go over to the plan that names this worker no more, whose process is stopped and does not end."""
    made.train(2)
    pod = made.workers[name]
    pod.phase, pod.exit_code, pod.message, pod.left = "Running", None, "", False


def deletion_of(made: World, name: str, looks: int = 6) -> Decision:
    """The decision that deletes this worker, once the others train on without it."""
    for _ in range(looks):
        train_beside(made, name)
        decision = made.tick(2.0)
        if name in decision.delete:
            return decision
    raise AssertionError(f"{name} was not deleted")


def test_its_pod_gets_a_short_grace_since_nobody_would_use_a_longer_one() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    assert deletion_of(made, B).short_grace == (B,)


def test_it_gets_its_usual_grace_if_it_answers_again() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    made.workers[B].answers = True
    assert deletion_of(made, B).short_grace == ()


def test_it_gets_its_usual_grace_on_a_node_that_does_not_answer() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    train_beside(made, B)
    there = made.seen()
    lost = tuple(replace(each, node_lost=each.name == B) for each in there.workers)
    decision, _ = decide(made.job, replace(there, workers=lost), made.memory, made.now + 2)
    assert B in decision.delete
    assert decision.short_grace == ()


def test_a_silent_worker_that_leaves_in_order_gets_its_usual_grace() -> None:
    made = world()
    made.job = replace(made.job, groups=(Group("a", 2),))
    assert names(made.tick().plan) == [A, B]
    made.workers[C].answers = False
    assert deletion_of(made, C).short_grace == ()


def test_all_start_again_and_only_the_silent_one_gets_a_short_grace() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    made.job = replace(made.job, suspend=True)
    decision = made.tick()
    assert {A, B, C} <= set(decision.delete)
    assert decision.short_grace == (B,)


def test_a_short_silence_replaces_nobody() -> None:
    made = world()
    assert [each.plan for each in look(made, silent=(B,), together=2, looks=2)] == [None, None]
    look(made, silent=(), together=3)
    assert names(made.plan) == [A, B, C]


def test_a_silent_member_with_which_the_others_train_stays() -> None:
    made = world()
    assert [each.plan for each in look(made, silent=(B,), together=3, looks=20)] == [None] * 20


def test_of_two_silent_members_of_which_one_is_left_behind_nobody_is_taken_for_the_other() -> None:
    made = world()
    assert [each.plan for each in look(made, silent=(A, B), together=2, looks=20)] == [None] * 20


def test_trainers_that_do_not_say_with_how_many_they_train_accuse_nobody() -> None:
    made = world()
    assert [each.plan for each in look(made, silent=(B,), together=0, looks=20)] == [None] * 20


def test_one_that_says_that_it_trains_alone_accuses_nobody() -> None:
    made = world()
    for _ in range(20):
        made.workers[B].answers = False
        made.workers[C].metrics = replace(made.workers[C].metrics, members=1)
        assert made.tick(2.0).plan is None


# --- whose fault it was --------------------------------------------------------------------------------------------


def on_lost_node(made: World, name: str) -> Decision:
    """A look that shows this worker on a node that does not answer."""
    made.now += 2
    there = made.seen()
    lost = tuple(replace(each, node_lost=each.name == name) for each in there.workers)
    decision, made.memory = decide(made.job, replace(there, workers=lost), made.memory, made.now)
    made.act(decision)
    return decision


def counted(made: World) -> int:
    """How many ends count against the place of the member that was cut off, wherever that is remembered."""
    places = [place.failures for place in made.memory.pending]
    return max([*places, *(row.failures for row in made.memory.workers)])


def stays_there(made: World, looks: int) -> None:
    """So many looks, 2 s apart, in which nothing that is asked of the worker that was cut off has an effect."""
    pod = made.workers[B]
    for _ in range(looks):
        made.train(2)
        pod.phase, pod.exit_code, pod.message, pod.left, pod.answers = "Running", None, "", False, False
        made.tick(2.0)
        if B not in made.workers:
            # A pod that is deleted counts as disrupted, whoever deletes it.
            pod.gone_at, pod.disrupted = math.inf, True
            made.workers[B] = pod


def goes_on(made: World, looks: int = 60) -> None:
    """So many looks, 2 s apart, after which the pod that was cut off is gone."""
    made.workers.pop(B, None)
    for _ in range(looks):
        made.train(2)
        made.tick(2.0)


def test_one_that_was_cut_off_counts_once_it_has_ended() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    deletion_of(made, B)
    assert counted(made) == 0
    goes_on(made, looks=1)
    assert counted(made) == 1
    goes_on(made)
    assert counted(made) == 1
    assert names(made.plan) == [A, C, "job-a-3"]


def test_one_that_was_cut_off_and_does_not_end_counts_after_a_while() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    stays_there(made, looks=60)
    assert counted(made) == 1
    assert made.plan is not None
    assert [row.failures for row in made.memory.workers] == [0, 0, 1], "its successor trains by then"


def test_one_that_was_cut_off_with_its_node_does_not_count() -> None:
    made = world()
    look(made, silent=(B,), together=2)
    stays_there(made, looks=5)
    told = [event for event in on_lost_node(made, B).events if event.reason == "WorkerDisrupted"]
    assert [each.message for each in told] == [f"{B} is on a node that does not answer, so its end does not count"]
    assert [each.kind for each in told] == ["Normal"]
    goes_on(made)
    assert counted(made) == 0
    assert names(made.plan) == [A, C, "job-a-3"]


def test_lost_node_ends_no_job_that_may_lose_nobody() -> None:
    made = world()
    made.job = replace(made.job, backoff_limit=0)
    look(made, silent=(B,), together=2)
    on_lost_node(made, B)
    goes_on(made)
    assert made.decisions[-1].phase == "Running"


def test_one_that_was_cut_off_ends_a_job_that_may_lose_nobody() -> None:
    made = world()
    made.job = replace(made.job, backoff_limit=0)
    look(made, silent=(B,), together=2)
    deletion_of(made, B)
    goes_on(made, looks=1)
    assert made.decisions[-1].phase == "Failed"
    assert f"{B} does not answer, and the others train without it" in made.decisions[-1].reason
