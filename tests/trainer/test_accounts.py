"""The numbers of a committed step are asked for at once, or, on a GPU, when the next one is committed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from heterotrain.contract import Member, Plan, StepRecord
from heterotrain.gradients.losses import Losses
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.reporting.timing import StepTimes
from heterotrain.training.accounts import Accounts, Committed
from heterotrain.worker_metrics import SMALLER_STEP_SECONDS


class DeviceTimes:
    """The times of a step on a device, which note whether they were waited for."""

    def __init__(self) -> None:
        self.waited_for = False

    def read(self) -> StepTimes:
        self.waited_for = True
        return StepTimes(0.5, 0.25)


def committed(step: int, times: DeviceTimes, mark: str = "") -> Committed:
    return Committed(float(step), step, 0, 1, 8, 8, 1.0, times, torch.tensor(float(step)), mark)


@pytest.mark.parametrize("one_later", [False, True])
def test_every_committed_step_is_booked_in_its_order(one_later: bool, tmp_path: Path) -> None:
    losses, metrics = Losses(lambda _: False, 1), WorkerMetrics("job", "a", "cpu", lambda: False)
    metrics.follow(Plan(1, 1, "step", (Member("a", "u", "", "cpu", 8),)), 0)
    series = Series(tmp_path / "series.jsonl")
    accounts = Accounts(losses, metrics, series, 0.2, one_later=one_later)
    times = [DeviceTimes() for _ in range(3)]
    for step, each in enumerate(times):
        accounts.commit(committed(step, each, "first" if step == 0 else ""))
        assert [one.waited_for for one in times[: step + 1]] == [True] * step + [not one_later]
    assert metrics.counters.steps == (1 if one_later else 2)
    accounts.settle()
    accounts.settle()
    series.flush()
    assert metrics.counters.steps == 2
    assert metrics.counters.own_seconds == 1.0
    assert accounts.slow_step_seconds == 0.75
    assert losses.signals() == (3.0, 3.0, 0.0)
    records = [StepRecord.from_json(line) for line in (tmp_path / "series.jsonl").read_text().splitlines()]
    assert [(each.step, each.loss, each.own, each.mark) for each in records] == [
        (0, 0.0, 0.5, "first"),
        (1, 1.0, 0.5, ""),
        (2, 2.0, 0.5, ""),
    ]


def test_a_process_that_the_script_forks_writes_no_record_again(tmp_path: Path) -> None:
    series = Series(tmp_path / "series.jsonl")
    for step in range(3):
        series.write(StepRecord(0.01 * step, step, 0, 1, 8, 8, 0.1, 0.1, None, ""))
    child = os.fork()
    if not child:
        series.flush()
        os._exit(0)
    os.waitpid(child, 0)
    series.flush()
    lines = (tmp_path / "series.jsonl").read_text().splitlines()
    assert [StepRecord.from_json(line).step for line in lines] == [0, 1, 2]


def test_a_full_disk_ends_the_series_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    series = Series(Path("/dev/full"))
    for step in range(2):
        series.write(StepRecord(float(step), step, 0, 1, 8, 8, 0.1, 0.1, None, ""))
    assert caplog.text.count("no more step records") == 1


def marks(accounts: Accounts, *reasons: str) -> list[str]:
    """What steps are marked with, one after the other, of which each has one reason, or none."""
    found = []
    for reason in reasons:
        if reason:
            accounts.mark(reason)
        found.append(accounts.take_mark())
    return found


@pytest.fixture
def accounts() -> Accounts:
    losses, metrics = Losses(lambda _: False, 1), WorkerMetrics("job", "a", "cpu", lambda: False)
    made = Accounts(losses, metrics, Series(None), 0.2, one_later=False)
    assert made.take_mark() == "first"
    return made


def test_what_every_step_holds_is_measured_after_ten_steps_but_never_a_smaller_step(accounts: Accounts) -> None:
    assert marks(accounts, "", *["checkpoint"] * 12) == ["", *["checkpoint"] * 10, "", ""]
    assert marks(accounts, "", "checkpoint") == ["", "checkpoint"]
    assert marks(accounts, *["partial"] * 12) == ["partial"] * 12


def test_a_smaller_step_is_a_measurement_at_so_many_samples_under_its_plan() -> None:
    losses, metrics = Losses(lambda _: False, 1), WorkerMetrics("job", "a", "cpu", lambda: False)
    accounts = Accounts(losses, metrics, Series(None), 0.2, one_later=False)
    metrics.follow(Plan(1, 1, "step", (Member("a", "u", "", "cpu", 8),)), 0)
    warm = [(3, "partial"), (2, "partial")]
    for samples, mark in (
        *warm,
        (8, ""),
        (3, "partial"),
        (3, "partial"),
        (2, "partial"),
        (3, "replay"),
        (0, "partial"),
    ):
        accounts.commit(committed(0, DeviceTimes(), mark)._replace(samples=samples))
    assert metrics.counters.steps == 1
    assert metrics.counters.smaller == {3: (2, 1.0), 2: (1, 0.5)}
    [exported] = [family for family in metrics.collect() if family.name == SMALLER_STEP_SECONDS.name]
    assert {sample.labels["batch"]: sample.value for sample in exported.samples} == {"3": 0.5, "2": 0.5}
    metrics.follow(Plan(2, 1, "step", (Member("a", "u", "", "cpu", 6),)), 0)
    assert metrics.counters.smaller == {}


def test_the_first_smaller_step_of_a_size_is_no_measurement() -> None:
    """A model may be compiled for it, which takes as long as many steps."""
    losses, metrics = Losses(lambda _: False, 1), WorkerMetrics("job", "a", "cpu", lambda: False)
    accounts = Accounts(losses, metrics, Series(None), 0.2, one_later=False)
    accounts.commit(committed(0, DeviceTimes(), "partial")._replace(samples=3))
    assert metrics.counters.smaller == {}
    metrics.follow(Plan(2, 1, "step", (Member("a", "u", "", "cpu", 6),)), 0)
    accounts.commit(committed(1, DeviceTimes(), "partial")._replace(samples=3))
    assert metrics.counters.smaller == {3: (1, 0.5)}


@pytest.mark.parametrize("reason", ["pause", "evaluation", "checkpoint"])
def test_a_smaller_step_that_holds_something_else_is_no_measurement_at_its_size(
    accounts: Accounts, reason: str
) -> None:
    assert marks(accounts, "")[0] == ""
    for _ in range(12):
        accounts.mark("partial")
        accounts.mark(reason)
        assert accounts.take_mark() == reason, "and not one at the full batch, however often it happens"
