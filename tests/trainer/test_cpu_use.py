"""CPU use counts since the plan began, and what the limit held back is not counted as waiting for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import Member, Plan
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import CpuMeter, CpuUse
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.reporting.resources import ThreadTime
from heterotrain.reporting.timing import StepTimes


@dataclass
class Kernel:
    """What the kernel says, and how often it was asked."""

    now: float = 1000.0
    cpu: float = 50.0
    throttled: float | None = 20.0
    threads: dict[str, tuple[float, float]] | None = field(
        default_factory=lambda: {"10": (40.0, 30.0), "11": (1.0, 1.0)}
    )
    pressure: float | None = 5.0
    asked: int = 0

    def used(self) -> float:
        self.asked += 1
        return self.cpu

    def times(self) -> dict[str, ThreadTime] | None:
        return self.threads and {name: ThreadTime(*times) for name, times in self.threads.items()}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel()
    monkeypatch.setattr(resources, "cpu_seconds", kernel.used)
    monkeypatch.setattr(resources, "cpu_throttled_seconds", lambda: kernel.throttled)
    monkeypatch.setattr(resources, "thread_times", kernel.times)
    monkeypatch.setattr(resources, "cpu_pressure_seconds", lambda: kernel.pressure)
    return kernel


def rounded(use: CpuUse) -> tuple[float | None, ...]:
    """Without the threads."""
    return tuple(value if value is None else round(value, 9) for value in use[:5])


def test_counts_begin_with_the_meter(kernel: Kernel) -> None:
    meter = CpuMeter(lambda: kernel.now)
    assert rounded(meter.read()) == (0, 0, 0, 0, 0)
    kernel.now, kernel.cpu, kernel.throttled, kernel.pressure = 1010.0, 54.0, 22.0, 9.0
    kernel.threads = {"10": (44.0, 35.0), "11": (1.0, 1.0)}
    assert rounded(meter.read()) == (10, 4, 2, 3, 4), "of 5 s of delay the limit explains 2"


def test_what_the_limit_holds_back_is_no_waiting_and_no_counter_falls(kernel: Kernel) -> None:
    meter = CpuMeter(lambda: kernel.now)
    kernel.now, kernel.throttled, kernel.threads = 1001.0, 20.25, {"10": (40.5, 30.5)}
    assert rounded(meter.read())[2:4] == (0.25, 0.25)
    kernel.now, kernel.throttled = 1002.0, 20.375  # its delay is accounted later
    assert rounded(meter.read())[2:4] == (0.375, 0.25)
    kernel.now, kernel.threads = 1003.0, {"10": (41.0, 30.625)}
    assert rounded(meter.read())[2:4] == (0.375, 0.25)
    kernel.now, kernel.throttled, kernel.cpu = 1004.0, 1.0, 1.0
    assert rounded(meter.read())[1:4] == (0, 0.375, 0.25)


def test_threads_that_seldom_wake_count_little_and_those_side_by_side_as_one(kernel: Kernel) -> None:
    kernel.throttled = None
    kernel.threads = dict.fromkeys("abcd", (0.0, 0.0))
    meter = CpuMeter(lambda: kernel.now)
    kernel.now = 1010.0
    kernel.threads = {"a": (4.9, 2.0), "b": (4.9, 2.0), "c": (0.1, 9.0), "d": (0.1, 9.0)}
    assert meter.read().wait_seconds == pytest.approx(2.14)


def test_threads_may_begin_end_and_use_a_number_again(kernel: Kernel) -> None:
    kernel.throttled = None
    meter = CpuMeter(lambda: kernel.now)
    kernel.now, kernel.threads = 1001.0, {"10": (40.0, 30.0), "12": (1.0, 0.5)}
    assert rounded(meter.read())[2:4] == (None, 0.5)
    kernel.now, kernel.threads = 1002.0, {"10": (40.0, 30.0), "12": (0.5, 0.25)}
    assert meter.read().wait_seconds == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("lost", "figures"), [("throttled", (None, None, 0)), ("threads", (0, None, 0)), ("pressure", (0, 0, None))]
)
def test_figure_that_was_lost_meanwhile_is_not_known_until_the_next_plan(
    kernel: Kernel, lost: str, figures: tuple[float | None, ...]
) -> None:
    meter = CpuMeter(lambda: kernel.now)
    known = getattr(kernel, lost)
    for now, value in ((1001.0, None), (1002.0, known)):
        kernel.now = now
        setattr(kernel, lost, value)
        assert rounded(meter.read())[2:] == figures
    assert None not in rounded(CpuMeter(lambda: kernel.now).read())


def test_steps_do_not_ask_the_kernel_and_another_plan_counts_from_zero(kernel: Kernel) -> None:
    metrics = WorkerMetrics("job", "job-cpu-0", "cpu", lambda: False)
    plan = Plan(3, 1, "step", (Member("job-cpu-0", "u", "", "cpu", 100),))
    metrics.follow(plan, 0)
    asked = kernel.asked
    for _ in range(100):
        metrics.committed(100, StepTimes(0.003, 0.0), 0.2, measured=True)
    assert kernel.asked == asked
    kernel.cpu = 90.0
    metrics.follow(plan, 0)
    values = {family.name: family.samples[0].value for family in metrics.collect()}
    assert values[table.CPU_SECONDS.name] == 0


def test_what_it_takes_to_follow_a_plan_is_no_part_of_its_steps(kernel: Kernel) -> None:
    """Groups are made, and the first step is not measured: both take CPU time that no further step does."""
    metrics = WorkerMetrics("job", "job-cpu-0", "cpu", lambda: False)
    metrics.follow(Plan(3, 1, "step", (Member("job-cpu-0", "u", "", "cpu", 100),)), 0)

    def cpu_seconds() -> float:
        metrics.counters.cpu._last = metrics.counters.cpu._last._replace(moment=0.0)  # long ago
        return {family.name: family.samples[0].value for family in metrics.collect()}[table.CPU_SECONDS.name]

    kernel.cpu += 3.0
    assert cpu_seconds() == 3.0
    metrics.committed(100, StepTimes(0.1, 0.0), 0.2, measured=False)
    kernel.cpu += 1.0
    metrics.committed(100, StepTimes(0.1, 0.0), 0.2, measured=True)
    assert cpu_seconds() == 1.0
    kernel.cpu += 0.5
    metrics.committed(100, StepTimes(0.1, 0.0), 0.2, measured=False)  # such as the one after an evaluation
    assert cpu_seconds() == 1.5


def test_threads_count_by_what_each_computed_and_processes_that_load_data_count(kernel: Kernel) -> None:
    kernel.threads = {}
    meter = CpuMeter(lambda: kernel.now)
    assert meter.read().threads is None, "nothing was computed yet"
    for computed, cpu, threads in (
        ((4.0,), 4.0, 1.0),
        ((4.0, 4.0, 4.0, 4.0), 16.0, 4.0),
        ((4.0, 0.1, 0.1), 4.2, 1.1),
        ((4.0,), 12.0, 3.0),  # two thirds in other processes
    ):
        kernel.now += 10.0
        kernel.cpu = 50.0 + cpu
        kernel.threads = {str(number): (seconds, 0.0) for number, seconds in enumerate(computed)}
        assert meter.read().threads == pytest.approx(threads, abs=0.01)
    kernel.now, kernel.threads = kernel.now + 10.0, None
    assert meter.read().threads is None
