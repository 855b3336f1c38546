"""Stragglers are removed where the others are faster without them, and only there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.core.memory.replacements import Removal
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.state import Memory
from unit.core.traces import World

SLOW = "job-a-2"
REMOVE = Stragglers(action="Remove")


def world(
    *, least: int = 16, min_replicas: int = 1, protocol: int = MEMBERS_MAY_END, settings: Stragglers = REMOVE
) -> World:
    """Four alike workers, each of which has at least so many of the 128 samples."""
    group = Group("a", 4, batch_min=least, min_replicas=min_replicas)
    job = Job("job", (group,), 128, stragglers=settings)
    made = World(job, noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def members(made: World) -> list[str]:
    assert made.plan is not None
    return [member.name for member in made.plan.members]


def removals(decisions: list[Decision]) -> list[str]:
    return [event.message for each in decisions for event in each.events if event.reason == "WorkerRemoved"]


def test_straggler_that_holds_the_others_up_at_its_least_batch_is_removed_and_not_created_again() -> None:
    made = world()
    made.workers[SLOW].scale *= 6
    decisions = made.run(20)
    assert len(removals(decisions)) == 1
    assert "and" in removals(decisions)[0]
    assert "without it" in removals(decisions)[0]
    assert members(made) == ["job-a-0", "job-a-1", "job-a-3"]
    assert made.plan is not None
    assert made.plan.global_batch_size == 128
    assert max(made.true_seconds()) < 6 * (0.002 + 0.016) / 2
    assert made.created == 4
    assert made.memory.budget.restarts == 0
    assert SLOW not in made.workers
    assert decisions[-1].removed == (("a", 1),)


def test_straggler_whose_part_the_others_cannot_do_faster_stays() -> None:
    made = world(least=1)
    made.workers[SLOW].scale *= 2
    decisions = made.run(25)
    assert decisions[-1].stragglers
    assert removals(decisions) == []
    assert len(members(made)) == 4


def test_no_group_loses_more_than_its_least_replicas_allow() -> None:
    made = world(min_replicas=4)
    made.workers[SLOW].scale *= 6
    assert removals(made.run(20)) == []
    assert len(members(made)) == 4


def test_of_two_stragglers_one_is_removed_where_the_group_can_do_without_one() -> None:
    made = world(min_replicas=3)
    made.workers["job-a-1"].scale *= 6
    made.workers["job-a-3"].scale *= 3
    decisions = made.run(25)
    assert len(removals(decisions)) == 1
    assert removals(decisions)[0].startswith("job-a-1 ")
    assert members(made) == ["job-a-0", "job-a-2", "job-a-3"]
    assert min(len(each.plan.members) for each in decisions if each.plan is not None) == 3
    assert made.created == 4


def test_of_two_stragglers_both_are_removed_one_after_the_other_where_the_group_can_do_without_them() -> None:
    made = world(min_replicas=2)
    made.workers["job-a-1"].scale *= 8
    made.workers["job-a-3"].scale *= 4
    decisions = made.run(40)
    assert [each.split()[0] for each in removals(decisions)] == ["job-a-1", "job-a-3"]
    assert members(made) == ["job-a-0", "job-a-2"]
    assert made.created == 4
    assert made.memory.remedies.removed == (Removal("a", 4, 2),)


def test_nobody_is_removed_from_workers_that_meet_only_at_their_start() -> None:
    made = world(protocol=1)
    made.workers[SLOW].scale *= 6
    decisions = made.run(20)
    assert removals(decisions) == []
    assert "cannot change while it trains" in decisions[-1].stragglers[0].hindrance


@pytest.mark.parametrize("action", ["Report", "Rebalance", "Replace"])
def test_nobody_is_removed_where_the_user_does_not_want_it(action: str) -> None:
    made = world(settings=Stragglers(action=action, max_replacements=0))
    made.workers[SLOW].scale *= 6
    assert removals(made.run(20)) == []
    assert len(members(made)) == 4


def test_place_comes_back_when_the_group_is_edited() -> None:
    made = world()
    made.workers[SLOW].scale *= 6
    made.run(20)
    made.job = replace(made.job, groups=(replace(made.job.groups[0], replicas=5),))
    made.run(6)
    assert len(members(made)) == 5
    assert made.memory.remedies.removed == ()


def test_decision_says_how_many_are_wanted_until_the_place_comes_back() -> None:
    made = world()
    assert made.decisions[-1].removed == ()
    made.workers[SLOW].scale *= 6
    made.run(20)
    made.job = replace(made.job, stragglers=Stragglers(action="Report"))
    assert made.tick().removed == ()


def test_place_comes_back_when_stragglers_are_no_longer_to_be_removed() -> None:
    made = world()
    made.workers[SLOW].scale *= 6
    made.run(20)
    made.job = replace(made.job, stragglers=Stragglers(action="Report"))
    made.run(6)
    assert len(members(made)) == 4


def test_place_comes_back_when_all_workers_start_again() -> None:
    made = world()
    made.workers[SLOW].scale *= 6
    made.run(20)
    assert len(members(made)) == 3
    for pod in made.workers.values():
        pod.end(137)
    for _ in range(8):
        made.train(2)
        made.tick(5)
    assert members(made) == [f"job-a-{index}" for index in range(4)]


def test_worker_that_dies_beside_a_removed_one_is_replaced_and_the_removed_one_is_not() -> None:
    made = world()
    made.workers[SLOW].scale *= 6
    made.run(20)
    made.workers["job-a-3"].end(137)
    made.run(6)
    assert len(members(made)) == 3
    assert made.created == 5


def test_removal_outlives_the_operator() -> None:
    made = world()
    made.forgetful = True
    made.workers[SLOW].scale *= 6
    made.run(20)
    made.memory = Memory.from_json(made.memory.to_json())
    made.run(5)
    assert made.memory.remedies.removed == (Removal("a", 4, 1),)
    assert len(members(made)) == 3


@pytest.mark.parametrize("rows", [5, [5], [["a", 3]], [["a", -1, 1]], [[7, 3, 1]], [["a", 3, 2**60]]])
def test_malformed_removals_are_none(rows: object) -> None:
    document = json.loads(Memory().to_json())
    assert Memory.from_json(json.dumps({**document, "removed": rows})).remedies.removed == ()
