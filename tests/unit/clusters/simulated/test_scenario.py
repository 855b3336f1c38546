"""A scenario's values: laws never fall, faults are named by their field, and it names only workers that there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterotrain_operator.clusters.simulated.communication import NoCommunication, ParameterServer, RingAllReduce
from heterotrain_operator.clusters.simulated.events import Drift, Interference, Jump, LimitChange, Unreadable
from heterotrain_operator.clusters.simulated.influences import Influences, Trainee
from heterotrain_operator.clusters.simulated.laws import Affine, MemoryCliff, Padded, Plateau, Power, Throttled, TimeLaw
from heterotrain_operator.clusters.simulated.noise import AR1, HeavyTailed, Independent, Replayed
from heterotrain_operator.clusters.simulated.scenario import MemoryUse, Scenario, WorkerModel
from heterotrain_operator.core.model import Group, Job

JOB = Job("job", (Group("cpu", 2), Group("gpu", 1)), 96)
LAWS: list[TimeLaw] = [
    Affine(0.01, 0.001),
    Plateau(0.03, 0.01, 0.001),
    Padded(Affine(0.01, 0.001), 16),
    MemoryCliff(Affine(0.01, 0.001), 40, 5.0),
    Power(2.0),
    Power(3.0, fixed=0.01),
    Throttled(Affine(0.01, 0.001), 1.5),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_own_time_never_falls_as_the_batch_grows(law: TimeLaw) -> None:
    seconds = [law.seconds(batch) for batch in range(200)]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


def test_padded_time_is_that_of_the_next_multiple() -> None:
    law = Padded(Affine(0.0, 0.001), 32)
    assert [law.seconds(batch) for batch in (0, 1, 32, 33)] == pytest.approx([0.0, 0.032, 0.032, 0.064])


def test_superlinear_time_is_that_of_an_affine_law_at_the_reference_batch() -> None:
    law = Power(2.0, per_sample=0.001, reference=64)
    assert law.seconds(64) == pytest.approx(0.064)
    assert law.seconds(128) == pytest.approx(4 * 0.064)


def test_samples_beyond_a_memory_cliff_are_dearer() -> None:
    law = MemoryCliff(Affine(0.0, 0.001), 40, 5.0)
    assert law.seconds(50) == pytest.approx(0.040 + 5 * 0.010)


def test_ring_sends_two_parts_for_each_neighbour_and_a_server_all_for_each_worker() -> None:
    assert RingAllReduce(1e9, 1e9, 0.001).seconds(4) == pytest.approx(2 * 3 * (0.25 + 0.001))
    assert RingAllReduce(1e9, 1e9).seconds(1) == 0
    assert ParameterServer(1e9, 1e10, servers=2).seconds(4) == pytest.approx(2 * 4 * 0.05)
    assert NoCommunication().seconds(1000) == 0


def test_more_servers_than_workers_do_not_outrun_the_workers_own_links() -> None:
    alone = ParameterServer(1e9, 1e10).seconds(1)
    assert alone == pytest.approx(2 * 0.1)
    assert ParameterServer(1e9, 1e10, servers=8).seconds(1) == pytest.approx(alone)
    assert ParameterServer(1e9, 1e10, servers=8).seconds(4) == pytest.approx(alone)


@pytest.mark.parametrize(("period", "busy"), [(100, 0.07), (3, 0.5), (1, 0.5), (10, 0.04), (7, 0.3)])
def test_oracle_knows_the_mean_that_a_neighbour_really_has(period: int, busy: float) -> None:
    scenario = Scenario(JOB, events=(Interference((), 3.0, period, busy=busy),))
    found = Influences(scenario).of(0, 20 * period, [Trainee("job-gpu-0", "gpu", 0, None, 0)])
    assert found is not None
    assert found.true.mean() == pytest.approx(found.known.mean())
    assert abs((found.true > 1).mean() - busy) <= 0.5 / period


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Affine(-1), "fixed"),
        (lambda: Affine(0.1, 0), "per_sample"),
        (lambda: Affine(float("nan")), "fixed"),
        (lambda: Padded(Affine(), 0), "multiple"),
        (lambda: MemoryCliff(Affine(), 40, 0.5), "factor"),
        (lambda: Independent(-0.1), "variation"),
        (lambda: AR1(1.0, 0.1), "correlation"),
        (lambda: HeavyTailed(0.1, 2.0), "index"),
        (lambda: HeavyTailed(2.0, 3.0), "variation"),
        (lambda: Replayed(()), "series"),
        (lambda: Replayed(((0.1, -0.1),)), r"series\[0\]"),
        (lambda: RingAllReduce(1e6, 0), "bandwidth"),
        (lambda: Jump((), 0.0, 5), "factor"),
        (lambda: Jump((), 2.0, 5, 5), "until"),
        (lambda: Drift((), 2.0, -1, 5), "begin"),
        (lambda: Interference((), 2.0, 0), "period"),
        (lambda: LimitChange((), 0.0, 5), "cores"),
        (lambda: Unreadable((), probability=1.5), "probability"),
        (lambda: MemoryUse(1e9, 1e6, 0.0), "limit_bytes"),
        (lambda: WorkerModel(scale=0.0), "scale"),
        (lambda: Scenario(JOB, intervals=0), "intervals"),
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


def test_a_workers_own_model_comes_before_that_of_its_group() -> None:
    fast, slow = WorkerModel(scale=1.0), WorkerModel(scale=4.0)
    scenario = Scenario(JOB, {"cpu": slow, "job-cpu-1": fast})
    assert [scenario.model_of(name, group).scale for name, group in scenario.workers()] == [4.0, 1.0, 1.0]
