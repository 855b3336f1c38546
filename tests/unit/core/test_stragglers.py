"""Who is named a straggler: slow by fault, and not by design."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS, Estimate
from heterotrain_operator.core.split.waterfill import Line
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.healthy_time import Limits, resized
from heterotrain_operator.core.stragglers.remedies import best_remedy, outlooks
from heterotrain_operator.core.stragglers.rule import Interval, Reading
from heterotrain_operator.core.stragglers.rules import RULES
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Outlooks, Remedy, Verdict
from heterotrain_operator.core.stragglers.words import sentence
from unit.core.traces import World, hetero_world

SLOW = "job-g1-0"


def world(noise: float = 0.05, **changes: object) -> World:
    """Three workers of speeds 1, 2 and 4, balanced."""
    made = hetero_world("Optimal", (1, 2, 4), noise=noise, seed=3, **changes)
    made.run(12)
    return made


def named(decision: Decision) -> list[str]:
    return [verdict.worker for verdict in decision.stragglers]


def reasons(decisions: Sequence[Decision]) -> list[str]:
    return [event.reason for each in decisions for event in each.events if event.reason.startswith("Straggler")]


def condition(decision: Decision) -> tuple[bool | None, str]:
    [found] = [each for each in decision.conditions if each.type == "StragglersDetected"]
    return found.status, found.reason


def test_worker_that_becomes_twice_as_slow_is_named_within_ten_intervals_and_once() -> None:
    made = world()
    assert condition(made.decisions[-1]) == (False, "AsFastAsExpected")
    began = made.workers[SLOW].metrics.step
    made.workers[SLOW].scale *= 2
    decisions = made.run(10)
    assert named(decisions[-1]) == [SLOW]
    assert reasons(decisions) == ["StragglerDetected"]
    [verdict] = decisions[-1].stragglers
    assert verdict.grounds is Grounds.ITSELF
    assert verdict.slowdown == pytest.approx(2, rel=0.2)
    assert abs(verdict.since_step - began) <= 2 * made.job.interval
    assert condition(decisions[-1]) == (True, "SlowerThanItself")


def test_verdict_ends_once_the_worker_is_as_fast_as_before() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    made.workers[SLOW].scale /= 2
    decisions = made.run(12)
    assert named(decisions[-1]) == []
    assert reasons(decisions) == ["StragglerRecovered"]


@pytest.mark.parametrize("slow_steps", [2, 3, 5])
def test_worker_is_named_though_its_batch_moves_after_a_few_slow_steps_of_a_window(slow_steps: int) -> None:
    """Their mean says little, but they are what the batches moved for."""
    made = world()
    made.train(made.job.interval - slow_steps)
    made.workers[SLOW].scale *= 2
    made.train(slow_steps)
    assert made.tick().plan is not None
    assert named(made.run(10)[-1]) == [SLOW]


def test_job_that_is_over_has_no_stragglers() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    assert named(made.run(10)[-1]) == [SLOW]
    for worker in made.workers.values():
        worker.end(0, finished=True)
    done = made.tick()
    assert done.phase == "Succeeded"
    assert done.stragglers == ()
    assert condition(done) == (False, "NotTraining")


def test_gain_of_a_remedy_is_that_of_batches_which_the_job_allows() -> None:
    lines = (Line(0.0, 0.001), Line(0.0, 0.0015))
    seats = [
        Seat(name, Group(name, 1, multiple_of=32), 48, (32, 96), Estimate(line.at(48), 1e-6, 100))
        for name, line in zip("ab", lines, strict=True)
    ]
    ahead = outlooks(seats, 1, 2.0, 60.0)
    assert ahead is not None
    assert ahead.rebalanced == pytest.approx(0.064), "64 and 32 samples, and not 58 and 38"


def test_workers_that_are_slow_by_design_are_never_named() -> None:
    made = world(noise=0.1)
    decisions = made.run(40)
    assert not any(map(named, decisions))


@pytest.mark.parametrize(("limit", "slower"), [(0.5, 2.0), (0.5, 1.0), (2.0, 0.5), (2.0, 1.0), (0.25, 4.0)])
def test_worker_whose_cpu_limit_changes_is_never_named(limit: float, slower: float) -> None:
    """Whether the limit binds or not."""
    made = hetero_world("Optimal", (1, 2, 4), noise=0.05, seed=3)
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    made.run(12)
    made.workers[SLOW].cpu_limit = limit
    made.workers[SLOW].scale *= slower
    assert not any(map(named, made.run(20)))


def test_the_others_of_three_may_move_on_when_one_is_slowed_and_say_nothing_for_it() -> None:
    """Their times at other batches are those of healthy workers, by whatever one straggler has become slower."""
    for seed in range(5):
        made = hetero_world("Optimal", (1, 1.2, 1.9), noise=0.1, seed=seed)
        made.run(15)
        made.workers[SLOW].scale *= 2
        assert named(made.run(10)[-1]) == [SLOW]


def test_worker_that_a_stall_left_with_one_sample_is_not_blamed_for_what_a_step_takes_beside_samples() -> None:
    made = hetero_world("Optimal", (1, 2, 4), noise=0.05, seed=3, fixed=0.01)
    made.run(12)
    made.workers[SLOW].scale *= 20
    made.run(1)
    made.workers[SLOW].scale /= 20
    assert not any(map(named, made.run(15)))


def test_one_stall_names_nobody_however_long_it_is() -> None:
    made = world()
    made.workers[SLOW].scale *= 20
    made.run(1)
    made.workers[SLOW].scale /= 20
    assert not any(map(named, made.run(10)))


def test_all_that_slow_down_together_are_no_stragglers() -> None:
    made = world()
    for worker in made.workers.values():
        worker.scale *= 2
    assert not any(map(named, made.run(20)))


def test_group_that_slows_down_together_is_no_straggler() -> None:
    groups = (Group("a", 4), Group("b", 3))
    made = World(Job("job", groups, 224), noise=0.05, seed=1).start()
    made.run(10)
    for index in range(4):
        made.workers[f"job-a-{index}"].scale *= 2
    assert not any(map(named, made.run(15)))


def test_one_of_a_group_is_named_where_its_peers_stay_fast() -> None:
    made = World(Job("job", (Group("a", 6),), 192), noise=0.05, seed=1).start()
    made.run(10)
    made.workers["job-a-3"].scale *= 2
    assert named(made.run(10)[-1]) == ["job-a-3"]


def test_worker_that_is_too_slow_at_its_least_batch_is_named_though_it_always_was() -> None:
    groups = (Group("a", 1), Group("b", 1), Group("c", 1, batch_min=32))
    made = World(Job("job", groups, 192), {"job-c-0": 6.0}, noise=0.05, seed=1).start()
    last = made.run(12)[-1]
    assert named(last) == ["job-c-0"]
    [verdict] = last.stragglers
    assert verdict.grounds is Grounds.LEAST_BATCH
    assert verdict.outlooks is not None
    assert verdict.outlooks.removed is not None
    assert verdict.outlooks.removed < verdict.outlooks.rebalanced


def test_nothing_is_watched_or_said_where_the_user_wants_it_ignored() -> None:
    made = world(stragglers=Stragglers(action="Ignore"))
    made.workers[SLOW].scale *= 2
    decisions = made.run(10)
    assert not any(map(named, decisions))
    assert all(worker.evidence == Evidence() for worker in made.memory.workers)
    assert "StragglersDetected" not in [each.type for each in decisions[-1].conditions]


def test_threshold_says_what_is_worth_naming() -> None:
    made = world(stragglers=Stragglers(threshold=0.4))
    made.workers[SLOW].scale *= 2
    assert not any(map(named, made.run(15)))


def test_verdict_outlives_the_operator_and_is_not_reported_again() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    made.memory = Memory.from_json(made.memory.to_json())
    decisions = made.run(3)
    assert named(decisions[-1]) == [SLOW]
    assert reasons(decisions) == []


def test_cause_that_only_a_newer_version_knows_leaves_the_verdict_without_one() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    made.memory = replace(
        made.memory,
        workers=tuple(each._replace(resource_use=ResourceUse(cause=99)) for each in made.memory.workers),
    )
    [verdict] = made.run(1)[-1].stragglers
    assert (verdict.worker, verdict.cause) == (SLOW, "")


COST = dict.fromkeys(range(7, 13), 0)


@pytest.mark.parametrize(
    "stored",
    [{37: 99}, {5: 0, 43: 2**53}, {**COST, 40: 0}, {41: 2**53}, {42: 2**53}],
    ids=["cause of a newer operator", "level", "batch", "windows", "spread"],
)
def test_verdict_in_a_memory_that_nobody_understands_has_an_answer(stored: dict[int, int]) -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    document = json.loads(made.memory.to_json())
    for row in document["workers"]:
        row[:] = [stored.get(column, number) for column, number in enumerate(row)]
    made.memory = Memory.from_json(json.dumps(document))
    made.tick()
    made.run(2)
    assert Memory.from_json(made.memory.to_json()) == made.memory


def test_limits_that_flap_for_ever_leave_a_healthy_time_that_can_be() -> None:
    evidence = HEALTHY
    for _ in range(30):
        for limits in (Limits(16.0, 1.0, 16.0, 1.0), Limits(1.0, 16.0, 1 / 16, 1.0)):
            evidence = resized(Stragglers(), evidence, limits)
    assert evidence.healthy_seconds <= ABSURD_SECONDS


def test_job_that_loses_the_group_of_a_straggler_has_an_answer() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    made.job = replace(made.job, groups=made.job.groups[:1])
    assert made.tick().stragglers == ()


def test_memory_of_a_version_that_did_not_know_of_stragglers_is_read_and_learned_from() -> None:
    made = world()
    document = json.loads(made.memory.to_json())
    document["workers"] = [row[:39] for row in document["workers"]]
    document.pop("judged"), document.pop("start_seconds", None)
    made.memory = Memory.from_json(json.dumps(document))
    assert all(worker.evidence == Evidence() for worker in made.memory.workers)
    made.run(8)
    made.workers[SLOW].scale *= 2
    assert named(made.run(10)[-1]) == [SLOW]


def test_paper_s_rule_names_those_that_are_slow_by_design() -> None:
    made = world(stragglers=Stragglers(rule="MedianThroughput"))
    assert named(made.run(5)[-1]) == ["job-g2-0"]


def reading(seconds: float, evidence: Evidence, *, pinned: bool = False) -> Reading:
    window = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return Reading("a", "cpu", 32, window, lambda: Line(0.01, 0.003), pinned, evidence)


HEALTHY = Evidence(0.1, 32, 30, 20)


def test_evidence_is_the_sum_of_what_windows_say_and_fades_without_more() -> None:
    rule, steady = RULES["ExpectedTime"], [reading(0.1, HEALTHY)] * 3
    [after, *_] = rule.judge(Stragglers(), Interval(10, 100, 20), [reading(0.14, HEALTHY), *steady])
    assert after.evidence > 0
    assert after.since_step == 101
    [faded, *_] = rule.judge(Stragglers(), Interval(10, 110, 21), [reading(0.1, after), *steady])
    assert faded.evidence < after.evidence


def test_evidence_of_a_suspect_teaches_no_new_healthy_time() -> None:
    rule, steady = RULES["ExpectedTime"], [reading(0.1, HEALTHY)] * 3
    evidence = HEALTHY
    for number in range(8):
        [evidence, *_] = rule.judge(Stragglers(), Interval(10, 100, number), [reading(0.2, evidence), *steady])
    assert evidence.named
    assert evidence.healthy_seconds == HEALTHY.healthy_seconds
    assert evidence.spread == HEALTHY.spread


HALVED, DOUBLED = Limits(2.0, 1.0, factor=2.0, elasticity=1.0), Limits(1.0, 2.0, factor=0.5, elasticity=1.0)


def at_limits(evidence: Evidence, *changes: Limits) -> Evidence:
    for limits in changes:
        evidence = resized(Stragglers(), evidence, limits)
    return evidence


def test_changed_limit_scales_what_is_healthy_by_what_its_whole_effect_explains() -> None:
    assert at_limits(HEALTHY, HALVED).healthy_seconds == pytest.approx(0.2)
    assert at_limits(HEALTHY, HALVED).healthy_windows == 1
    assert at_limits(replace_evidence(evidence=900), HALVED).healthy_windows == 30


def test_greater_limit_makes_nobody_slower_so_its_healthy_time_is_not_given_up() -> None:
    assert at_limits(HEALTHY, DOUBLED).healthy_seconds == pytest.approx(0.1)
    assert at_limits(HEALTHY, DOUBLED).healthy_windows == 2


def test_limit_that_was_found_not_to_bind_is_no_excuse_when_it_comes_back() -> None:
    back = at_limits(HEALTHY, HALVED, DOUBLED._replace(elasticity=0.0), HALVED._replace(elasticity=0.0))
    assert back.healthy_seconds == pytest.approx(0.2), "by the first change, of whose effect nothing was known"
    assert back.unbound_limit == 1.0
    known = back._replace(healthy_windows=30)
    assert at_limits(known, DOUBLED._replace(elasticity=0.1)).healthy_windows == 30
    assert at_limits(known, HALVED._replace(elasticity=0.1)).healthy_seconds == pytest.approx(0.2 * 2**0.1, rel=1e-4)


def test_limit_lower_than_any_known_not_to_bind_explains_its_whole_effect() -> None:
    known = replace_evidence()._replace(unbound_limit=2.0)
    assert at_limits(known, HALVED._replace(elasticity=0.0)).healthy_seconds == pytest.approx(0.2)


def limited(noise: float = 0.05) -> World:
    """Three workers, and the limit of one of them has been halved and restored without effect."""
    made = hetero_world("Optimal", (1, 2, 4), noise=noise, seed=3)
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    made.run(12)
    for limit in (0.5, 1.0):
        made.workers[SLOW].cpu_limit = limit
        assert not any(map(named, made.run(8)))
    return made


def test_worker_slowed_while_a_limit_is_halved_that_does_not_bind_is_named() -> None:
    made = limited()
    made.workers[SLOW].cpu_limit = 0.5
    made.workers[SLOW].scale *= 2
    assert named(made.run(10)[-1]) == [SLOW]


def test_worker_whose_limit_binds_is_not_named_though_a_higher_one_did_not() -> None:
    made = limited()
    made.workers[SLOW].cpu_limit = 0.25
    made.workers[SLOW].scale *= 2
    assert not any(map(named, made.run(20)))


def test_worker_whose_limit_binds_is_not_named_however_often_it_is_halved() -> None:
    made = world()
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    for limit, slower in ((0.5, 2.0), (1.0, 0.5), (0.5, 2.0), (0.25, 2.0)):
        made.run(8)
        made.workers[SLOW].cpu_limit = limit
        made.workers[SLOW].scale *= slower
        assert not any(map(named, made.run(8)))


def replace_evidence(**changes: int) -> Evidence:
    return HEALTHY._replace(**changes)


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


def test_verdict_says_in_words_what_it_rests_on_and_what_would_help() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    events = [event for each in made.run(10) for event in each.events if event.reason == "StragglerDetected"]
    [event] = events
    assert event.message.startswith(f"{SLOW} takes 2 times ")
    assert "as long as when it was healthy" in event.message
    assert "with a healthy replacement" in event.message
    assert "since step" in event.message
    assert replace(made.decisions[-1].stragglers[0], worker=SLOW).budget.replacements_left == 3


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
        (
            {"grounds": Grounds.LEAST_BATCH},
            "as long as the median, though it has the fewest samples it may have, since",
        ),
        ({"grounds": Grounds.GROUP}, "takes 2 times as long for a sample as the median, since step 120; "),
        ({}, "; what slows it is not known; "),
        ({"cause": "Neighbour", "waiting": 0.08}, "; it waits for a CPU that others use (80 ms of a step waiting for "),
        ({"cause": "CPULimit", "throttled": 0.2, "waiting": 0.0}, "has not changed (200 ms of a step throttled, "),
        ({"cause": "Computation"}, "; its steps take more CPU time; "),
        (
            {"cause": "Script"},
            "; it computes no more and waits no longer for a CPU, so it waits for something of its own; ",
        ),
        ({}, "; a replacement would help, of which 3 are left: a step takes 200 ms, 150 ms rebalanced, 100 ms with a "),
        ({}, "healthy replacement, 180 ms without it, for about 60 s of standstill"),
        ({"remedy": Remedy.REBALANCE}, "; rebalancing the batches helps: a step takes 200 ms, 150 ms rebalanced, "),
        ({"remedy": Remedy.REMOVE}, "; the others would be faster without it: a step takes 200 ms, "),
        ({"remedy": Remedy.IGNORE}, "; nothing would help enough to repay it: a step takes 200 ms, "),
        ({"outlooks": None}, "; too little is known of the others to say what would help"),
    ],
)
def test_sentence_names_evidence_cause_and_remedy(changes: dict[str, Any], words: str) -> None:
    assert words in sentence(replace(VERDICT, **changes))


def test_noise_of_a_worker_of_whom_few_windows_are_known_is_at_least_that_of_most() -> None:
    """The first windows of the last one were alike by chance."""
    spreads, windows = (48, 50, 47, 20), (30, 30, 30, 1)
    readings = [
        Reading(
            "g",
            "cpu",
            64,
            Estimate(0.2, 4e-4, 10),
            lambda: Line(0.0, 0.2 / 64),
            False,
            HEALTHY._replace(spread=spread, healthy_windows=known, healthy_seconds=0.2, healthy_batch=64),
        )
        for spread, known in zip(spreads, windows, strict=True)
    ]
    after = RULES["ExpectedTime"].judge(Stragglers(), Interval(10, 100, 5), readings)
    assert after[3].spread > 40
    assert after[2].spread == 47
