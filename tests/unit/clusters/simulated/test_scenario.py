"""Values of a scenario: laws never fall, noise has mean 1, faults are named by their field, workers must be there."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from heterotrain_operator.clusters.simulated.communication import (
    Communication,
    NoCommunication,
    ParameterServer,
    RingAllReduce,
)
from heterotrain_operator.clusters.simulated.events import Drift, Interference, Jump, LimitChange, Unreadable
from heterotrain_operator.clusters.simulated.influences import Influences, Trainee
from heterotrain_operator.clusters.simulated.laws import Affine, MemoryCliff, Padded, Plateau, Power, Throttled, TimeLaw
from heterotrain_operator.clusters.simulated.noise import (
    AR1,
    Draws,
    HeavyTailed,
    Independent,
    Noise,
    NoNoise,
    Replayed,
    residuals,
)
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, Scenario, Timing, WorkerModel
from heterotrain_operator.core.model import Group, Job

JOB = Job("job", (Group("cpu", 2), Group("gpu", 1)), 96)
LINE = Affine(0.01, 0.001)
LAWS: list[tuple[TimeLaw, dict[int, float]]] = [
    (LINE, {0: 0.01, 10: 0.02}),
    (Plateau(0.03, 0.01, 0.001), {0: 0.01, 1: 0.03, 50: 0.06}),
    (Padded(Affine(0.0, 0.001), 32), {0: 0.0, 1: 0.032, 32: 0.032, 33: 0.064}),
    (MemoryCliff(Affine(0.0, 0.001), 40, 5.0), {40: 0.04, 50: 0.09}),
    (Power(2.0, 0.0, 0.001), {64: 0.064, 128: 4 * 0.064}),
    (Power(3.0, 0.01, 0.001), {0: 0.01, 64: 0.074}),
    (Throttled(LINE, 1.5), {10: 0.02}),
]


@pytest.mark.parametrize(("law", "known"), LAWS, ids=lambda value: type(value).__name__)
def test_own_time_never_falls_as_the_batch_grows(law: TimeLaw, known: dict[int, float]) -> None:
    seconds = [law.seconds(batch) for batch in range(200)]
    assert seconds == sorted(seconds)
    assert {batch: seconds[batch] for batch in known} == pytest.approx(known)


@pytest.mark.parametrize(
    ("communication", "workers", "seconds"),
    [
        (NoCommunication(), 1000, 0.0),
        (RingAllReduce(1e9, 1e9, 0.001), 4, 2 * 3 * (0.25 + 0.001)),
        (RingAllReduce(1e9, 1e9), 1, 0.0),
        (ParameterServer(1e9, 1e10, servers=2), 4, 2 * 4 * 0.05),
        # More servers than workers do not outrun the workers' own links.
        (ParameterServer(1e9, 1e10), 1, 0.2),
        (ParameterServer(1e9, 1e10, servers=8), 4, 0.2),
    ],
)
def test_communication_takes_so_long(communication: Communication, workers: int, seconds: float) -> None:
    assert communication.seconds(workers) == pytest.approx(seconds)


NOISES: list[Noise] = [
    NoNoise(),
    Independent(0.2),
    AR1(0.9, 0.2),
    HeavyTailed(0.2),
    Replayed(((0.1, 0.11, 0.2, 0.1), (1.0, 3.0, 1.0))),
]


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: type(noise).__name__)
def test_noise_is_positive_of_mean_one_and_of_its_variation(noise: Noise) -> None:
    draws = Draws(5)
    draws.add([noise] * 50)
    factors = draws.peek(4000)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1, abs=0.03)
    if not isinstance(noise, Replayed):
        assert factors.std() == pytest.approx(getattr(noise, "variation", 0.0), rel=0.15)


def test_what_delays_one_step_lasts_under_autoregressive_noise() -> None:
    draws = Draws(5)
    draws.add([AR1(0.9, 0.1)] * 20)
    logs = np.log(draws.peek(3000))
    correlation = np.mean([np.corrcoef(column[1:], column[:-1])[0, 1] for column in logs.T])
    assert correlation == pytest.approx(0.9, abs=0.02)


def test_workers_of_equal_noise_have_draws_of_their_own_and_later_ones_change_none() -> None:
    first, both = Draws(5), Draws(5)
    first.add([Independent(0.1), Independent(0.1)])
    both.add([Independent(0.1), Independent(0.1)])
    assert np.array_equal(first.peek(10), both.peek(10))
    both.skip(4)
    both.add([Independent(0.1)])
    assert np.array_equal(first.peek(40)[4:], both.peek(36)[:, :2])
    assert not np.allclose(both.peek(36)[:, 0], both.peek(36)[:, 2])


def test_replayed_residuals_are_over_the_mean_of_the_neighbourhood() -> None:
    slow_wave = [1.0] * 50 + [2.0] * 50
    assert residuals(slow_wave, 0) == pytest.approx([2 / 3] * 50 + [4 / 3] * 50)
    assert residuals(slow_wave, 4)[:40] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("period", "busy"), [(100, 0.07), (3, 0.5), (1, 0.5), (10, 0.04), (7, 0.3)])
def test_oracle_knows_the_mean_that_a_neighbour_really_has(period: int, busy: float) -> None:
    influences = Influences([Interference((), 3.0, period, busy=busy)], seed=0)
    found = influences.of(0, 20 * period, [Trainee("job-gpu-0", "gpu", 0, None, 0)])
    assert found is not None
    assert found.true.mean() == pytest.approx(found.known.mean())
    assert abs((found.true > 1).mean() - busy) <= 0.5 / period


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Affine(-1, 0.001), "fixed"),
        (lambda: Affine(0.1, 0), "per_sample"),
        (lambda: Affine(float("nan"), 0.001), "fixed"),
        (lambda: MemoryCliff(LINE, 40, 0.5), "factor"),
        (lambda: Independent(-0.1), "variation"),
        (lambda: AR1(1.0, 0.1), "correlation"),
        (lambda: RingAllReduce(1e6, 0), "bandwidth"),
        (lambda: Jump((), 0.0, 5), "factor"),
        (lambda: LimitChange((), 0.0, 5), "cores"),
        (lambda: Unreadable((), probability=1.5), "probability"),
        (lambda: Timing(pod_seconds=-1), "pod_seconds"),
    ],
)
def test_a_fault_is_named_by_its_field(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


def test_a_scenario_names_only_workers_and_groups_of_its_job() -> None:
    with pytest.raises(ValueError, match=r"models: 'tpu' is no group and no worker"):
        Scenario(JOB, {"tpu": WorkerModel()})
    with pytest.raises(ValueError, match=r"events\[1\]\.workers: 'job-cpu-2'"):
        Scenario(JOB, events=(Jump(("cpu",), 2.0, 5), Jump(("job-cpu-2",), 2.0, 5)))


def test_a_workers_own_model_comes_before_that_of_its_group_and_all_of_it_goes_to_other_processes() -> None:
    fast, slow = WorkerModel(noise=AR1(0.9, 0.1)), WorkerModel(scale=4.0, memory=MemoryUse(1e8, 1e6))
    scenario = Scenario(JOB, {"cpu": slow, "job-cpu-1": fast}, (Drift((), 2.0, 5, 9),))
    assert [scenario.model_of(name, group).scale for name, group in scenario.workers()] == [4.0, 1.0, 1.0]
    assert pickle.loads(pickle.dumps(scenario)) == scenario
    assert hash(fast) != hash(slow)
