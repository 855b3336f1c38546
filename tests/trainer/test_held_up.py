"""A worker that takes long, for whatever reason, is not taken for one that is gone: nobody is left behind. Real
processes of an elastic job, with a heartbeat timeout that is shorter than anything that they are held up by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.training.group import Group
from heterotrain_operator.clusters.local.limits.duty_cycle import DutyCycleLimits
from trainer.gang import Gang, with_children
from trainer.story import DISTURBED

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/loaders.py"
SHORT = TrainingConfig(steps=12, seed=7, heartbeat_timeout_seconds=1.5)
LONG_SECONDS = 3.0


def held_up(folder: Path, config: TrainingConfig, batches: tuple[int, ...], *when: str) -> Gang:
    """A job of which workers are held up, each written as WORKER:KIND:SECONDS."""
    command = [DISTURBED, "held-up", ",".join(when), SCRIPT, "--out", str(folder)]
    return Gang(folder, command, batches, config)


def assert_nobody_was_left_behind(gang: Gang) -> None:
    gang.succeed()
    assert not gang.has_said("formed again"), "who takes long is waited for"


def held(worker: str, kind: str) -> str:
    return f"{worker}:{kind}:{LONG_SECONDS}"


@pytest.mark.parametrize(
    ("batches", "when"),
    [
        ((40, 40, 16), (held("w-0", "interpreter"), held("w-1", "step"), held("w-2", "evaluation"))),
        *[
            pytest.param((40, 40, 16), (held(worker, kind),), marks=pytest.mark.long)
            for worker, kind in [
                ("w-1", "interpreter"),
                ("w-0", "step"),
                ("w-0", "evaluation"),
            ]
        ],
        pytest.param((96,), (held("w-0", "interpreter"),), marks=pytest.mark.long),
    ],
)
def test_who_takes_long_is_waited_for(tmp_path: Path, batches: tuple[int, ...], when: tuple[str, ...]) -> None:
    with held_up(tmp_path, SHORT, batches, *when) as gang:
        assert_nobody_was_left_behind(gang)


def test_who_hangs_with_its_interpreter_is_left_behind_in_the_end(tmp_path: Path) -> None:
    config = replace(SHORT, progress_timeout_seconds=4.0)
    with held_up(tmp_path, config, (40, 40, 16), "w-1:interpreter:600") as gang:
        gang.await_log(0, "group of 2 workers formed again")
        gang.succeed(0, 2)


class Throttled(DutyCycleLimits):
    """A limit for one worker of a gang, and what it has started."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}", f"process {pid}", None)
        self._pid = pid
        self.started(pid)

    def pids(self) -> set[int]:
        return with_children(self._pid)

    def end(self) -> None:
        self.set_cores(None)
        self._ended.set()
        self.set_stopped(stopped=False)


@pytest.mark.alone
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.long)])
def test_who_has_a_twentieth_of_a_core_is_waited_for(tmp_path: Path, number: int) -> None:
    config = replace(SHORT, heartbeat_timeout_seconds=5.0)  # as is usual; steps take about a second then
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (40, 40, 16), config) as gang:
        gang.await_step(1)
        limits = Throttled(gang.processes[number].pid)
        gang.await_step(3)  # by then its earlier use of the processor is known, and counts for nothing
        limits.set_cores(0.05)
        try:
            gang.await_metric(2, table.STEP.name, 9)
        finally:
            limits.end()
        assert_nobody_was_left_behind(gang)


def test_who_waits_for_others_between_steps_says_so() -> None:
    """A worker that hangs where a checkpoint is due would else be blamed on those that wait for it there."""
    group: Any = Group.__new__(Group)
    group.generation, group.reduction = MagicMock(), SimpleNamespace(in_collective=False, error="")
    seen: list[bool] = []
    assert group.together(lambda generation: seen.append(group.in_collective))
    assert (seen, group.in_collective) == ([True], False)
