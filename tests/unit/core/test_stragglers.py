"""Who is named a straggler, by fault and not by design: by evidence that noise and CPU limits do not explain.

What a verdict says: what it rests on and what would help; and what outlives the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.healthy_time import Limits, resized
from heterotrain_operator.core.stragglers.remedies import best_remedy, outlooks
from heterotrain_operator.core.stragglers.rule import Interval, Reading
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Outlooks, Remedy, Verdict
from heterotrain_operator.core.stragglers.watch import MOST_WEIGHED, RULES, sentence
from unit.core.jobs import condition, reasons
from unit.core.traces import World, hetero_world

SLOW = "job-g1-0"
HEALTHY = Evidence(0.1, 32, 30, 20)


def world(noise: float = 0.05, **changes: object) -> World:
    """Three workers of speeds 1, 2 and 4, balanced."""
    made = hetero_world("Optimal", (1, 2, 4), noise=noise, seed=3, **changes)
    made.run(12)
    return made


def named(decision: Decision) -> list[str]:
    return [verdict.worker for verdict in decision.stragglers]


def told(decisions: Sequence[Decision]) -> list[str]:
    return reasons(decisions, "StragglerDetected", "StragglerRecovered")


def detected(decision: Decision) -> tuple[bool | None, str]:
    found = condition(decision, "StragglersDetected")
    return found.status, found.reason


def test_worker_that_becomes_twice_as_slow_is_named_once_until_it_is_as_fast_as_before_or_the_job_is_over() -> None:
    made = world()
    made.forgetful = True
    assert detected(made.decisions[-1]) == (False, "AsFastAsExpected")
    began = made.workers[SLOW].metrics.step
    made.workers[SLOW].scale *= 2
    decisions = made.run(10)
    assert (named(decisions[-1]), told(decisions)) == ([SLOW], ["StragglerDetected"])
    [verdict] = decisions[-1].stragglers
    assert verdict.grounds is Grounds.ITSELF
    assert verdict.slowdown == pytest.approx(2, rel=0.2)
    assert abs(verdict.since_step - began) <= 2 * made.job.interval
    assert detected(decisions[-1]) == (True, "SlowerThanItself")
    made.workers[SLOW].scale /= 2
    decisions = made.run(12)
    assert (named(decisions[-1]), told(decisions)) == ([], ["StragglerRecovered"])
    made.workers[SLOW].scale *= 2
    assert named(made.run(10)[-1]) == [SLOW]
    for worker in made.workers.values():
        worker.end(0, finished=True)
    done = made.tick()
    assert (done.phase, done.stragglers, detected(done)) == ("Succeeded", (), (False, "NotTraining"))


@pytest.mark.parametrize(
    ("slowed", "slower", "intervals", "how"),
    [
        ((), 1.0, 0, {"noise": 0.1}),  # slow by design
        ((SLOW,), 20.0, 1, {}),  # one stall, however long it is
        ((SLOW,), 20.0, 1, {"fixed": 0.01}),  # which leaves the worker with one sample
        (("job-g0-0", SLOW, "job-g2-0"), 2.0, 20, {}),  # all together
        ((SLOW,), 2.0, 15, {"stragglers": Stragglers(threshold=0.4)}),  # not worth naming
    ],
)
def test_healthy_workers_and_those_not_slow_enough_are_never_named(
    slowed: tuple[str, ...], slower: float, intervals: int, how: dict[str, Any]
) -> None:
    made = hetero_world("Optimal", (1, 2, 4), **{"noise": 0.05, "seed": 3, **how})
    decisions = made.run(12)
    for factor, lasts in ((slower, intervals), (1 / slower, 15)):
        for name in slowed:
            made.workers[name].scale *= factor
        decisions += made.run(lasts)
    assert not any(map(named, decisions))


def test_nothing_is_watched_or_said_where_the_user_wants_it_ignored() -> None:
    made = world(stragglers=Stragglers(action="Ignore"))
    made.workers[SLOW].scale *= 2
    decisions = made.run(10)
    assert not any(map(named, decisions))
    assert all(worker.evidence == Evidence() for worker in made.memory.workers)
    assert "StragglersDetected" not in [each.type for each in decisions[-1].conditions]


@pytest.mark.parametrize(("slowed", "is_named"), [(range(6), False), (range(3, 4), True)], ids=["all", "one"])
def test_one_of_a_group_is_named_where_its_peers_stay_fast(slowed: range, is_named: bool) -> None:
    made = World(Job("job", (Group("a", 6), Group("b", 4)), 320), noise=0.05, seed=1).start()
    made.run(10)
    names = [f"job-a-{index}" for index in slowed]
    for name in names:
        made.workers[name].scale *= 2
    assert named(made.run(10)[-1]) == (names if is_named else [])


def test_worker_that_is_too_slow_at_its_least_batch_is_named_though_it_always_was() -> None:
    groups = (Group("a", 1), Group("b", 1), Group("c", 1, batch_min=32))
    made = World(Job("job", groups, 192), {"job-c-0": 6.0}, noise=0.05, seed=1).start()
    last = made.run(12)[-1]
    assert named(last) == ["job-c-0"]
    [verdict] = last.stragglers
    assert verdict.grounds is Grounds.LEAST_BATCH
    assert verdict.outlooks.removed < verdict.outlooks.rebalanced


def test_paper_s_rule_names_those_that_are_slow_by_design() -> None:
    made = world(stragglers=Stragglers(rule="MedianThroughput"))
    assert named(made.run(5)[-1]) == ["job-g2-0"]


LINE = Line(0.01, 0.003)


def reading(seconds: float, evidence: Evidence, *, batch: int = 32, pinned: bool = False) -> Reading:
    window = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return Reading("a", "cpu", batch, window, lambda: LINE, pinned, evidence)


def judged(*readings: Reading, number: int = 20) -> Evidence:
    """Of the first of these."""
    [after, *_] = RULES["ExpectedTime"].judge(Stragglers(), Interval(10, 100 + number, number), readings)
    return after


STEADY = [reading(0.1, HEALTHY)] * 3


def test_evidence_is_the_sum_of_what_windows_say_fades_without_more_and_teaches_no_healthy_time() -> None:
    after = judged(reading(0.14, HEALTHY), *STEADY)
    assert after.evidence > 0
    assert after.since_step == 121
    assert judged(reading(0.1, after), *STEADY, number=21).evidence < after.evidence
    for number in range(8):
        after = judged(reading(0.2, after), *STEADY, number=number)
    assert after.named
    assert (after.healthy_seconds, after.spread) == (HEALTHY.healthy_seconds, HEALTHY.spread)


def test_window_of_another_batch_teaches_what_it_says_of_the_batch_that_the_healthy_time_is_of() -> None:
    """Where a little speaks against a worker its healthy time stays that of the batch before. The seconds of a smaller
    batch were averaged into it, and a healthy worker was named under noise that lasts.
    """
    little = HEALTHY._replace(evidence=20, healthy_batch=32, healthy_windows=2)
    as_expected = HEALTHY.healthy_seconds * LINE.at(16) / LINE.at(32)
    after = judged(reading(as_expected, little, batch=16), *STEADY)
    assert (after.healthy_batch, after.healthy_windows) == (32, 3)
    assert after.healthy_seconds == pytest.approx(HEALTHY.healthy_seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("limit", "slower"),
    [
        (0.5, 2.0),
        (2.0, 1.0),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((0.5, 1.0), (2.0, 0.5), (0.25, 4.0))),
    ],
)
def test_worker_whose_cpu_limit_changes_is_never_named(limit: float, slower: float) -> None:
    """Whether the limit binds or not."""
    made = hetero_world("Optimal", (1, 2, 4), noise=0.05, seed=3)
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    made.run(12)
    made.workers[SLOW].cpu_limit = limit
    made.workers[SLOW].scale *= slower
    assert not any(map(named, made.run(20)))


HALVED, DOUBLED = Limits(2.0, 1.0, factor=2.0, elasticity=1.0), Limits(1.0, 2.0, factor=0.5, elasticity=1.0)


def at_limits(evidence: Evidence, *changes: Limits) -> Evidence:
    for limits in changes:
        evidence = resized(Stragglers(), evidence, limits)
    return evidence


@pytest.mark.parametrize(
    ("before", "limits", "seconds", "windows"),
    [
        (HEALTHY, HALVED, 0.2, 1),
        (HEALTHY._replace(evidence=900), HALVED, 0.2, 30),
        (HEALTHY, DOUBLED, 0.1, 2),  # a greater limit makes nobody slower
        (HEALTHY._replace(unbound_limit=2.0), HALVED._replace(elasticity=0.0), 0.2, 1),  # one lower than any known
    ],
)
def test_changed_limit_scales_what_is_healthy_by_what_its_whole_effect_explains(
    before: Evidence, limits: Limits, seconds: float, windows: int
) -> None:
    after = at_limits(before, limits)
    assert (after.healthy_seconds, after.healthy_windows) == (pytest.approx(seconds), windows)


@pytest.fixture
def made() -> World:
    """A straggler was found, and its verdict stands."""
    made = world()
    made.workers[SLOW].scale *= 2
    assert reasons(made.run(10)) == ["StragglerDetected"]
    return made


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


AHEAD = Outlooks(0.2, 0.15, 0.1, 0.18, 60)
VERDICT = Verdict("w-1", "w", Grounds.ITSELF, 2.04, 120, "", None, None, Remedy.REPLACE, AHEAD, Budget(3, 60))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "w-1 takes 2 times as long as when it was healthy, at its present batch and CPU limit, since step 120; "),
        ({"grounds": Grounds.LEAST_BATCH}, "as long as the median, though it has the fewest samples it may have, "),
        ({"cause": "Neighbour", "waiting": 0.08}, "; it waits for a CPU that others use (80 ms of a step waiting for "),
        ({"cause": "CPULimit", "throttled": 0.2, "waiting": 0.0}, "has not changed (200 ms of a step throttled, "),
        ({"cause": "Script"}, "; it computes no more and waits no longer for a CPU, so it waits for something of its "),
        ({}, "; a replacement would help, of which 3 are left: a step takes 200 ms, 150 ms rebalanced, 100 ms with a "),
        ({"remedy": Remedy.REMOVE}, "; the others would be faster without it: a step takes 200 ms, "),
        ({"outlooks": None}, "; too little is known of the others to say what would help"),
        ({"outlooks": None, "weighed": False}, "; what would help is worked out for slower stragglers"),
    ],
)
def test_sentence_names_evidence_cause_and_remedy(changes: dict[str, Any], words: str) -> None:
    assert words in sentence(replace(VERDICT, **changes))


def test_gain_of_a_remedy_is_that_of_batches_which_the_job_allows() -> None:
    lines = (Line(0.0, 0.001), Line(0.0, 0.0015))
    seats = [
        Seat(name, Group(name, 1, multiple_of=32), 48, (32, 96), Estimate(line.at(48), 1e-6, 100))
        for name, line in zip("ab", lines, strict=True)
    ]
    ahead = outlooks(seats, {1: 2.0}, 60.0)
    assert ahead[1].rebalanced == pytest.approx(0.064), "64 and 32 samples, and not 58 and 38"


def test_limit_that_was_found_not_to_bind_is_no_excuse_when_it_comes_back() -> None:
    back = at_limits(HEALTHY, HALVED, DOUBLED._replace(elasticity=0.0), HALVED._replace(elasticity=0.0))
    assert back.healthy_seconds == pytest.approx(0.2), "by the first change, of whose effect nothing was known"
    assert back.unbound_limit == 1.0
    known = back._replace(healthy_windows=30)
    assert at_limits(known, DOUBLED._replace(elasticity=0.1)).healthy_windows == 30
    assert at_limits(known, HALVED._replace(elasticity=0.1)).healthy_seconds == pytest.approx(0.2 * 2**0.1, rel=1e-4)


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


def test_worker_whose_windows_vary_much_is_named_within_six_of_twice_the_time() -> None:
    """Each counted for half of what it showed, and it took eight."""
    noisy = evidence = HEALTHY._replace(spread=100)
    for number in range(6):
        evidence = judged(reading(0.2, evidence), *[reading(0.1, noisy)] * 7, number=20 + number)
    assert evidence.named
