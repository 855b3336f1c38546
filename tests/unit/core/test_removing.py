"""Stragglers are removed where the others are faster without them, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.remembered.replacements import Removal
from unit.core.jobs import A, B, C, D, ends, names, told
from unit.core.traces import World

REMOVE = Stragglers(action="Remove")


def world(
    *, least: int = 16, min_replicas: int = 1, protocol: int = MEMBERS_MAY_END, settings: Stragglers = REMOVE
) -> World:
    """Four alike workers, each of which has at least so many of the 128 samples."""
    group = Group("a", 4, batch_min=least, min_replicas=min_replicas)
    made = World(Job("job", (group,), 128, stragglers=settings), noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def removed(made: World, intervals: int = 20, factor: float = 6) -> list[Decision]:
    """The third worker becomes a straggler."""
    made.workers[C].scale *= factor
    return made.run(intervals)


def removals(decisions: list[Decision]) -> list[str]:
    return told(decisions, "WorkerRemoved")


@pytest.mark.parametrize("forgetful", [False, True])
def test_straggler_that_holds_the_others_up_at_its_least_batch_is_removed_and_not_created_again(
    forgetful: bool,
) -> None:
    made = world()
    made.forgetful = forgetful
    assert made.decisions[-1].removed == ()
    decisions = removed(made)
    [said] = removals(decisions)
    assert "without it" in said
    assert list(made.workers) == names(made.plan) == [A, B, D]
    assert made.plan is not None
    assert made.plan.global_batch_size == 128
    assert max(made.true_seconds()) < 6 * (0.002 + 0.016) / 2
    assert (made.created, made.memory.budget.restarts, decisions[-1].removed) == (4, 0, (("a", 1),))
    ends(made, D)
    made.run(6)
    assert (len(names(made.plan)), made.created) == (3, 5), "one that dies beside it is replaced"
    assert made.memory.remedies.removed == (Removal("a", 4, 1),)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"least": 1}, 2),
        ({"min_replicas": 4}, 6),
        ({"protocol": 1}, 6),
        *(
            ({"settings": Stragglers(action=each, max_replacements=0)}, 6)
            for each in ("Report", "Rebalance", "Replace")
        ),
    ],
    ids=["the others are no faster", "the group's least", "members stay", "Report", "Rebalance", "Replace"],
)
def test_straggler_stays_where_that_does_not_gain_or_may_not_be(changes: dict[str, object], factor: float) -> None:
    made = world(**changes)  # type: ignore[arg-type]  # as the test says
    decisions = removed(made, 25, factor)
    assert decisions[-1].stragglers
    assert (removals(decisions), len(names(made.plan))) == ([], 4)
    if "protocol" in changes:
        assert "cannot change while it trains" in decisions[-1].stragglers[0].hindrance


@pytest.mark.parametrize(("least", "gone"), [(3, [B]), (2, [B, D])])
def test_of_two_stragglers_as_many_are_removed_one_after_the_other_as_the_group_can_do_without(
    least: int, gone: list[str]
) -> None:
    made = world(min_replicas=least)
    made.workers[B].scale *= 8
    made.workers[D].scale *= 4
    decisions = made.run(40)
    assert [each.split()[0] for each in removals(decisions)] == gone
    assert names(made.plan) == [name for name in (A, B, C, D) if name not in gone]
    assert made.created == 4
    assert made.memory.remedies.removed == (Removal("a", 4, len(gone)),)


@pytest.mark.parametrize("how", ["edited", "no longer to be removed", "all start again"])
def test_place_comes_back(how: str) -> None:
    made = world()
    removed(made)
    assert len(names(made.plan)) == 3
    if how == "edited":
        made.job = replace(made.job, groups=(replace(made.job.groups[0], replicas=5),))
    elif how == "no longer to be removed":
        made.job = replace(made.job, stragglers=Stragglers(action="Report"))
        assert made.tick().removed == ()
    else:
        for pod in made.workers.values():
            pod.end(137)
    for _ in range(8):
        made.train(2)
        made.tick(5)
    assert len(names(made.plan)) == (5 if how == "edited" else 4)
    assert made.memory.remedies.removed == ()
