"""Writes checkpoints beside the training: the state is copied while the next step computes, then a thread writes it.

A copy takes as much memory as the state, so where that does not fit the checkpoint is written while training waits.
There is one copy at a time: a checkpoint that is due while the one before is still being written waits for it. So each
checkpoint that is due is written, and a slow disk slows the training down instead of filling the memory.

What would change a parameter or the optimizer's state calls `before_change` first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from heterotrain.state import checkpoint
from heterotrain.state.state_copy import ChangedError, StateCopy

log = logging.getLogger(__name__)

_MEBIBYTE = 1 << 20


class Target(NamedTuple):
    """What a checkpoint is written to: the folder, in which the newest `keep` stay, under the number of its step."""

    folder: Path
    step: int
    keep: int


class Written(NamedTuple):
    """A checkpoint on the disk; `seconds` is what it took to be copied and written."""

    step: int
    seconds: float


class Room(Protocol):
    """The memory that there is for a copy."""

    def hold(self, size_bytes: int) -> bool:
        """Whether so much fits beside what steps need; if so it counts as held until `release`."""

    def release(self) -> None:
        """What was held is free again; called by any thread."""


class Snapshots:
    """The checkpoints of one worker, of which at most one is being written."""

    def __init__(self, room: Room | None = None, report: Callable[[Written], None] | None = None) -> None:
        """Without `room` there is always enough memory. `report` is called by the thread that writes."""
        self.lost_step: int | None = None  # of a checkpoint that could not be written since the state changed meanwhile
        self._room = room
        self._report = report
        self._running: _Running | None = None
        self._disturbs = False
        self._waits = False  # the script changes what is being copied, so it waits while checkpoints are written
        self._said = False

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._running is not None

    def write(self, target: Target, state: dict[str, Any]) -> None:
        """Write a state while the caller waits, after what is still being written. Raises CheckpointError."""
        self.wait()
        begin = time.perf_counter()
        checkpoint.write(target.folder, target.step, state, target.keep)
        self._written(target, begin)

    def begin(
        self,
        target: Target,
        state: dict[str, Any],
        later: Iterable[torch.Tensor],
        at_once: Iterable[torch.Tensor] = (),
    ) -> None:
        """Write a state, after what is still being written, and return soon: its tensors among `later` are copied until
        `before_change` returns, those that share numbers with `at_once` and all others by now.

        Raises CheckpointError, also if the checkpoint before could not be written.
        """
        self.wait()
        copy = None if self._waits else self._copy_of(state, later, at_once)
        if copy is None:
            self.write(target, state)
            return
        running = _Running(target, copy, self._finished)
        try:
            running.start()
        except RuntimeError:  # the process may have no more threads
            self._release()
            self.write(target, state)
        else:
            self._running, self._disturbs = running, True

    def before_change(self) -> None:
        """Wait until the copy that is being made is whole."""
        if self._running is not None:
            self._running.copied.wait()

    def check(self) -> None:
        """Raises what ended a writer early, among it CheckpointError, once."""
        if self._running is not None and not self._running.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written. Raises as `check`."""
        running = self._running
        if running is None:
            return
        running.join()
        self._running = None
        if isinstance(running.error, ChangedError):
            self._waits, self.lost_step = True, running.target.step
        elif running.error is not None:
            raise running.error

    def disturbs(self) -> bool:
        """Whether the step that begins shares the machine with the writer, or the one before did; asked once a step."""
        before, self._disturbs = self._disturbs, self._running is not None
        return before or self._disturbs

    def _copy_of(
        self, state: dict[str, Any], later: Iterable[torch.Tensor], at_once: Iterable[torch.Tensor]
    ) -> StateCopy | None:
        """The copy of a state; None if there is no memory for it."""
        copy = StateCopy(state, later, at_once)
        size = copy.size_bytes
        if self._room is None or self._room.hold(size):
            try:
                copy.begin()
            except (OSError, RuntimeError, MemoryError):
                self._release()
            else:
                return copy
        if not self._said:
            self._said = True
            log.warning(
                "training waits while a checkpoint is written: beside what steps need, a copy of the state (%d MiB) is "
                "not sure to fit into this worker's memory",
                -(-size // _MEBIBYTE),
            )
        return None

    def _finished(self, running: _Running, begin: float) -> None:
        self._release()
        if running.error is None:
            self._written(running.target, begin)
        elif isinstance(running.error, ChangedError):
            log.warning(
                "no checkpoint of step %d: %s while it was copied; from here on training waits while checkpoints are "
                "written. What a script changes by itself is best changed in session.after_step()",
                running.target.step,
                running.error,
            )
        else:
            log.error("%s", running.error)  # where something else has ended the training, nobody asks for it

    def _release(self) -> None:
        if self._room is not None:
            self._room.release()

    def _written(self, target: Target, begin: float) -> None:
        log.info("checkpoint of step %d written", target.step)
        if self._report is not None:
            self._report(Written(target.step, time.perf_counter() - begin))


class _Running(threading.Thread):
    """One checkpoint that is being copied, then written. No daemon: the process ends only after it."""

    def __init__(self, target: Target, copy: StateCopy, finished: Callable[[_Running, float], None]) -> None:
        super().__init__(name="heterotrain-checkpoint")
        self.target = target
        self.error: Exception | None = None
        self.copied = threading.Event()
        self._copy = copy
        self._finished = finished

    def run(self) -> None:
        """Copy, then write; an error is kept for the training thread."""
        begin = time.perf_counter()
        try:
            self._write()
        except Exception as error:  # noqa: BLE001  # whatever it is, the training thread raises it
            self.error = error.with_traceback(None)  # whose frames would hold the copy
        finally:
            self._copy.close()
        self._finished(self, begin)

    def _write(self) -> None:
        try:
            self._copy.fill()
        finally:
            self.copied.set()
        checkpoint.write(self.target.folder, self.target.step, self._copy.state, self.target.keep)
