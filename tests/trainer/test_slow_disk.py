"""Jobs of real workers whose checkpoints take long to be written."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.state.state_copy import tensors_in
from trainer.gang import Gang
from trainer.story import DISTURBED, assert_nothing_is_left, assert_preempted

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train.py"
EVERY = 10


class SlowDisk:
    """A folder of checkpoints on a disk that waits for the test before it completes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoints"
        self._fifo = folder / "fifo"
        os.mkfifo(self._fifo)
        self._allowed = os.open(self._fifo, os.O_RDWR)  # what is written stays there until it is read
        self.command = [DISTURBED, "slow-disk", str(self._fifo), SCRIPT, "--out", str(folder)]

    def complete(self, checkpoints: int = 1) -> None:
        """Let the checkpoint that is being written, or else the next one, be completed."""
        os.write(self._allowed, b"." * checkpoints)

    def close(self) -> None:
        os.close(self._allowed)

    def files(self) -> list[str]:
        """Those that are half written have a part in their names that differs each time, which is left out."""
        return sorted(re.sub(r"\.[0-9a-f]{8}\.partial$", ".partial", path.name) for path in self.folder.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    with contextlib.closing(SlowDisk(tmp_path)) as disk:
        yield disk


def config(disk: SlowDisk, steps: int) -> TrainingConfig:
    return TrainingConfig(steps=steps, seed=3, checkpoint_path=str(disk.folder), checkpoint_every_steps=EVERY)


def name(step: int) -> str:
    return f"step-{step:010d}.pt"


def test_training_goes_on_beside_a_slow_disk_and_waits_for_it_where_it_must(tmp_path: Path, disk: SlowDisk) -> None:
    freezes = {"FREEZES": f"w-1 {EVERY + 5}"}  # time enough to look at the leader
    with Gang(tmp_path, disk.command, (30, 34), config(disk, 100_000), environment=freezes) as gang:
        # Who writes beside the training is in training.
        gang.await_step(EVERY + 5)
        gang.await_phase(0, contract.PHASE_TRAINING)
        assert disk.files() == [f".{name(EVERY)}.partial"]
        gang.processes[1].send_signal(signal.SIGCONT)
        # All steps before the next one are committed; then the leader says what it waits for.
        gang.await_phase(0, contract.PHASE_CHECKPOINTING)
        gang.await_step(2 * EVERY)
        assert [gang.metric(number, table.CHECKPOINT_STEP.name) for number in range(2)] == [None, None]
        disk.complete()
        gang.await_metric(0, table.STEP.name, 2 * EVERY + 1)
        # Who is asked to stop leaves when all is written.
        gang.stop()
        assert_preempted(gang, 1)
        gang.await_phase(0, contract.PHASE_CHECKPOINTING)
        assert gang.metric(0, table.CHECKPOINT_STEP.name) == EVERY
        assert (gang.metric(0, table.CHECKPOINT_SECONDS.name) or 0) > 0
        disk.complete(2)
        assert_preempted(gang, 0)
    last = gang.ending(0).step
    assert disk.files() == [name(EVERY), name(2 * EVERY), name(last)]
    marks = {record.step: record.mark for record in gang.series(0)}
    assert [marks[EVERY + each] for each in (-1, 0, 1, 9)] == ["", *["checkpoint"] * 3], "not fit for measuring"
    assert {record.step for record in gang.series(1) if record.mark == "checkpoint"} == {EVERY, 2 * EVERY}
    # Who leads after one that was killed while it wrote removes what that one has left.
    lost = -(-(last + 1) // EVERY) * EVERY
    following = lost + EVERY
    with Gang(tmp_path, disk.command, (30, 34), config(disk, 100_000), generation=2) as gang:
        gang.await_step(lost + 1)
        gang.processes[0].send_signal(signal.SIGKILL)
        gang.await_metric(1, table.STEP.name, following + 1)
        assert [file for file in disk.files() if "partial" in file] == [f".{name(following)}.partial"]
        # If all are killed, the one before is resumed from.
        gang.stop(signal.SIGKILL)
        gang.wait()
    assert f".{name(following)}.partial" in disk.files()
    command, limits = [SCRIPT, "--out", str(tmp_path)], config(disk, following + 5)
    with Gang(tmp_path, command, (30, 34), limits, generation=3) as gang:
        gang.succeed()
        assert_nothing_is_left(gang)
    assert gang.series(0)[0].step == last
    assert disk.files()[-2:] == [name(following), name(following + 5)]
    assert "never completed" in gang.logs()


@pytest.mark.long
def test_a_slow_checkpoint_evicts_nobody(tmp_path: Path, disk: SlowDisk) -> None:
    impatient = replace(config(disk, EVERY + 5), heartbeat_timeout_seconds=1.5)
    with Gang(tmp_path, disk.command, (30, 34), impatient) as gang:
        for _ in range(2):
            time.sleep(4)
            disk.complete()
        gang.succeed()
    assert not gang.has_said("formed again")


def test_optimizer_waits_for_a_copy_that_is_late(tmp_path: Path) -> None:
    folders = [tmp_path / "late", tmp_path / "waited"]
    for generation, command in enumerate(([DISTURBED, "late-copy", SCRIPT], [SCRIPT]), 1):
        # Three checkpoints beside the training, and one with which it ends: only that is at the step of the other job.
        every, steps = (3, 12) if generation == 1 else (1000, 9)
        settings = TrainingConfig(
            steps=steps, seed=3, checkpoint_path=str(folders[generation - 1]), checkpoint_every_steps=every
        )
        arguments = ["--optimizer", "adam", "--out", str(tmp_path)]
        with Gang(tmp_path, [*command, *arguments], (64,), settings, generation=generation) as gang:
            gang.succeed()
            assert not gang.has_said("no checkpoint of step")
    late, waited = (torch.load(folder / name(9), weights_only=True) for folder in folders)
    for part in ("model", "optimizer"):
        late_tensors, tensors = list(tensors_in(late[part])), list(tensors_in(waited[part]))
        assert len(tensors) == len(late_tensors) > 4
        assert all(map(torch.equal, late_tensors, tensors))


def test_a_script_that_raises_ends_when_all_is_written(tmp_path: Path, disk: SlowDisk) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(
        f"import runpy, sys, heterotrain.session as s\n"
        f"scale = s.Session.scale\n"
        f"def fail(session, *given):\n"
        f"    if session.step == {EVERY + 2}: raise ValueError('label 17')\n"
        f"    return scale(session, *given)\n"
        f"s.Session.scale = fail\n"
        f"sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [*disk.command[:3], str(faulty), *disk.command[3:]]
    with Gang(tmp_path, command, (30, 34), config(disk, 100_000)) as gang:
        gang.await_log(0, "ValueError: label 17")
        assert gang.processes[0].poll() is None
        disk.complete()
        gang.wait()
        assert "label 17" in gang.ending(0).message
    assert disk.files() == [name(EVERY)]
