"""Who is named a straggler: slow by fault, and not by design."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.verdict import Grounds
from unit.core.stragglers import SLOW, condition, named, reasons, world
from unit.core.traces import World, hetero_world


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


def test_workers_that_are_slow_by_design_are_never_named() -> None:
    made = world(noise=0.1)
    decisions = made.run(40)
    assert not any(map(named, decisions))


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


def test_job_that_loses_the_group_of_a_straggler_has_an_answer() -> None:
    made = world()
    made.workers[SLOW].scale *= 2
    made.run(10)
    made.job = replace(made.job, groups=made.job.groups[:1])
    assert made.tick().stragglers == ()


def test_paper_s_rule_names_those_that_are_slow_by_design() -> None:
    made = world(stragglers=Stragglers(rule="MedianThroughput"))
    assert named(made.run(5)[-1]) == ["job-g2-0"]
