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


class Booked:
    """The accounts of a worker under a plan, and where they book."""

    def __init__(self, path: Path | None = None, *, one_later: bool = False) -> None:
        self.losses = Losses(lambda _: False, 1)
        self.metrics = WorkerMetrics("job", "a", "cpu", lambda: False)
        self.series = Series(path)
        self.accounts = Accounts(self.losses, self.metrics, self.series, 0.2, one_later=one_later)
        self.follow(8)

    def follow(self, batch: int) -> None:
        self.metrics.follow(Plan(1, 1, "step", (Member("a", "u", "", "cpu", batch),)), 0)

    def commit(self, step: int, mark: str = "", samples: int = 8) -> DeviceTimes:
        times = DeviceTimes()
        loss = torch.tensor(float(step))
        made = Committed(float(step), step, 0, 1, 8, 8, 1.0, times, loss, mark)
        self.accounts.commit(made._replace(samples=samples))
        return times

    def marks(self, *reasons: str) -> list[str]:
        """What steps are marked with, one after the other, of which each has one reason, or none."""
        found = []
        for reason in reasons:
            if reason:
                self.accounts.mark(reason)
            found.append(self.accounts.take_mark())
        return found


def read(path: Path) -> list[StepRecord]:
    return [StepRecord.from_json(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("one_later", [False, True])
def test_every_committed_step_is_booked_in_its_order(one_later: bool, tmp_path: Path) -> None:
    booked = Booked(tmp_path / "series.jsonl", one_later=one_later)
    times: list[DeviceTimes] = []
    for step in range(3):
        times.append(booked.commit(step, "first" if step == 0 else ""))
        assert [one.waited_for for one in times] == [True] * step + [not one_later]
    counters = booked.metrics.counters
    assert counters.steps == (1 if one_later else 2)
    booked.accounts.settle()
    booked.accounts.settle()
    booked.series.flush()
    assert (counters.steps, counters.own_seconds, booked.accounts.slow_step_seconds) == (2, 1.0, 0.75)
    assert booked.losses.signals() == (3.0, 3.0, 0.0)
    found = [(each.step, each.loss, each.own, each.mark) for each in read(tmp_path / "series.jsonl")]
    assert found == [(0, 0.0, 0.5, "first"), (1, 1.0, 0.5, ""), (2, 2.0, 0.5, "")]


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
    assert [each.step for each in read(tmp_path / "series.jsonl")] == [0, 1, 2]


def test_a_full_disk_ends_the_series_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    series = Series(Path("/dev/full"))
    for step in range(2):
        series.write(StepRecord(float(step), step, 0, 1, 8, 8, 0.1, 0.1, None, ""))
    assert caplog.text.count("no more step records") == 1


def test_a_step_has_one_mark_and_what_every_step_holds_is_measured_after_ten_but_never_a_smaller_step() -> None:
    booked = Booked()
    assert booked.accounts.take_mark() == "first"
    booked.accounts.looked_at = True
    assert booked.marks("", "") == ["evaluation", ""], "a look at the model counts for its own step"
    booked.accounts.mark("checkpoint")
    assert booked.marks("partial", "") == ["checkpoint", ""], "the first of several reasons"
    booked.accounts.mark("partial")
    booked.accounts.mark_as_replay()
    assert booked.accounts.take_mark() == "replay", "which is before all"
    assert booked.marks("", *["checkpoint"] * 12) == ["", *["checkpoint"] * 10, "", ""]
    assert booked.marks("", "checkpoint") == ["", "checkpoint"]
    assert booked.marks(*["partial"] * 12) == ["partial"] * 12
    for _ in range(12):
        booked.accounts.mark("partial")
        assert booked.marks("pause") == ["pause"], "a smaller step that holds something else is no measurement"


def test_a_smaller_step_is_a_measurement_at_so_many_samples_under_its_plan_but_the_first_of_a_size() -> None:
    """A model may be compiled for it, which takes as long as many steps."""
    booked = Booked()
    for samples, mark in ((3, "partial"), (2, "partial")):
        booked.commit(0, mark, samples)
    counters = booked.metrics.counters
    assert counters.smaller == {}
    for samples, mark in ((8, ""), *[(each, "partial") for each in (3, 3, 2)], (3, "replay"), (0, "partial")):
        booked.commit(0, mark, samples)
    assert counters.steps == 1
    assert counters.smaller == {3: (2, 1.0), 2: (1, 0.5)}
    [exported] = [family for family in booked.metrics.collect() if family.name == SMALLER_STEP_SECONDS.name]
    assert {sample.labels["batch"]: sample.value for sample in exported.samples} == {"3": 0.5, "2": 0.5}
    booked.follow(6)
    assert booked.metrics.counters.smaller == {}
    booked.commit(1, "partial", 3)
    assert booked.metrics.counters.smaller == {3: (1, 0.5)}
