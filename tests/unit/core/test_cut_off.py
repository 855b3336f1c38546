"""A member that answers nobody, and without which the others train, is replaced as one that ended; nobody else is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Decision
from unit.core.jobs import (
    A,
    B,
    C,
    D,
    changed,
    decided,
    elastic_world,
    names,
    resize,
    told,
)
from unit.core.traces import World


def failures(world: World) -> list[int]:
    return [row.failures for row in world.memory.workers]


def look(made: World, *silent: str, together: int, looks: int = 4) -> list[Decision]:
    """Some workers do not answer, and the others say that they train with so many."""
    decisions = []
    for _ in range(looks):
        for name, pod in made.workers.items():
            pod.answers = name not in silent
            if name in (A, B, C):
                pod.metrics = replace(pod.metrics, members=together)
        decisions.append(made.tick(2.0))
    return decisions


def stays_there(made: World, looks: int, name: str = B) -> Decision | None:
    """So many looks, in which the others train and nothing that is asked of this worker has an effect; the first
    decision that deletes it.
    """
    pod, found = made.workers[name], None
    for _ in range(looks):
        made.train(2)
        pod.phase, pod.exit_code, pod.message, pod.left = "Running", None, "", False
        decision = made.tick(2.0)
        if found is None and name in decision.delete:
            found = decision
        if name not in made.workers:
            # A pod that is deleted counts as disrupted, whoever deletes it.
            pod.gone_at, pod.disrupted = math.inf, True
            made.workers[name] = pod
    return found


def counted(made: World) -> int:
    """How many ends count against the place of the member that was cut off, wherever that is remembered."""
    return max([*(place.failures for place in made.memory.pending), *failures(made)])


def test_a_silent_member_without_which_the_others_train_is_replaced() -> None:
    made = elastic_world()
    decisions = look(made, B, together=2)
    published = next(each for each in decisions if each.plan is not None)
    assert names(published.plan) == [A, C]
    [failed], [left] = told([published], "WorkerFailed"), told([published], "WorkerLeft")
    assert failed == f"{B} does not answer, and the others train without it"
    assert left.endswith(failed)
    for _ in range(8):
        made.workers.pop(B, None)
        made.train(2)
        made.tick(5.0)
    assert names(made.plan) == [A, C, D]
    assert made.memory.budget.restarts == 0


@pytest.mark.parametrize(
    ("silent", "together", "looks"),
    [((B,), 2, 2), ((B,), 3, 20), ((A, B), 2, 20), ((B,), 0, 20)],
    ids=["for a moment", "others train with it", "nobody knows which", "others do not say"],
)
def test_nobody_else_is_replaced_for_a_silence(silent: tuple[str, ...], together: int, looks: int) -> None:
    made = elastic_world()
    assert [each.plan for each in look(made, *silent, together=together, looks=looks)] == [None] * looks


def test_one_that_says_that_it_trains_alone_accuses_nobody() -> None:
    made = elastic_world()
    for _ in range(20):
        made.workers[B].answers = False
        made.workers[C].metrics = replace(made.workers[C].metrics, members=1)
        assert made.tick(2.0).plan is None


@pytest.mark.parametrize("how", ["silent", "answers again", "leaves", "suspended", "node lost"])
def test_only_a_worker_that_was_cut_off_and_does_not_answer_gets_a_short_grace(how: str) -> None:
    made, name = elastic_world(), C if how == "leaves" else B
    if how == "leaves":
        resize(made, 2)
        assert names(made.tick().plan) == [A, B]
        made.workers[C].answers = False
    else:
        look(made, B, together=2)
    if how == "suspended":
        made.job = replace(made.job, suspend=True)
        decision: Decision | None = made.tick()
        assert decision is not None
        assert {A, B, C} <= set(decision.delete)
    elif how == "node lost":
        made.train(2)
        made.workers[B].phase, made.workers[B].exit_code = "Running", None
        decision, _ = decided(made, changed(made.seen(), B, node_lost=True, exit_code=None, phase="Running"), 2)
    else:
        made.workers[name].answers = how == "answers again"
        decision = stays_there(made, 6, name)
    assert decision is not None
    assert name in decision.delete
    assert decision.short_grace == ((B,) if how in ("silent", "suspended") else ())


@pytest.mark.parametrize("limit", [3, 0])
@pytest.mark.parametrize("how", ["ends", "stays", "node lost"])
def test_one_that_was_cut_off_counts_unless_its_node_is_lost(how: str, limit: int) -> None:
    made = elastic_world()
    made.job = replace(made.job, backoff_limit=limit)
    look(made, B, together=2)
    made.workers[B].answers = False
    stays_there(made, 60 if how == "stays" else 5)
    if how == "node lost":
        made.now += 2
        decision, made.memory = decided(made, changed(made.seen(), B, node_lost=True))
        made.act(decision)
        told_of = [event for event in decision.events if event.reason == "WorkerDisrupted"]
        assert [(each.kind, each.message) for each in told_of] == [
            ("Normal", f"{B} is on a node that does not answer, so its end does not count")
        ]
    elif how == "ends":
        assert counted(made) == 0
    made.workers.pop(B, None)
    for _ in range(60):
        made.train(2)
        if made.tick(2.0).phase == "Failed":
            break
    if how != "node lost" and limit == 0:
        assert made.decisions[-1].phase == "Failed"
        assert f"{B} does not answer, and the others train without it" in made.decisions[-1].reason
        return
    assert (made.decisions[-1].phase, names(made.plan)) == ("Running", [A, C, D])
    assert failures(made) == [0, 0, 0 if how == "node lost" else 1], "its successor trains by then"
