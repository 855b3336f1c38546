"""A checkpoint that is written beside the training holds the state as it was when it was due, and nothing of later."""

from __future__ import annotations

import logging
import os
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterotrain.contract import TrainingConfig
from heterotrain.state import checkpoint, snapshot
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.state.snapshot import Snapshots, Written
from heterotrain.state.state_copy import StateCopy
from heterotrain.state.training_state import TrainingState

PATIENCE_SECONDS = 60


class Average:
    """A moving average of a model's weights, as a script registers it: its state is what it averages into."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = [each.detach().clone() for each in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for kept, each in zip(self.kept, model.parameters(), strict=True):
            kept.lerp_(each.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


class Tied(nn.Module):
    """Two layers with one weight, statistics of a BatchNorm, and a buffer without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.norm(self.first(x)))
        return y


class Training:
    """One worker's training, with all that a checkpoint holds."""

    def __init__(self, folder: Path, *, keep: int = 3, snapshots: Snapshots | None = None) -> None:
        torch.manual_seed(0)
        self.model = Tied()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.average = Average(self.model)
        config = TrainingConfig(steps=99, checkpoint_path=str(folder), checkpoint_every_steps=1, checkpoint_keep=keep)
        self.state = TrainingState(self.model, self.optimizer, 64, config, snapshots=snapshots)
        self.state.registered = {"schedule": self.schedule, "average": self.average}

    def compute(self) -> None:
        """Forward and backward, which change the buffers."""
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 6)).square().sum().backward()

    def commit(self) -> None:
        """What the session does when the gradients are there."""
        self.state.snapshots.before_change()
        self.optimizer.step()
        self.state.position = self.state.position._replace(step=self.state.position.step + 1)
        self.schedule.step()
        self.average.update(self.model)

    def train(self, steps: int) -> Training:
        for _ in range(steps):
            self.compute()
            self.commit()
        return self


class Gate:
    """Lets the threads that write checkpoints through only once it is open."""

    def __init__(self, act: Callable[..., Any], events: list[str], name: str) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._act, self._events, self._name = act, events, name

    def __call__(self, *args: Any) -> Any:
        self.reached.set()
        assert self.open.wait(PATIENCE_SECONDS)
        result = self._act(*args)
        self._events.append(self._name)
        return result


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> Gate:
    """Holds the copying of parameters back."""
    gate = Gate(StateCopy.fill, events, "copied")
    monkeypatch.setattr(StateCopy, "fill", lambda copy: gate(copy))  # noqa: PLW0108  # a function becomes a method
    return gate


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> Gate:
    """Holds the writing back, after the copying."""
    gate = Gate(checkpoint.write, events, "written")
    monkeypatch.setattr(snapshot.checkpoint, "write", gate)
    return gate


def newest(folder: Path) -> dict[str, Any]:
    state = checkpoint.read_newest(folder)
    assert state is not None
    return state


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)  # which holds of NaN, too


def storages(path: Path) -> list[bytes]:
    """The numbers in a checkpoint's file, in their order."""
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist() if "/data/" in name]


def open_when_waited_for(gate: Gate, snapshots: Snapshots) -> None:
    """Let the writer go on only when somebody waits for it."""
    running: Any = snapshots._running
    for waited_for, name in ((running.copied, "wait"), (running, "join")):
        setattr(waited_for, name, partial(_open_and, gate, getattr(waited_for, name)))


def _open_and(gate: Gate, wait: Callable[[], object]) -> object:
    gate.open.set()
    return wait()


def test_it_holds_the_very_bits_of_one_that_training_waited_for(tmp_path: Path, copying: Gate, writing: Gate) -> None:
    training = Training(tmp_path / "beside").train(3)
    waited = Training(tmp_path / "waited").train(3)
    writing.open.set()
    waited.state.save(writes=True)
    writing.open.clear()
    training.state.save(writes=True, beside=True)
    # Before anything that can wait is copied, all that need not wait changes.
    training.compute()
    training.schedule.step()
    training.average.update(nn.ModuleList([training.model]))
    for group in training.optimizer.param_groups:
        group["lr"] = 7.0
    copying.open.set()
    training.commit()
    training.train(2)
    writing.open.set()
    training.state.snapshots.wait()
    assert same(newest(tmp_path / "beside"), newest(tmp_path / "waited"))
    paths = [tmp_path / part / "step-0000000003.pt" for part in ("beside", "waited")]
    assert storages(paths[0]) == storages(paths[1])


@pytest.mark.parametrize("change", ["commit", "load"])
def test_nothing_changes_a_parameter_before_it_is_copied(
    tmp_path: Path, copying: Gate, events: list[str], change: str
) -> None:
    training = Training(tmp_path).train(1)
    other = Training(tmp_path).train(2).state.whole()
    training.state.save(writes=True, beside=True)
    open_when_waited_for(copying, training.state.snapshots)
    if change == "commit":
        training.commit()
    else:
        training.state.load(other)
    events.append("changed")
    training.state.snapshots.wait()
    assert events == ["copied", "changed"]
    assert newest(tmp_path)["step"] == 1


@pytest.mark.parametrize("further", [0, 1], ids=["the same step", "a later step"])
def test_who_leaves_waits_for_what_is_being_written(
    tmp_path: Path, writing: Gate, events: list[str], further: int
) -> None:
    training = Training(tmp_path).train(1)
    training.state.save(writes=True, beside=True)
    training.train(further)
    open_when_waited_for(writing, training.state.snapshots)
    training.state.save(writes=True)
    assert events == ["written"] * (1 + further)
    assert newest(tmp_path)["step"] == 1 + further


def test_a_checkpoint_that_was_lost_is_written_at_the_end_of_its_step(tmp_path: Path, copying: Gate) -> None:
    training = Training(tmp_path).train(1)
    training.state.save(writes=True, beside=True)
    with torch.no_grad():
        training.model.first.weight.zero_()
    copying.open.set()
    training.state.save(writes=True)
    assert newest(tmp_path)["step"] == 1


def test_an_error_of_the_writer_is_reported_and_raised_at_a_boundary_with_the_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    folder.write_text("a file where the folder should be")
    training = Training(folder).train(1)
    training.state.save(writes=True, beside=True)
    with pytest.raises(CheckpointError, match=f"cannot write the checkpoint of step 1 to {folder}: File exists"):
        training.state.save(writes=True)
    training.state.snapshots.check()  # it is raised once
    assert "cannot write the checkpoint of step 1" in caplog.text, "also if something else ends the training"


def test_a_script_that_changes_parameters_by_itself_spoils_no_checkpoint(
    tmp_path: Path, copying: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path).train(1)
    training.state.save(writes=True, beside=True)
    with torch.no_grad():
        training.model.first.weight.clamp_(-0.01, 0.01)
    copying.open.set()
    training.train(1)
    training.state.snapshots.wait()
    assert list(tmp_path.iterdir()) == []
    assert "no checkpoint of step 1: a tensor of shape (6, 6) was changed" in caplog.text
    training.state.save(writes=True, beside=True)
    assert not training.state.snapshots.under_way, "from then on training waits"
    assert newest(tmp_path)["step"] == 2


class SomeRoom:
    """Memory for so many bytes."""

    def __init__(self, size_bytes: int) -> None:
        self.free = size_bytes

    def hold(self, size_bytes: int) -> bool:
        self.held = size_bytes
        fits = size_bytes <= self.free
        self.free -= size_bytes if fits else 0
        return fits

    def release(self) -> None:
        self.free += self.held


def test_without_memory_for_a_copy_training_waits_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path, snapshots=Snapshots(SomeRoom(1)))
    for step in range(1, 4):
        training.train(1).state.save(writes=True, beside=True)
        assert not training.state.snapshots.under_way
        assert newest(tmp_path)["step"] == step
    assert caplog.text.count("training waits while a checkpoint is written") == 1


def test_memory_is_held_until_the_checkpoint_is_written_and_it_is_reported(tmp_path: Path, writing: Gate) -> None:
    room, reported = SomeRoom(1 << 20), list[Written]()
    training = Training(tmp_path, snapshots=Snapshots(room, reported.append)).train(1)
    training.state.save(writes=True, beside=True)
    assert room.free < 1 << 20
    assert reported == []
    writing.open.set()
    training.state.snapshots.wait()
    assert room.free == 1 << 20
    assert [each.step for each in reported] == [1]


@pytest.mark.parametrize(
    ("what", "error"),
    [("mmap.mmap", OSError(12, "Cannot allocate memory")), ("threading.Thread.start", RuntimeError("no new thread"))],
)
def test_where_no_memory_or_no_thread_can_be_had_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    room = SomeRoom(1 << 20)
    training = Training(tmp_path, snapshots=Snapshots(room)).train(1)
    monkeypatch.setattr(what, refuse)
    training.state.save(writes=True, beside=True)
    assert newest(tmp_path)["step"] == 1
    assert room.free == 1 << 20


def test_only_the_newest_stay_and_what_was_half_written_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / ".step-0000000009.pt.partial").write_bytes(b"half")
    (tmp_path / "notes.txt").touch()
    training = Training(tmp_path, keep=2)
    training.state.resume()
    for _ in range(4):
        training.train(1).state.save(writes=True, beside=True)
    training.state.snapshots.wait()
    kept = [path.name for path in sorted(tmp_path.iterdir())]
    assert kept == ["notes.txt", "step-0000000003.pt", "step-0000000004.pt"]
    assert "removing" in caplog.text


def test_a_folder_that_cannot_be_synced_is_an_error_unless_no_folder_there_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync
    number = [22]  # EINVAL, which some network file systems return for a folder

    def refuse_folders(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(number[0], os.strerror(number[0]))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    checkpoint.write(tmp_path, 1, {"step": 1}, keep=2)
    number[0] = 5
    with pytest.raises(CheckpointError, match=r"step 2 .*Input/output error"):
        checkpoint.write(tmp_path, 2, {"step": 2}, keep=2)
