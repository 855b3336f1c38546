"""A worker that takes long, for whatever reason, is not taken for one that is gone: nobody is left behind. Real
processes of an elastic job, with a heartbeat timeout that is shorter than anything that they are held up by."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain_operator.clusters.local.limits.duty_cycle import DutyCycleLimits
from trainer.gang import Gang
from trainer.test_slow_disk import SlowDisk, disk

__all__ = ["disk"]  # the fixture

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/loaders.py"
SHORT = TrainingConfig(steps=12, seed=7, heartbeat_timeout_seconds=1.5)
LONG_SECONDS = 4.0


def assert_nobody_was_left_behind(gang: Gang, batches: tuple[int, ...]) -> None:
    gang.succeed()
    assert "formed again" not in gang.logs()
    assert gang.plan.batch_sizes == batches


@pytest.mark.parametrize("worker", ["w-0", "w-1"])
@pytest.mark.parametrize("kind", ["interpreter", "step", "evaluation"])
def test_who_takes_long_is_waited_for(tmp_path: Path, kind: str, worker: str) -> None:
    batches = (40, 40, 16)
    command = ["tests/trainer/scripts/held_up.py", worker, kind, str(LONG_SECONDS), SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, batches, SHORT) as gang:
        assert_nobody_was_left_behind(gang, batches)


def test_the_only_worker_whose_interpreter_is_held_trains_on(tmp_path: Path) -> None:
    command = ["tests/trainer/scripts/held_up.py", "w-0", "interpreter", str(LONG_SECONDS), SCRIPT]
    with Gang(tmp_path, [*command, "--out", str(tmp_path)], (96,), SHORT) as gang:
        assert_nobody_was_left_behind(gang, (96,))


def test_who_hangs_with_its_interpreter_is_left_behind_in_the_end(tmp_path: Path) -> None:
    hangs = replace(SHORT, progress_timeout_seconds=4.0)
    command = ["tests/trainer/scripts/held_up.py", "w-1", "interpreter", "600", SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (40, 40, 16), hangs) as gang:
        gang.await_log(0, "group of 2 workers formed again")
        gang.succeed(0, 2)


def test_a_slow_checkpoint_evicts_nobody(tmp_path: Path, disk: SlowDisk) -> None:
    config = replace(SHORT, checkpoint_path=str(disk.folder), checkpoint_every_steps=5)
    batches = (40, 56)
    with Gang(tmp_path, [*disk.command[:2], SCRIPT, "--out", str(tmp_path)], batches, config) as gang:
        for _ in range(3):
            time.sleep(LONG_SECONDS)
            disk.complete()
        assert_nobody_was_left_behind(gang, batches)


class Throttled(DutyCycleLimits):
    """A limit for one worker of a gang, and what it has started."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}", f"process {pid}", None)
        self._pid = pid
        self.started(pid)

    def pids(self) -> set[int]:
        found = {self._pid}
        with contextlib.suppress(OSError):
            found |= set(map(int, Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()))
        return found

    def end(self) -> None:
        self.set_cores(None)
        self._ended.set()
        self.set_stopped(stopped=False)


@pytest.mark.parametrize("number", [0, 1])
def test_who_has_a_twentieth_of_a_core_is_waited_for(tmp_path: Path, number: int) -> None:
    batches = (40, 40, 16)
    config = replace(SHORT, steps=20, heartbeat_timeout_seconds=5.0)  # as is usual; steps take about a second then
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], batches, config) as gang:
        gang.await_step(1)
        limits = Throttled(gang.processes[number].pid)
        gang.await_step(3)  # by then its earlier use of the processor is known, and counts for nothing
        limits.set_cores(0.05)
        try:
            gang.await_metric(2, table.STEP.name, 10)
        finally:
            limits.end()
        assert_nobody_was_left_behind(gang, batches)
