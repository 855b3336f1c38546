"""Survivors of a failure share the batches before the operator knows: what they count is no measure of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END, MEMBERS_STAY
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers
from unit.core.traces import World

DEAD = "job-a-1"


def world(action: str = "Report", protocol: int = MEMBERS_MAY_END) -> World:
    """Four alike workers, balanced and known to be healthy, of which a silent one is not taken for lost here."""
    acting = Stragglers(action=action, cooldown_seconds=0)
    job = Job("job", (Group("a", 4),), 192, stragglers=acting, heartbeat_timeout_seconds=1000)
    made = World(job, noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def looks_after_silent_death(made: World, looks: int = 8) -> list[Decision]:
    """A machine is cut off: its worker is gone, and a look shows only that it cannot be read."""
    [alive] = [worker for worker in made.seen().workers if worker.name == DEAD]
    silent = replace(alive, metrics=None)
    made.workers[DEAD].end(137)
    decisions = []
    for _ in range(looks):
        made.train(made.job.interval)
        made.now += 5
        seen = made.seen()
        shown = Seen(tuple(silent if worker.name == DEAD else worker for worker in seen.workers), seen.plan)
        decided, made.memory = decide(made.job, shown, made.memory, made.now)
        decisions.append(decided)
    return decisions


@pytest.mark.parametrize("action", ["Report", "Replace", "Remove"])
def test_nothing_is_learned_or_changed_by_steps_with_other_batches_than_the_plans(action: str) -> None:
    made = world(action)
    known = {row.key: (row.step_time, row.batch_cost, row.evidence) for row in made.memory.workers}
    decisions = looks_after_silent_death(made)
    assert [each.plan for each in decisions] == [None] * 8
    assert not any(each.create or each.delete or each.stragglers for each in decisions)
    assert {row.key: (row.step_time, row.batch_cost, row.evidence) for row in made.memory.workers} == known
    assert "job-a-0 (training, with 64 samples instead of 48)" in decisions[-1].reason


def test_batches_are_balanced_again_under_the_plan_that_names_the_survivors() -> None:
    made = world()
    looks_after_silent_death(made)
    assert made.tick().plan is not None  # the dead worker is seen by now
    made.workers["job-a-3"].scale *= 3
    made.run(8)
    assert made.plan is not None
    by_name = {member.name: member.batch_size for member in made.plan.members}
    assert by_name["job-a-3"] < min(by_name["job-a-0"], by_name["job-a-2"])


@pytest.mark.parametrize(
    ("protocol", "batch"), [(MEMBERS_STAY, 64), (MEMBERS_MAY_END, 0)], ids=["members that stay", "no figure"]
)
def test_batch_that_is_not_known_or_cannot_be_another_is_the_plans(protocol: int, batch: int) -> None:
    plain, odd = world(protocol=protocol), world(protocol=protocol)
    for made in (plain, odd):
        made.workers["job-a-3"].scale *= 2
    for _ in range(6):
        decisions = []
        for made in (plain, odd):
            made.train(made.job.interval)
            for pod in made.workers.values():
                if made is odd:
                    pod.metrics = replace(pod.metrics, batch_size=batch)
            decisions.append(made.tick())
        assert decisions[0] == decisions[1]
    assert any(each.plan is not None for each in odd.decisions[-6:])
