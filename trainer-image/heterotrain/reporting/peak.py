"""This worker's peak memory in ordinary steps, by which the operator learns how large its batch may grow.

Only measured steps count: a checkpoint or an evaluation takes memory too, but not in proportion to the batch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from heterotrain.reporting import resources

READ_SECONDS = 0.25
"""Seconds of measured steps between two readings, since a reading at each small step would cost too much. The kernel
keeps the greatest figure until it is reset."""

USABLE = 0.95
"""The part of a memory limit up to which anything but steps may fill it; the kernel needs some of the rest."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes held since the active plan began, in steps of `batch_size` samples at once."""

    memory_bytes: float
    batch_size: int


class PeakMemory:
    """Follows the process's resident memory; right for workers that train on the CPU.

    The training thread writes; the metrics server's thread reads.
    """

    def __init__(self) -> None:
        self.peak: Peak | None = None
        self._samples_at_once: int | None = None
        self._forgets = False
        self._holds = self._held = False  # memory that is no step's: now, and at the last step's end
        self._unread_seconds = READ_SECONDS  # of measured steps since the last reading

    def begin(self, samples_at_once: int) -> None:
        """A plan begins: what was measured before does not count. Memory that a larger batch needed is given back."""
        self.peak = None
        before, self._samples_at_once = self._samples_at_once, samples_at_once
        if before is None or samples_at_once < before:  # it takes some milliseconds, for which all others wait
            self._give_back()
        self._begin_again()

    def children_bytes(self) -> float:
        """What processes that load data hold beside this one, now."""
        return resources.children_memory_bytes()

    def step(self, samples: int, seconds: float, *, measured: bool) -> None:
        """A step of this many seconds has ended, with `samples` at once; one that is not `measured` does not count."""
        held, self._held = self._held, self._holds
        if not measured or samples <= 0 or held or self._held:
            self._begin_again()
            return
        self._unread_seconds += seconds
        if self._unread_seconds < READ_SECONDS:
            return
        self._unread_seconds = 0.0
        read = self._read()
        if read is None:
            return
        self.peak = Peak(max(read, self.peak.memory_bytes if self.peak else 0.0), samples)

    def limit_bytes(self) -> float | None:
        """The limit under which it is; None if there is none."""
        return resources.memory_limit_bytes()

    def hold(self, size_bytes: int) -> bool:
        """Whether so much memory of the host, which is no step's, fits beside what steps need. If so it is held until
        `release`, and steps meanwhile do not count."""
        room = self._room_bytes()
        if room is not None and size_bytes > room:
            return False
        self._holds = self._held = True
        return True

    def release(self) -> None:
        """What was held is free again; called by any thread."""
        self._holds = False

    def _room_bytes(self) -> float | None:
        """What is left beside steps; None if that is not known. Nothing, under a limit, before a step was measured."""
        limit = resources.memory_limit_bytes()
        if limit is None:
            return resources.available_bytes()
        if self.peak is None:
            return 0.0
        needed = max(self.peak.memory_bytes, resources.memory_bytes() or 0.0) + self.children_bytes()
        return USABLE * limit - needed

    def _begin_again(self) -> None:
        self._unread_seconds = READ_SECONDS
        self._forget()

    def _give_back(self) -> None:
        # glibc keeps what was freed, and a smaller batch would seem to need as much as the larger one before.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

    def _forget(self) -> None:
        self._forgets = resources.forget_peak()

    def _read(self) -> float | None:
        # A peak that cannot be reset may be that of another batch, or of the script's preparations.
        return resources.peak_memory_bytes() if self._forgets else None
