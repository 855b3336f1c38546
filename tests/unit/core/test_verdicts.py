"""What a verdict on a straggler says: what it rests on and what would help; and what outlives the operator."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Group
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.remedies import best_remedy, outlooks
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Outlooks, Remedy, Verdict
from heterotrain_operator.core.stragglers.watch import MOST_WEIGHED, sentence
from unit.core.stragglers import SLOW, named, reasons, world
from unit.core.traces import World, hetero_world


def test_gain_of_a_remedy_is_that_of_batches_which_the_job_allows() -> None:
    lines = (Line(0.0, 0.001), Line(0.0, 0.0015))
    seats = [
        Seat(name, Group(name, 1, multiple_of=32), 48, (32, 96), Estimate(line.at(48), 1e-6, 100))
        for name, line in zip("ab", lines, strict=True)
    ]
    ahead = outlooks(seats, {1: 2.0}, 60.0)
    assert ahead[1].rebalanced == pytest.approx(0.064), "64 and 32 samples, and not 58 and 38"


def test_what_would_help_is_weighed_for_the_slowest_however_many_stragglers_there_are() -> None:
    made = hetero_world("Optimal", [1.0] * 30, global_batch=960)
    made.run(6)
    slowed = list(made.workers)[:12]
    for number, name in enumerate(slowed):
        made.workers[name].scale = 2.0 + 0.1 * number
    last = made.run(10)[-1]
    assert set(named(last)) == set(slowed)
    weighed = {verdict.worker for verdict in last.stragglers if verdict.outlooks is not None}
    assert weighed == {verdict.worker for verdict in last.stragglers if verdict.weighed}
    assert weighed == set(slowed[-MOST_WEIGHED:])


@pytest.fixture
def made() -> World:
    """A straggler was found, and its verdict stands."""
    made = world()
    made.workers[SLOW].scale *= 2
    assert reasons(made.run(10)) == ["StragglerDetected"]
    return made


def test_verdict_outlives_the_operator_and_is_not_reported_again(made: World) -> None:
    made.memory = Memory.from_json(made.memory.to_json())
    decisions = made.run(3)
    assert named(decisions[-1]) == [SLOW]
    assert reasons(decisions) == []


COST = dict.fromkeys(range(7, 13), 0)


@pytest.mark.parametrize(
    "stored",
    [{37: 99}, {5: 0, 43: 2**53}, {**COST, 40: 0}, {41: 2**53}, {42: 2**53}],
    ids=["cause of a newer operator", "level", "batch", "windows", "spread"],
)
def test_verdict_in_a_memory_that_nobody_understands_has_an_answer(made: World, stored: dict[int, int]) -> None:
    document = json.loads(made.memory.to_json())
    for row in document["workers"]:
        row[:] = [stored.get(column, number) for column, number in enumerate(row)]
    made.memory = Memory.from_json(json.dumps(document))
    assert 37 not in stored or [each.cause for each in made.tick().stragglers] == [""]
    made.tick()
    made.run(2)
    assert Memory.from_json(made.memory.to_json()) == made.memory


@pytest.mark.parametrize(
    ("ahead", "steps_left", "remedy"),
    [
        (Outlooks(1.0, 0.8, 0.6, None, 60), 10_000, Remedy.REBALANCE),
        (Outlooks(1.0, 1.0, 0.6, None, 60), 10_000, Remedy.REPLACE),
        (Outlooks(1.0, 1.0, 0.6, None, 60), None, Remedy.REPLACE),
        (Outlooks(1.0, 1.0, 0.6, None, 60), 100, Remedy.IGNORE),
        (Outlooks(1.0, 1.0, 0.6, 0.9, 60), 100, Remedy.REMOVE),
        (Outlooks(1.0, 1.0, 0.98, 1.2, 60), None, Remedy.IGNORE),
        (None, None, Remedy.IGNORE),
    ],
)
def test_rebalancing_comes_first_and_a_replacement_must_repay_its_cost(
    ahead: Outlooks | None, steps_left: int | None, remedy: Remedy
) -> None:
    assert best_remedy(ahead, steps_left) is remedy


VERDICT = Verdict(
    worker="w-1",
    group="w",
    grounds=Grounds.ITSELF,
    slowdown=2.04,
    since_step=120,
    cause="",
    throttled=None,
    waiting=None,
    remedy=Remedy.REPLACE,
    outlooks=Outlooks(0.2, 0.15, 0.1, 0.18, 60),
    budget=Budget(3, 60),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "w-1 takes 2 times as long as when it was healthy, at its present batch and CPU limit, since step 120; "),
        ({"grounds": Grounds.LEAST_BATCH}, "as long as the median, though it has the fewest samples it may have, "),
        ({"grounds": Grounds.GROUP}, "takes 2 times as long for a sample as the median, since step 120; "),
        ({}, "; what slows it is not known; "),
        ({"cause": "Neighbour", "waiting": 0.08}, "; it waits for a CPU that others use (80 ms of a step waiting for "),
        ({"cause": "CPULimit", "throttled": 0.2, "waiting": 0.0}, "has not changed (200 ms of a step throttled, "),
        ({"cause": "Computation"}, "; its steps take more CPU time; "),
        ({"cause": "Script"}, "; it computes no more and waits no longer for a CPU, so it waits for something of its "),
        ({}, "; a replacement would help, of which 3 are left: a step takes 200 ms, 150 ms rebalanced, 100 ms with a "),
        ({}, "healthy replacement, 180 ms without it, for about 60 s of standstill"),
        ({"remedy": Remedy.REBALANCE}, "; rebalancing the batches helps: a step takes 200 ms, 150 ms rebalanced, "),
        ({"remedy": Remedy.REMOVE}, "; the others would be faster without it: a step takes 200 ms, "),
        ({"remedy": Remedy.IGNORE}, "; nothing would help enough to repay it: a step takes 200 ms, "),
        ({"outlooks": None}, "; too little is known of the others to say what would help"),
        ({"outlooks": None, "weighed": False}, "; what would help is worked out for slower stragglers"),
    ],
)
def test_sentence_names_evidence_cause_and_remedy(changes: dict[str, Any], words: str) -> None:
    assert words in sentence(replace(VERDICT, **changes))
