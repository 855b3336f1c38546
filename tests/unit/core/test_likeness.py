"""Estimates are drawn towards those of the same group, as far as noise and what its workers differ by let them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.batching import asking
from heterotrain_operator.core.batching.likeness import LEAST_WORKERS, as_likely
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

ERROR = 0.04
"""Relative standard error of each mean here."""


def seat(name: str, seconds: float, *, group: str = "g", batch: int = 32, error: float = ERROR) -> Seat:
    return Seat(name, Group(group, 9), batch, (1, 512), Estimate(seconds, (error * seconds) ** 2 * 25, 25))


def seats(*seconds: float, group: str = "g") -> list[Seat]:
    return [seat(f"{group}-{place}", each, group=group) for place, each in enumerate(seconds)]


def estimates(found: Sequence[Seat]) -> list[Estimate]:
    return [each.estimate for each in found if each.estimate is not None]


def means(found: Sequence[Seat]) -> list[float]:
    return [each.mean_seconds for each in estimates(found)]


def test_of_workers_of_one_kind_the_slowest_was_mostly_unlucky() -> None:
    chance = random.Random(1)
    noisy = seats(*(0.1 * math.exp(chance.gauss(0, ERROR)) for _ in range(32)))
    drawn = as_likely(noisy)
    assert pstdev(means(drawn)) < 0.3 * pstdev(means(noisy))
    assert fmean(means(drawn)) == pytest.approx(fmean(means(noisy)), rel=0.01)
    assert max(each.relative_error for each in estimates(drawn)) < 0.6 * ERROR


def test_workers_that_differ_by_more_than_noise_stay_as_they_were_measured() -> None:
    unlike = seats(0.10, 0.13, 0.16, 0.20, 0.24, 0.30)
    assert means(as_likely(unlike)) == pytest.approx(means(unlike), rel=0.02)


def test_whoever_is_far_from_all_others_neither_moves_nor_moves_them() -> None:
    alike = seats(*([0.099, 0.101] * 8))
    jumped = as_likely([*alike, seat("slow", 0.2)])
    assert means(jumped)[-1] == 0.2
    assert means(jumped)[:-1] == pytest.approx([0.1] * 16, rel=0.01)


def test_whoever_has_quite_another_batch_was_set_apart_before() -> None:
    alike = seats(*([0.099, 0.101] * 4))
    apart = as_likely([*alike, seat("apart", 0.11, batch=16)])
    assert means(apart)[-1] == 0.11


def test_few_workers_say_too_little_and_groups_nothing_of_one_another() -> None:
    few = seats(*([0.09, 0.11] * 4)[: LEAST_WORKERS - 1])
    assert as_likely(few) == few
    both = [*seats(*[0.1] * 8), *seats(*[0.3] * 8, group="h")]
    assert means(as_likely(both)) == pytest.approx(means(both))


def test_who_is_not_measured_stays_so() -> None:
    idle = Seat("idle", Group("g", 9), 0, (0, 512))
    assert as_likely([*seats(*([0.09, 0.11] * 4)), idle])[-1] == idle


@given(
    st.lists(
        st.tuples(
            st.floats(1e-6, 1e5), st.floats(1e-9, 1e3), st.integers(1, 512), st.sampled_from("gh"), st.floats(1, 1e12)
        ),
        max_size=12,
    )
)
def test_nothing_leaves_what_was_measured_in_the_group_and_no_error_grows(
    found: list[tuple[float, float, int, str, float]],
) -> None:
    measured = [
        Seat(str(place), Group(group, 9), batch, (1, 512), Estimate(seconds, (error * seconds) ** 2, steps))
        for place, (seconds, error, batch, group, steps) in enumerate(found)
    ]
    for before, after in zip(measured, as_likely(measured), strict=True):
        assert before.estimate is not None and after.estimate is not None
        assert 0 < after.estimate.mean_seconds < math.inf
        assert after.estimate.relative_error <= before.estimate.relative_error * (1 + 1e-9)
        assert after._replace(estimate=None) == before._replace(estimate=None)


def test_many_workers_of_one_kind_settle_with_fewer_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of two kinds, and steps that vary by 20 %."""

    def played(seed: int) -> SimulationResult:
        kinds = {"fast": 1.0, "slow": 3.0}
        job = Job("job", tuple(Group(name, 8) for name in kinds), 512)
        models = {name: WorkerModel(Affine(0.01, 0.002), scale, Independent(0.2)) for name, scale in kinds.items()}
        return simulate(Scenario(job, models, seed=seed, intervals=40), own_seconds=False)

    likely = [played(seed) for seed in range(4)]
    monkeypatch.setattr(asking, "as_likely", lambda seats: seats)
    measured = [played(seed) for seed in range(4)]
    assert sum(len(each.adjustments) for each in likely) < 0.7 * sum(len(each.adjustments) for each in measured)
    assert fmean(each.ratio for each in likely) < fmean(each.ratio for each in measured)
