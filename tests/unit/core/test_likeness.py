"""What a worker's own time likely is: estimates are drawn to those of its group, and flat lines made steeper."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heterotrain_operator.core.batching.asking import likely_seats
from heterotrain_operator.core.batching.likeness import LEAST_WORKERS, as_alike, as_likely
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import Prediction
from heterotrain_operator.core.prediction.predictors.ema import GREATEST_SHARE, LEAST_SHARE
from heterotrain_operator.core.prediction.roughness import INDEPENDENT
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.worker_memory import WorkerMemory

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


def test_whoever_is_far_from_all_others_or_has_quite_another_batch_neither_moves_nor_moves_them() -> None:
    alike = seats(*([0.099, 0.101] * 8))
    found = means(as_likely([*alike, seat("slow", 0.2), seat("apart", 0.11, batch=16)]))
    assert found[-2:] == [0.2, 0.11]
    assert found[:-2] == pytest.approx([0.1] * 16, rel=0.01)


def test_few_workers_say_too_little_and_groups_nothing_of_one_another_or_of_who_is_not_measured() -> None:
    few = seats(*([0.09, 0.11] * 4)[: LEAST_WORKERS - 1])
    assert as_likely(few) == few
    both = [*seats(*[0.1] * 8), *seats(*[0.3] * 8, group="h")]
    assert means(as_likely(both)) == pytest.approx(means(both))
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


BATCH = 32

USUAL = 8.0
"""The usual fixed part here, in samples: a fifth of a step."""


def sloped(
    name: str,
    overhead: float = USUAL,
    *,
    inflation: float = 100.0,
    batch: int = BATCH,
    group: str = "g",
    sure: bool = True,
) -> Seat:
    """One that takes 1 ms for a sample, and as much as `overhead` samples beside; means of its steps vary by so many
    times (`inflation`) as much as those of independent ones."""
    slope = 1e-3
    seconds = slope * (overhead + batch)
    return lined(
        name,
        Prediction(Line(slope * overhead, slope), sure),
        Estimate(seconds, (0.05 * seconds) ** 2, 100, inflation),
        group=group,
        batch=batch,
        roughness=100 * INDEPENDENT * math.sqrt(inflation),
    )


def lined(
    name: str, predicted: Prediction, estimate: Estimate, *, group: str, batch: int, roughness: float = 0.0
) -> Seat:
    memory = WorkerMemory(step_time=StepTime(roughness=roughness))
    return Seat(name, Group(group, 9), batch, (1, 512), estimate, memory=memory, predicted=predicted)


def alike_slopes() -> list[Seat]:
    return [sloped(f"w-{place}", USUAL + place % 3 - 1) for place in range(9)]


def overheads(seats: Sequence[Seat]) -> list[float]:
    lines = [each.line() for each in as_alike(seats)]
    return [line.fixed_seconds / line.seconds_per_sample for line in lines if line is not None]


def lines_of(seats: Sequence[Seat]) -> list[Line | None]:
    return [each.line() for each in seats]


def test_line_by_which_more_samples_cost_little_is_turned_about_what_was_measured() -> None:
    odd = sloped("odd", 64.0)
    line = as_alike([*alike_slopes(), odd])[-1].line()
    assert odd.estimate is not None and line is not None
    assert line.at(BATCH) == pytest.approx(odd.estimate.mean_seconds)
    assert line.fixed_seconds / line.seconds_per_sample == pytest.approx(USUAL + 1, rel=0.1)


def test_most_lines_and_all_that_are_steep_are_left_as_they_are() -> None:
    seats = [*alike_slopes(), sloped("steep", 0.0), sloped("square", -16.0), sloped("odd", 64.0)]
    assert lines_of(as_alike(seats))[:-1] == lines_of(seats)[:-1]


def test_the_longer_noise_lasts_the_more_is_turned_and_of_independent_steps_nothing() -> None:
    none, little, much = (
        overheads([*alike_slopes(), sloped("w", 24.0, inflation=each)])[-1] for each in (1.0, 2.0, 10.0)
    )
    assert USUAL < much < little < none == 24.0


def test_workers_of_two_kinds_keep_their_lines() -> None:
    two = [sloped(f"w-{place}", 64.0 if place % 3 == 0 else 2.0) for place in range(15)]
    assert overheads(two) == pytest.approx([64.0, 2.0, 2.0] * 5)


def test_who_is_new_or_not_measured_or_has_quite_another_batch_or_few_peers_keeps_its_line() -> None:
    idle = Seat("idle", Group("g", 9), 0, (0, 512), predicted=Prediction(Line(0.0, 5e-3), True))
    apart, new = sloped("apart", 64.0, batch=3 * BATCH), sloped("new", 64.0, sure=False)
    held = sloped("held", 64.0)._replace(held=True)
    seats = [*alike_slopes(), idle, apart, new, held]
    assert lines_of(as_alike(seats))[-4:] == lines_of(seats)[-4:]
    few = [sloped(f"w-{place}", 8.0 * place) for place in range(5)]
    assert lines_of(as_alike(few)) == lines_of(few)
    other = [sloped(f"h-{place}", 40.0, group="h") for place in range(9)]
    assert overheads([*alike_slopes(), *other])[9:] == pytest.approx([40.0] * 9)


@given(
    st.lists(
        st.tuples(
            st.floats(1e-7, 86_400.0),
            st.integers(1, 10**6),
            st.floats(LEAST_SHARE, GREATEST_SHARE),
            st.booleans(),
            st.floats(0, 1e6),
        ),
        max_size=12,
    )
)
@example([(1.0, 1, 0.0, True, 250.0)] * 6 + [(1.0, 3, -3.0, True, 250.0)] * 5 + [(1.0, 3, -2.9, True, 250.0)])
def test_whatever_is_predicted_lines_get_steeper_alone_and_go_through_what_was_measured(
    found: list[tuple[float, int, float, bool, float]],
) -> None:
    seats = [
        lined(
            str(place),
            Prediction(Line(share * seconds, (1 - share) * seconds / batch), sure),
            Estimate(seconds, 0.01 * seconds**2, 10),
            group="g",
            batch=batch,
            roughness=roughness,
        )
        for place, (seconds, batch, share, sure, roughness) in enumerate(found)
    ]
    for before, after in zip(seats, as_alike(seats), strict=True):
        line, was, estimate = after.line(), before.line(), after.estimate
        assert line is not None and was is not None and estimate is not None
        assert line.at(after.batch) == pytest.approx(estimate.mean_seconds)
        assert was.seconds_per_sample * (1 - 1e-9) <= line.seconds_per_sample < math.inf


def test_policy_is_asked_with_estimates_and_lines_that_rest_on_the_others() -> None:
    job, unlike = Job("job", (Group("g", 10),), 320), [*alike_slopes(), sloped("odd", 64.0)]
    likely, _ = likely_seats(job, unlike, Memory())
    assert likely == as_alike(as_likely(unlike)) != unlike
    assert likely_seats(replace(job, policy="Uniform"), unlike, Memory()) == (unlike, "")
