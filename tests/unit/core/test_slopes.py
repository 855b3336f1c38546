"""Lines that are much flatter than most of their group's are made steeper, through what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import AR1, Noise
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.batching import asking
from heterotrain_operator.core.batching.likeness import as_alike
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import Prediction
from heterotrain_operator.core.prediction.predictors.ema import GREATEST_SHARE, LEAST_SHARE
from heterotrain_operator.core.prediction.roughness import INDEPENDENT
from heterotrain_operator.core.prediction.step_time import Estimate, StepTime
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.worker_memory import WorkerMemory
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

BATCH = 32
USUAL = 8.0
"""The usual fixed part here, in samples: a fifth of a step."""


def worker(
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
    return seat(
        name,
        Prediction(Line(slope * overhead, slope), sure),
        Estimate(seconds, (0.05 * seconds) ** 2, 100, inflation),
        group=group,
        batch=batch,
        roughness=100 * INDEPENDENT * math.sqrt(inflation),
    )


def seat(
    name: str, predicted: Prediction, estimate: Estimate, *, group: str, batch: int, roughness: float = 0.0
) -> Seat:
    memory = WorkerMemory(step_time=StepTime(roughness=roughness))
    return Seat(name, Group(group, 9), batch, (1, 512), estimate, memory=memory, predicted=predicted)


def alike() -> list[Seat]:
    return [worker(f"w-{place}", USUAL + place % 3 - 1) for place in range(9)]


def overheads(seats: Sequence[Seat]) -> list[float]:
    lines = [each.line() for each in as_alike(seats)]
    return [line.fixed_seconds / line.seconds_per_sample for line in lines if line is not None]


def known(seats: Sequence[Seat]) -> list[Line | None]:
    return [each.line() for each in seats]


def test_line_by_which_more_samples_cost_little_is_turned_about_what_was_measured() -> None:
    odd = worker("odd", 64.0)
    line = as_alike([*alike(), odd])[-1].line()
    assert odd.estimate is not None and line is not None
    assert line.at(BATCH) == pytest.approx(odd.estimate.mean_seconds)
    assert line.fixed_seconds / line.seconds_per_sample == pytest.approx(USUAL + 1, rel=0.1)


def test_most_lines_and_all_that_are_steep_are_left_as_they_are() -> None:
    seats = [*alike(), worker("steep", 0.0), worker("square", -16.0), worker("odd", 64.0)]
    assert known(as_alike(seats))[:-1] == known(seats)[:-1]


def test_the_longer_noise_lasts_the_more_is_turned_and_of_independent_steps_nothing() -> None:
    none, little, much = (overheads([*alike(), worker("w", 24.0, inflation=each)])[-1] for each in (1.0, 2.0, 10.0))
    assert USUAL < much < little < none == 24.0


def test_workers_of_two_kinds_keep_their_lines() -> None:
    two = [worker(f"w-{place}", 64.0 if place % 3 == 0 else 2.0) for place in range(15)]
    assert overheads(two) == pytest.approx([64.0, 2.0, 2.0] * 5)


def test_few_lines_say_too_little_and_groups_nothing_of_one_another() -> None:
    few = [worker(f"w-{place}", 8.0 * place) for place in range(5)]
    assert known(as_alike(few)) == known(few)
    other = [worker(f"h-{place}", 40.0, group="h") for place in range(9)]
    assert overheads([*alike(), *other])[9:] == pytest.approx([40.0] * 9)


def test_who_is_new_or_not_measured_or_has_quite_another_batch_keeps_its_line() -> None:
    idle = Seat("idle", Group("g", 9), 0, (0, 512), predicted=Prediction(Line(0.0, 5e-3), True))
    apart, new = worker("apart", 64.0, batch=3 * BATCH), worker("new", 64.0, sure=False)
    held = worker("held", 64.0)._replace(held=True)
    seats = [*alike(), idle, apart, new, held]
    assert known(as_alike(seats))[-4:] == known(seats)[-4:]


def test_another_estimate_is_not_predicted_by_the_line_of_the_one_before() -> None:
    assert worker("w", 64.0).with_estimate(Estimate(0.1, 1e-6, 10)).line() == Line(0.0, 0.1 / BATCH)


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
        seat(
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


def step_after(seats: Sequence[Seat]) -> tuple[float, float]:
    """What the batches that the policy proposes make a step take, by all lines as they are, and what it takes now."""
    job = Job("job", (Group("g", len(seats)),), sum(each.batch for each in seats))
    batches = POLICIES["Optimal"].propose(job, as_alike(seats), Batching()).batches
    lines = [each.line() for each in seats]
    after = max(
        line.at(batch)
        for line, batch in zip(lines, batches or [each.batch for each in seats], strict=True)
        if line is not None
    )
    return after, max(each.estimate.mean_seconds for each in seats if each.estimate is not None)


@pytest.mark.parametrize(("flat", "steep"), [(5, 3), (6, 2), (7, 1), (3, 5), (1, 7), (20, 12)])
def test_lines_that_are_known_well_and_differ_make_no_step_longer(flat: int, steep: int) -> None:
    """Those of the one kind say that four fifths of a step do not depend on the batch, and those of the other that
    nothing does, and these are faster by a sixth.
    """
    slower = [_measured(f"flat-{place}", Line(0.08, 0.02 / BATCH)) for place in range(flat)]
    faster = [_measured(f"steep-{place}", Line(0.0, 0.085 / BATCH)) for place in range(steep)]
    after, before = step_after([*slower, *faster])
    assert after <= before * 1.001


def _measured(name: str, line: Line) -> Seat:
    seconds = line.at(BATCH)
    estimate = Estimate(seconds, (0.02 * seconds) ** 2, 3000, 10.0)
    rough = 100 * INDEPENDENT * math.sqrt(10.0)
    return seat(name, Prediction(line, True), estimate, group="g", batch=BATCH, roughness=rough)


def played(seed: int, noise: Noise, *laws: Affine) -> SimulationResult:
    """Sixteen workers of two groups, one three times as slow; those of a group have these laws in turn."""
    groups = {"fast": 1.0, "slow": 3.0}
    job = Job("job", tuple(Group(name, 8) for name in groups), 512)
    models = {
        f"job-{name}-{index}": WorkerModel(laws[index % len(laws)], scale, noise)
        for name, scale in groups.items()
        for index in range(8)
    }
    return simulate(Scenario(job, models, seed=seed, intervals=40), own_seconds=False)


def test_policy_is_asked_with_lines_that_rest_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = 0

    def counted(seats: Sequence[Seat]) -> list[Seat]:
        nonlocal turned
        found = as_alike(seats)
        turned += known(found) != known(seats)
        return found

    monkeypatch.setattr(asking, "as_alike", counted)
    played(1, AR1(0.9, 0.1), Affine(0.01, 0.002))
    assert turned > 0


def test_workers_of_unlike_kinds_in_one_group_settle_at_their_best_split() -> None:
    found = played(1, AR1(0.9, 0.03), Affine(0.03, 0.0005), Affine(0.001, 0.003))
    assert found.settled_ratio < 1.02
