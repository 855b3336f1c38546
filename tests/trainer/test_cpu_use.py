"""CPU use counts since the plan began, and what the limit held back is not counted as waiting for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import Member, Plan
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import LEAST_SECONDS, CpuMeter, CpuUse
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.reporting.timing import StepTimes


@dataclass
class Kernel:
    """What the kernel says, and how often it was asked."""

    now: float = 1000.0
    cpu: float = 50.0
    throttled: float | None = 20.0
    delays: dict[str, float] | None = field(default_factory=lambda: {"10": 30.0, "11": 1.0})
    pressure: float | None = 5.0
    asked: int = 0

    def used(self) -> float:
        self.asked += 1
        return self.cpu


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel()
    monkeypatch.setattr(resources, "cpu_seconds", kernel.used)
    monkeypatch.setattr(resources, "cpu_throttled_seconds", lambda: kernel.throttled)
    monkeypatch.setattr(resources, "run_delays", lambda: kernel.delays and dict(kernel.delays))
    monkeypatch.setattr(resources, "cpu_pressure_seconds", lambda: kernel.pressure)
    return kernel


def rounded(use: CpuUse) -> tuple[float | None, ...]:
    return tuple(value if value is None else round(value, 9) for value in use)


def test_counts_begin_with_the_meter(kernel: Kernel) -> None:
    meter = CpuMeter(lambda: kernel.now)
    assert meter.read() == (0, 0, 0, 0, 0)
    kernel.now, kernel.cpu, kernel.throttled, kernel.pressure = 1010.0, 54.0, 22.0, 9.0
    kernel.delays = {"10": 34.5, "11": 1.5}
    assert rounded(meter.read()) == (10, 4, 2, 3, 4), "of 5 s of delay the limit explains 2"


def test_what_the_limit_holds_back_is_no_waiting_and_no_counter_falls(kernel: Kernel) -> None:
    meter = CpuMeter(lambda: kernel.now)
    kernel.now, kernel.throttled, kernel.delays = 1001.0, 20.25, {"10": 30.5, "11": 1.0}
    assert rounded(meter.read())[2:4] == (0.25, 0.25)
    kernel.now, kernel.throttled = 1002.0, 20.5  # accounted later than the delay
    assert rounded(meter.read())[2:4] == (0.5, 0.25)
    kernel.now, kernel.throttled, kernel.cpu = 1003.0, 1.0, 1.0
    assert rounded(meter.read())[1:4] == (0, 0.5, 0.25)


def test_threads_may_begin_end_and_use_a_number_again(kernel: Kernel) -> None:
    kernel.throttled = None
    meter = CpuMeter(lambda: kernel.now)
    kernel.now, kernel.delays = 1001.0, {"10": 30.0, "12": 0.5}
    assert rounded(meter.read())[2:4] == (None, 0.5)
    kernel.now, kernel.delays = 1002.0, {"10": 30.0, "12": 0.25}
    assert meter.read().wait_seconds == pytest.approx(0.75)
    kernel.now, kernel.delays = 1003.0, None  # too many of them
    assert meter.read().wait_seconds == pytest.approx(0.75)
    kernel.now, kernel.delays = 1004.0, {"10": 90.0}
    assert meter.read().wait_seconds == pytest.approx(0.75), "from when, is not known"
    kernel.now, kernel.delays = 1005.0, {"10": 90.5}
    assert meter.read().wait_seconds == pytest.approx(1.25)


def test_kernel_without_figures_leaves_them_unknown(kernel: Kernel) -> None:
    kernel.throttled = kernel.delays = kernel.pressure = None
    meter = CpuMeter(lambda: kernel.now)
    kernel.now, kernel.cpu = 1002.0, 51.0
    assert meter.read() == (2, 1, None, None, None)


def test_asking_often_does_not_ask_the_kernel_often(kernel: Kernel) -> None:
    meter = CpuMeter(lambda: kernel.now)
    kernel.now += LEAST_SECONDS + 0.01
    for _ in range(100):
        meter.read()
    assert kernel.asked == 2


def test_steps_do_not_ask_the_kernel_and_another_plan_counts_anew(kernel: Kernel) -> None:
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
