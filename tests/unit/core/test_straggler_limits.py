"""Workers that a CPU limit slows are no stragglers, as far as it is known that the limit does."""

from __future__ import annotations

import pytest

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import ABSURD_SECONDS
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.healthy_time import Limits, resized
from unit.core.stragglers import HEALTHY, SLOW, named, world
from unit.core.traces import World, hetero_world


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


def test_limits_that_flap_for_ever_leave_a_healthy_time_that_can_be() -> None:
    evidence = HEALTHY
    for _ in range(30):
        for limits in (Limits(16.0, 1.0, 16.0, 1.0), Limits(1.0, 16.0, 1 / 16, 1.0)):
            evidence = resized(Stragglers(), evidence, limits)
    assert evidence.healthy_seconds <= ABSURD_SECONDS


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
