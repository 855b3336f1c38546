"""What a worker's own time likely is: estimates are drawn to those of its group, and flat lines made steeper.

Workers that become slow again and again count as slow where to follow them costs more than to leave them be.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.batching.asking import likely_seats
from heterotrain_operator.core.batching.likeness import (
    as_alike,
    shrunk_to_group_mean,
    with_relapse_caution,
)
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.batching.words import slowest
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.outlook import outlook
from heterotrain_operator.core.prediction import Prediction
from heterotrain_operator.core.prediction.predictors.ema import GREATEST_SHARE, LEAST_SHARE
from heterotrain_operator.core.prediction.relapses import REMEMBERED_INTERVALS, Relapses
from heterotrain_operator.core.prediction.roughness import INDEPENDENT
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.state import Remembered
from unit.core.traces import hetero_world, seat

ERROR = 0.04
"""Relative standard error of each mean here."""


def measured(name: str, seconds: float, batch: int = 32, **rest: Any) -> Seat:
    return seat(seconds, batch, (1, 512), variation=5 * ERROR, steps=25, name=name, **rest)


def seats(*seconds: float, group: str = "g") -> list[Seat]:
    return [measured(f"{group}-{place}", each, group=Group(group, 9)) for place, each in enumerate(seconds)]


def estimates(found: Sequence[Seat]) -> list[Estimate]:
    return [each.estimate for each in found if each.estimate is not None]


def means(found: Sequence[Seat]) -> list[float]:
    return [each.mean_seconds for each in estimates(found)]


def test_of_workers_of_one_kind_the_slowest_was_mostly_unlucky() -> None:
    chance = random.Random(1)
    noisy = seats(*(0.1 * math.exp(chance.gauss(0, ERROR)) for _ in range(32)))
    drawn = shrunk_to_group_mean(noisy)
    assert pstdev(means(drawn)) < 0.3 * pstdev(means(noisy))
    assert fmean(means(drawn)) == pytest.approx(fmean(means(noisy)), rel=0.01)
    assert max(each.relative_error for each in estimates(drawn)) < 0.6 * ERROR


def test_whoever_is_far_from_all_others_or_has_quite_another_batch_neither_moves_nor_moves_them() -> None:
    alike = seats(*([0.099, 0.101] * 8))
    found = means(shrunk_to_group_mean([*alike, measured("slow", 0.2), measured("apart", 0.11, 16)]))
    assert found[-2:] == [0.2, 0.11]
    assert found[:-2] == pytest.approx([0.1] * 16, rel=0.01)


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
    for before, after in zip(measured, shrunk_to_group_mean(measured), strict=True):
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
    memory = RememberedWorker(step_time=StepTime(roughness=roughness))
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
    assert line.at(BATCH) == pytest.approx(odd.estimate.mean_seconds)
    assert line.fixed_seconds / line.seconds_per_sample == pytest.approx(USUAL + 1, rel=0.1)


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
        assert line.at(after.batch) == pytest.approx(estimate.mean_seconds)
        assert was.seconds_per_sample * (1 - 1e-9) <= line.seconds_per_sample < math.inf


def test_policy_is_asked_with_estimates_and_lines_that_rest_on_the_others() -> None:
    job, unlike = Job("job", (Group("g", 10),), 320), [*alike_slopes(), sloped("odd", 64.0)]
    likely, _ = likely_seats(job, unlike, Remembered())
    assert likely == as_alike(shrunk_to_group_mean(unlike)) != unlike
    assert likely_seats(replace(job, policy="Uniform"), unlike, Remembered()) == (unlike, "")


INTERVAL = 10
FAST, SLOW = 0.1, 0.2
NEVER = Relapses()
AT = 500
"""The committed step of these decisions."""


def turned(times: float, *, at_step: int = AT, seconds: float = SLOW) -> Relapses:
    return Relapses(seconds, BATCH, round(1000 * times), at_step + 1)


def after_turn(before: Relapses, seconds: float, *, together: int = 1, known: float = 0.0, step: int = AT) -> Relapses:
    """Of a worker that turned slow and stayed so."""
    slow = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return before._replace(together=together).lasted(slow, BATCH, known, step=step, interval=INTERVAL)


def turning(
    name: str, relapses: Relapses = NEVER, *, seconds: float = FAST, batch: int = BATCH, greatest: int = 512
) -> Seat:
    return seat(seconds, batch, (1, greatest), variation=0.05, name=name, memory=RememberedWorker(relapses=relapses))


def others(number: int) -> list[Seat]:
    return [turning(f"other-{place}") for place in range(number)]


def recovered(number: int, relapses: Relapses, **how: Any) -> list[Seat]:
    return [turning(f"back-{place}", relapses, **how) for place in range(number)]


def wary(seats: Sequence[Seat], step: int = AT) -> tuple[str, ...]:
    return with_relapse_caution(seats, step, INTERVAL)[1]


def test_a_turn_that_lasts_counts_and_says_how_slow_the_worker_was() -> None:
    once = after_turn(NEVER, SLOW)
    assert once.recent(AT, INTERVAL) == pytest.approx(1)
    assert (once.slow_seconds, once.slow_batch, once.together) == (SLOW, BATCH, 0)
    assert after_turn(turned(2), FAST, known=SLOW) == turned(2), "its steps only seemed short"
    group = [after_turn(NEVER, SLOW, together=8) for _ in range(8)]
    assert math.fsum(each.recent(AT, INTERVAL) for each in group) == pytest.approx(1), "what slows many counts once"
    known = after_turn(Relapses(SLOW, BATCH, MAX_WHOLE, MAX_WHOLE), SLOW, step=MAX_WHOLE)
    worker = RememberedWorker(relapses=known)
    assert RememberedWorker.from_row(worker.row()) == worker


def test_of_many_workers_those_that_have_recovered_count_as_slow_as_they_were() -> None:
    back = recovered(16, turned(1))
    seats, names = with_relapse_caution([*others(48), *back], AT, INTERVAL)
    assert names == tuple(each.name for each in back)
    assert [each.estimate.mean_seconds for each in seats[48:] if each.estimate] == pytest.approx([SLOW] * 16)
    assert seats[:48] == others(48)
    assert slowest(seats).startswith("back-0 takes, when it is slow, 200 ms")


@pytest.mark.parametrize(
    ("fast", "back", "counted"),
    [
        (48, recovered(16, turned(1)), 16),
        (2, recovered(1, turned(4)), 0),  # of few workers one that seldom turns is followed
        (7, recovered(1, turned(25)), 1),  # and one that turns in most intervals is not
        (31, recovered(1, turned(1, seconds=10 * FAST)), 0),  # a single turn may be the last
        (48, recovered(16, turned(1), seconds=SLOW), 0),  # who is slow now is taken as measured
        (48, recovered(16, turned(4, seconds=0.75 * FAST), seconds=FAST / 2, greatest=BATCH), 0),  # delays nobody
        (48, recovered(16, turned(4, seconds=0.75 * FAST), seconds=FAST / 2), 16),
        (48, recovered(16, turned(1 / 16)), 0),  # a group that turned together
    ],
)
def test_those_count_as_slow_whose_turns_cost_more_than_to_leave_them_be(
    fast: int, back: list[Seat], counted: int
) -> None:
    assert len(wary([*others(fast), *back])) == counted
    assert not wary([*others(fast), *back], AT + 10 * REMEMBERED_INTERVALS * INTERVAL), "nobody turns any more"


def test_what_is_explained_is_what_is_decided() -> None:
    """Of 24 equal workers eight have turned slow often."""
    world = hetero_world(scales=[1.0] * 24)
    world.run(4)
    workers = [
        known._replace(relapses=Relapses(2 * known.step_time.mean_seconds, member.batch_size, 2000, 1))
        if rank < 8
        else known
        for rank, (known, member) in enumerate(zip(world.memory.workers, world.plan.members, strict=True))
    ]
    world.memory = replace(world.memory, workers=tuple(workers))
    ahead = outlook(world.job, world.plan, world.memory, {}, world.now)
    world.train(world.job.interval)
    decision = world.tick()
    explained, decided = (each.split("; ")[-1] for each in (ahead.proposal.reason, decision.reason))
    assert explained == decided
    assert decided.endswith("counted as slow as they often become")
    assert max(decision.plan.batch_sizes[:8]) < 0.7 * min(decision.plan.batch_sizes[8:])
