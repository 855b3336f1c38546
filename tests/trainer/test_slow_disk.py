"""Jobs of real workers whose checkpoints take long to be written."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.state.state_copy import tensors_in
from trainer.gang import Gang

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
        self.command = ["tests/trainer/scripts/slow_disk.py", str(self._fifo), SCRIPT, "--out", str(folder)]

    def complete(self) -> None:
        """Let the checkpoint that is being written, or else the next one, be completed."""
        os.write(self._allowed, b".")

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


def test_training_goes_on_until_the_next_checkpoint_is_due(tmp_path: Path, disk: SlowDisk) -> None:
    with Gang(tmp_path, disk.command, (30, 34), config(disk, 2 * EVERY + 5)) as gang:
        # One is not completed, and all steps before the next are committed; then the leader says what it waits for.
        gang.await_phase(0, contract.PHASE_CHECKPOINTING)
        gang.await_step(2 * EVERY)
        assert disk.files() == [f".{name(EVERY)}.partial"]
        assert gang.metric(0, table.CHECKPOINT_STEP.name) is None
        disk.complete()
        gang.await_metric(0, table.STEP.name, 2 * EVERY + 1)
        assert gang.metric(0, table.CHECKPOINT_STEP.name) == EVERY
        assert (gang.metric(0, table.CHECKPOINT_SECONDS.name) or 0) > 0
        assert gang.metric(1, table.CHECKPOINT_STEP.name) is None
        disk.complete()
        disk.complete()
        gang.succeed()
    assert disk.files() == [name(EVERY), name(2 * EVERY), name(2 * EVERY + 5)]
    marks = {record.step: record.mark for record in gang.series(0)}
    assert [marks[EVERY + each] for each in (-1, 0, 1, 9)] == ["", *["checkpoint"] * 3], "not fit for measuring"
    assert {record.step for record in gang.series(1) if record.mark == "checkpoint"} == {EVERY, 2 * EVERY}


def test_who_writes_beside_the_training_is_in_training(tmp_path: Path, disk: SlowDisk) -> None:
    freezes = {"FREEZES": f"w-1 {EVERY + 5}"}  # time enough to look at the leader
    with Gang(tmp_path, disk.command, (30, 34), config(disk, EVERY + 8), environment=freezes) as gang:
        gang.await_step(EVERY + 5)
        gang.await_phase(0, contract.PHASE_TRAINING)
        assert disk.files() == [f".{name(EVERY)}.partial"]
        gang.processes[1].send_signal(signal.SIGCONT)
        disk.complete()
        disk.complete()
        gang.succeed()


def test_optimizer_waits_for_a_copy_that_is_late(tmp_path: Path) -> None:
    folders = [tmp_path / "late", tmp_path / "waited"]
    for generation, command in enumerate((["tests/trainer/scripts/late_copy.py", SCRIPT], [SCRIPT]), 1):
        # Three checkpoints beside the training, and one with which it ends: only that is at the step of the other job.
        every, steps = (3, 12) if generation == 1 else (1000, 9)
        settings = TrainingConfig(
            steps=steps, seed=3, checkpoint_path=str(folders[generation - 1]), checkpoint_every_steps=every
        )
        arguments = ["--optimizer", "adam", "--out", str(tmp_path)]
        with Gang(tmp_path, [*command, *arguments], (64,), settings, generation=generation) as gang:
            gang.succeed()
            assert "no checkpoint of step" not in gang.logs()
    late, waited = (torch.load(folder / name(9), weights_only=True) for folder in folders)
    for part in ("model", "optimizer"):
        late_tensors, tensors = list(tensors_in(late[part])), list(tensors_in(waited[part]))
        assert len(tensors) == len(late_tensors) > 4
        assert all(map(torch.equal, late_tensors, tensors))


def test_who_is_asked_to_stop_leaves_when_all_is_written(tmp_path: Path, disk: SlowDisk) -> None:
    with Gang(tmp_path, disk.command, (30, 34), config(disk, 100_000)) as gang:
        gang.await_step(EVERY + 1)
        gang.stop()
        assert gang.processes[1].wait() == contract.EXIT_PREEMPTED
        gang.await_phase(0, contract.PHASE_CHECKPOINTING)
        disk.complete()
        disk.complete()
        assert gang.wait() == [contract.EXIT_PREEMPTED] * 2
        assert gang.ending(0).asked_to_stop
    assert disk.files() == [name(EVERY), name(gang.ending(0).step)]


def test_killed_while_writing_the_one_before_is_resumed_from(tmp_path: Path, disk: SlowDisk) -> None:
    with Gang(tmp_path, disk.command, (30, 34), config(disk, 100_000)) as gang:
        disk.complete()
        gang.await_step(2 * EVERY + 1)
        gang.stop(signal.SIGKILL)
        gang.wait()
    assert disk.files() == [f".{name(2 * EVERY)}.partial", name(EVERY)]
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 34), config(disk, 25), generation=2) as second:
        second.succeed()
    assert second.series(0)[0].step == EVERY
    assert disk.files() == [name(EVERY), name(2 * EVERY), name(25)]
    assert "never completed" in second.logs()


def test_a_script_that_raises_ends_when_all_is_written(tmp_path: Path, disk: SlowDisk) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(
        f"import heterotrain.session as s\n"
        f"scale = s.Session.scale\n"
        f"def fail(session, *given):\n"
        f"    if session.step == {EVERY + 2}: raise ValueError('label 17')\n"
        f"    return scale(session, *given)\n"
        f"s.Session.scale = fail\n"
        f"import sys, runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [*disk.command[:2], str(faulty), *disk.command[2:]]
    with Gang(tmp_path, command, (30, 34), config(disk, 100_000)) as gang:
        gang.await_log(0, "ValueError: label 17")
        assert gang.processes[0].poll() is None
        disk.complete()
        gang.wait()
        assert "label 17" in gang.ending(0).message
    assert disk.files() == [name(EVERY)]
